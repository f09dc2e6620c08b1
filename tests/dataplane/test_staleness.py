"""One staleness policy: nothing becomes stale, nothing deadlocks, and the capacity is exact (P12)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunegym.dataplane import connect
from tunegym.dataplane.errors import FullError, SampleError, SpecError, TagError
from tunegym.dataplane.model import BatchMeta
from tunegym.dataplane.staleness import Admission, StalenessPolicy


def of(versions: Sequence[int]) -> BatchMeta:
    return BatchMeta(
        "rollouts",
        tuple(f"s{at}" for at in range(len(versions))),
        tags=tuple({"weight_version": version} for version in versions),
    )


def test_one_value_gives_filter_admission_and_capacity() -> None:
    policy = StalenessPolicy(batch_size=32, max_staleness=2, group_size=8, commit_every=4)
    assert policy.filter().max_staleness == 2
    assert policy.most_outstanding == policy.room(7) == 96
    assert policy.limits() == {"capacity": 96 + 4 * 32, "group_size": 8}
    assert StalenessPolicy(32, 2, capacity=500).capacity == 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_staleness": -1}, "max_staleness is -1"),
        ({"max_staleness": 1.0}, "max_staleness is 1.0"),
        ({"max_staleness": True}, "max_staleness is True"),
        ({"max_staleness": None}, "max_staleness is None"),
        ({"group_size": 0}, "group_size is 0"),
        ({"commit_every": 0}, "commit_every is 0"),
        ({"group_size": 3}, "groups of 3"),
        ({"group_size": 16}, "groups of 16"),
        ({"capacity": 23}, "give at least 24"),
        ({"capacity": 24, "commit_every": 2}, "give at least 32"),
    ],
)
def test_a_policy_that_would_deadlock_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        StalenessPolicy(**{"batch_size": 8, "max_staleness": 1, **arguments})


def test_room_shrinks_as_the_oldest_ages() -> None:
    policy = StalenessPolicy(batch_size=10, max_staleness=2)
    assert [policy.room(current, outstanding=1, oldest_version=3) for current in (3, 4, 5, 6)] == [29, 19, 9, 0]
    assert [policy.room(5, version=version) for version in (5, 4, 3, 2)] == [30, 20, 10, 0]
    assert policy.admits(9, 5, outstanding=1, oldest_version=3)
    assert not policy.admits(10, 5, outstanding=1, oldest_version=3)
    with pytest.raises(TagError, match="in the future"):
        policy.room(5, version=6)


def test_ready_samples_hold_up_no_others() -> None:
    admission = Admission(StalenessPolicy(batch_size=4, max_staleness=1))
    assert admission.start(100) == 8
    admission.ready(of([0] * 7))
    admission.advance(1, of([0] * 4))
    assert (admission.outstanding, admission.oldest_version, admission.room()) == (4, 0, 0)
    admission.ready(of([0]))
    assert (admission.outstanding, admission.oldest_version, admission.room()) == (4, None, 4)


def test_admission_refuses_what_does_not_add_up() -> None:
    admission = Admission(StalenessPolicy(batch_size=2, max_staleness=1), 5, {4: 1, 5: 2})
    for error, message, call in (
        (SampleError, "of version 4, but only 0 are outstanding", lambda: admission.drop(of([4, 4]))),
        (SampleError, "1 samples of version 4, but only", lambda: admission.ready(of([4]))),
        (SampleError, "of version 3", lambda: admission.abandon(1, 3)),
        (SpecError, "1 samples for 1 versions", lambda: admission.advance(6, of([4]))),
        (SpecError, "before the current one", lambda: admission.advance(4)),
        (TagError, "no tags", lambda: admission.drop(BatchMeta("rollouts", ("a",)))),
    ):
        with pytest.raises(error, match=message):
            call()
    assert admission.outstanding == 3
    admission.advance(6, of([4]), of([5]))
    admission.drop(BatchMeta("rollouts", ()))
    assert (admission.outstanding, admission.current_version) == (1, 6)


class Flow:
    """Producers and a trainer of any speed, which obey the policy.

    A producer makes one group after the other. Some groups take very long, some fail (``fails``), and the trainer
    drops some (``unwanted``), with a replacement or without. With ``ordered``, groups are claimed in the order in which
    they became ready, and admission hears of it; else in any order.
    """

    def __init__(
        self, policy: StalenessPolicy, random: Random, fails: float, unwanted: float, replace: bool, ordered: bool
    ) -> None:
        self.policy, self.random = policy, random
        self.fails, self.unwanted, self.replace, self.ordered = fails, unwanted, replace, ordered
        self.admission = Admission(policy)
        self.idle = [(random.choice([0.1, 1, 20]), random.random()) for _ in range(random.randint(1, 12))]
        self.trainer_speed = random.choice([0.1, 1, 20])
        self.now = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.ready: list[int] = []
        self.chosen: list[int] = []
        self.lost: list[int] = []
        self.training = False
        self.count = 0

    def later(self, speed: float, what: str, subject: Any) -> None:
        self.count += 1
        tail = 50 if self.random.random() < 0.05 else 1
        heapq.heappush(self.events, (self.now + tail * self.random.expovariate(1) / speed, self.count, what, subject))

    def run(self, versions: int) -> None:
        while self.admission.current_version < versions:
            self.train()
            self.random.shuffle(self.idle)
            self.idle = [one for one in self.idle if not self.start(*one)]
            assert self.events, "every process waits"
            self.now, _, what, subject = heapq.heappop(self.events)
            getattr(self, what)(subject)

    def start(self, speed: float, lazy: float) -> bool:
        """Start a group with old weights, as a lazy producer does, or with the current ones."""
        for behind in (self.random.randint(0, 2) if self.random.random() < lazy else 0, 0):
            version = max(0, self.admission.current_version - behind)
            if self.admission.start(self.policy.unit, version):
                self.later(speed, "finished", ((speed, lazy), version))
                return True
        return False

    def finished(self, subject: tuple[tuple[float, float], int]) -> None:
        producer, version = subject
        self.idle.append(producer)
        if self.random.random() < self.fails:
            self.admission.abandon(self.policy.unit, version)
            return
        self.ready.append(version)
        if self.ordered:
            self.admission.ready(of([version] * self.policy.unit))

    def train(self) -> None:
        """Claim groups until there is a batch."""
        while not self.training:
            missing = self.policy.batch_size // self.policy.unit - len(self.chosen) - len(self.lost)
            if missing == 0:
                self.training = True
                self.later(self.trainer_speed, "trained", None)
                return
            if not self.ready:
                return
            version = self.ready.pop(0 if self.ordered else self.random.randrange(len(self.ready)))
            group = of([version] * self.policy.unit)
            _, stale = self.policy.filter().split(group, current_weight_version=self.admission.current_version)
            assert not stale.size, "stale"
            if self.random.random() >= self.unwanted:
                self.chosen.append(version)
                continue
            if self.replace:
                self.admission.drop(group)
            else:
                self.lost.append(version)

    def trained(self, _: None) -> None:
        unit = self.policy.unit
        self.admission.advance(self.admission.current_version + 1, of([*self.chosen] * unit), of([*self.lost] * unit))
        self.chosen, self.lost, self.training = [], [], False


POLICIES = st.builds(
    lambda groups, size, most, every: StalenessPolicy(groups * (size or 1), most, size, every),
    *(st.integers(1, 6), st.sampled_from([None, 1, 2, 4]), st.integers(0, 4), st.integers(1, 3)),
)
CHANCES = (st.sampled_from([0, 0.2]), st.sampled_from([0, 0.4]), st.booleans(), st.booleans())


@settings(max_examples=40)
@given(st.builds(Flow, POLICIES, st.integers(0, 2**32).map(Random), *CHANCES))
def test_nothing_becomes_stale_and_nothing_deadlocks(flow: Flow) -> None:
    flow.run(versions=25)


@pytest.mark.parametrize(("max_staleness", "commit_every"), [(0, 1), (2, 1), (1, 3)])
def test_the_capacity_is_exact(max_staleness: int, commit_every: int) -> None:
    """On a real plane: producers as far ahead as they may be, at the moment before a commit."""
    policy = StalenessPolicy(4, max_staleness, 2, commit_every)
    admission, made = Admission(policy), 0
    with connect("memory://capacity") as plane:
        plane.register_partition("rollouts", ["tokens"], ["train"], on_full="raise", **policy.limits())

        def produce(count: int) -> None:
            nonlocal made
            numbers = range(made, made + count)
            ids, groups = [f"s{at}" for at in numbers], [f"g{at // 2}" for at in numbers]
            tags = {"weight_version": admission.current_version}
            admission.ready(plane.put_samples("rollouts", ids, {"tokens": [*numbers]}, tags, groups))
            made += count

        for step in range(3 * commit_every):
            produce(admission.start(1000))
            claimed = plane.claim_meta("rollouts", "train", ["tokens"], 4)
            assert policy.filter().split(claimed, current_weight_version=step)[0].size == 4
            plane.ack(claimed, version=step + 1)
            admission.advance(step + 1, claimed)
            if (step + 1) % commit_every == 0:
                produce(admission.start(1000))
                with pytest.raises(FullError):
                    plane.put_samples("rollouts", ["x", "y"], {"tokens": [0, 0]}, group_ids=["g", "g"])
                plane.commit("rollouts", "train", step + 1)
