from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunegym.dataplane.errors import FullError, SampleError, SpecError, TagError
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, tags_of
from tunegym.dataplane.model import BatchMeta, PartitionSpec
from tunegym.dataplane.staleness import Admission, StalenessPolicy


def of(versions: Sequence[int]) -> BatchMeta:
    return BatchMeta(
        "rollouts",
        tuple(f"s{at}" for at in range(len(versions))),
        tags=tuple({"weight_version": version} for version in versions),
    )


# the policy -----------------------------------------------------------------------------------------------


def test_one_value_gives_filter_admission_and_capacity() -> None:
    policy = StalenessPolicy(batch_size=32, max_staleness=2, group_size=8, commit_every=4)
    assert policy.filter().max_staleness == 2
    assert policy.most_outstanding == policy.room(7) == 96
    assert policy.limits() == {"capacity": 96 + 4 * 32, "group_size": 8}
    assert StalenessPolicy(32, 2, capacity=500).capacity == 500
    PartitionSpec("rollouts", ("tokens",), ("train",), **policy.limits())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0, "max_staleness": 1}, "batch_size is 0"),
        ({"batch_size": 8, "max_staleness": -1}, "max_staleness is -1"),
        ({"batch_size": 8, "max_staleness": 1.0}, "max_staleness is 1.0"),
        ({"batch_size": 8, "max_staleness": True}, "max_staleness is True"),
        ({"batch_size": 8, "max_staleness": 1, "group_size": 0}, "group_size is 0"),
        ({"batch_size": 8, "max_staleness": 1, "commit_every": 0}, "commit_every is 0"),
        ({"batch_size": 8, "max_staleness": 1, "group_size": 3}, "groups of 3"),
        ({"batch_size": 8, "max_staleness": 1, "group_size": 16}, "groups of 16"),
        ({"batch_size": 8, "max_staleness": 1, "capacity": 7}, "give at least 24"),
        ({"batch_size": 8, "max_staleness": 1, "capacity": 23}, "give at least 24"),
        ({"batch_size": 8, "max_staleness": 1, "capacity": 24, "commit_every": 2}, "give at least 32"),
    ],
)
def test_what_would_make_everybody_wait_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        StalenessPolicy(**arguments)


def test_room_shrinks_as_the_oldest_ages() -> None:
    policy = StalenessPolicy(batch_size=10, max_staleness=2)
    assert [policy.room(current, outstanding=1, oldest_version=3) for current in (3, 4, 5, 6)] == [29, 19, 9, 0]
    assert [policy.room(5, version=version) for version in (5, 4, 3, 2)] == [30, 20, 10, 0]
    assert policy.admits(9, 5, outstanding=1, oldest_version=3)
    assert not policy.admits(10, 5, outstanding=1, oldest_version=3)
    with pytest.raises(TagError, match="in the future"):
        policy.room(5, version=6)


# the count of what is outstanding ------------------------------------------------------------------------


def test_what_is_ready_holds_nobody_up() -> None:
    admission = Admission(StalenessPolicy(batch_size=4, max_staleness=1))
    assert admission.start(100) == 8
    admission.ready(of([0] * 7))
    admission.advance(1, of([0] * 4))
    assert (admission.outstanding, admission.oldest_version, admission.room()) == (4, 0, 0)
    admission.ready(of([0]))
    assert (admission.outstanding, admission.oldest_version, admission.room()) == (4, None, 4)
    with pytest.raises(SampleError, match="1 samples of version 0, but only"):
        admission.ready(of([0]))
    with pytest.raises(SampleError, match="1 samples of version 0, but only"):
        admission.abandon(1, 0)


def test_admission_refuses_what_does_not_add_up() -> None:
    admission = Admission(StalenessPolicy(batch_size=2, max_staleness=1), 5, {4: 1, 5: 2})
    with pytest.raises(SampleError, match="of version 4, but only 0 are outstanding"):
        admission.drop(of([4, 4]))
    with pytest.raises(SampleError, match="of version 3"):
        admission.abandon(1, 3)
    with pytest.raises(SpecError, match="1 samples for 1 versions"):
        admission.advance(6, of([4]))
    with pytest.raises(SpecError, match="before the current one"):
        admission.advance(4)
    with pytest.raises(TagError):
        admission.drop(BatchMeta("rollouts", ("a",)))
    assert admission.outstanding == 3
    admission.advance(6, of([4]), of([5]))
    admission.drop(BatchMeta("rollouts", ()))
    assert (admission.outstanding, admission.current_version) == (1, 6)


# whether it is true ---------------------------------------------------------------------------------------


@dataclass
class Producer:
    """Makes one group after the other; now and then one takes very long, and now and then one fails."""

    number: int
    speed: float
    lazy: float
    weights: int = 0
    busy: bool = False


class Flow:
    """Producers and a trainer of any speed, who obey the policy.

    With ``ordered``, groups are claimed as they became ready, and admission is told of it; else in any order.
    """

    def __init__(
        self,
        policy: StalenessPolicy,
        random: Random,
        producers: int,
        fails: float,
        unwanted: float,
        replace: bool,
        ordered: bool,
    ) -> None:
        self.policy = policy
        self.random = random
        self.fails, self.unwanted, self.replace, self.ordered = fails, unwanted, replace, ordered
        self.admission = Admission(policy)
        self.producers = [Producer(at, random.choice([0.1, 1, 20]), random.random()) for at in range(producers)]
        self.trainer_speed = random.choice([0.1, 1, 20])
        self.now = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.ready: list[int] = []
        self.chosen: list[int] = []
        self.lost: list[int] = []
        self.training = False
        self.resident = self.uncommitted = self.most_resident = self.count = 0

    def later(self, speed: float, what: str, subject: Any) -> None:
        self.count += 1
        tail = 50 if self.random.random() < 0.05 else 1
        heapq.heappush(self.events, (self.now + tail * self.random.expovariate(1) / speed, self.count, what, subject))

    def run(self, versions: int) -> None:
        while self.admission.current_version < versions:
            self.train()
            for producer in self.random.sample(self.producers, len(self.producers)):
                self.start(producer)
            assert self.events, "everybody waits"
            self.now, _, what, subject = heapq.heappop(self.events)
            getattr(self, what)(subject)
            self.most_resident = max(self.most_resident, self.resident)
            assert self.resident <= (self.policy.capacity or 0)

    def start(self, producer: Producer) -> None:
        if producer.busy:
            return
        if self.random.random() > producer.lazy:
            producer.weights = self.admission.current_version
        granted = self.admission.start(self.policy.unit, producer.weights)
        if not granted:
            producer.weights = self.admission.current_version
            granted = self.admission.start(self.policy.unit, producer.weights)
        if granted:
            producer.busy = True
            self.later(producer.speed, "finished", (producer, producer.weights))

    def finished(self, subject: tuple[Producer, int]) -> None:
        producer, version = subject
        producer.busy = False
        if self.random.random() < self.fails:
            self.admission.abandon(self.policy.unit, version)
            return
        self.ready.append(version)
        if self.ordered:
            self.admission.ready(of([version] * self.policy.unit))
        self.resident += self.policy.unit

    def train(self) -> None:
        """Claim groups until there is a batch; each of the ledger's claims would be one."""
        while not self.training:
            missing = self.policy.batch_size // self.policy.unit - len(self.chosen) - len(self.lost)
            if missing == 0:
                self.training = True
                self.later(self.trainer_speed, "trained", None)
            elif not self.ready:
                return
            else:
                version = self.ready.pop(0 if self.ordered else self.random.randrange(len(self.ready)))
                group = of([version] * self.policy.unit)
                _, stale = self.policy.filter().split(group, current_weight_version=self.admission.current_version)
                assert not stale.size, "stale"
                if self.random.random() >= self.unwanted:
                    self.chosen.append(version)
                    continue
                self.resident -= self.policy.unit
                if self.replace:
                    self.admission.drop(group)
                else:
                    self.lost.append(version)

    def trained(self, _: None) -> None:
        unit = self.policy.unit
        self.admission.advance(self.admission.current_version + 1, of([*self.chosen] * unit), of([*self.lost] * unit))
        self.uncommitted += len(self.chosen) * unit
        self.chosen, self.lost, self.training = [], [], False
        if self.admission.current_version % self.policy.commit_every == 0:
            self.later(1e9, "committed", self.uncommitted)
            self.uncommitted = 0

    def committed(self, count: int) -> None:
        self.resident -= count


@settings(max_examples=40)
@given(
    groups=st.integers(1, 6),
    group_size=st.sampled_from([None, 1, 2, 4]),
    max_staleness=st.integers(0, 4),
    commit_every=st.integers(1, 3),
    producers=st.integers(1, 12),
    fails=st.sampled_from([0, 0.2]),
    unwanted=st.sampled_from([0, 0.4]),
    replace=st.booleans(),
    ordered=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_nothing_becomes_stale_and_nobody_waits_for_ever(
    groups: int,
    group_size: int | None,
    max_staleness: int,
    commit_every: int,
    producers: int,
    fails: float,
    unwanted: float,
    replace: bool,
    ordered: bool,
    seed: int,
) -> None:
    policy = StalenessPolicy(groups * (group_size or 1), max_staleness, group_size, commit_every)
    Flow(policy, Random(seed), producers, fails, unwanted, replace, ordered).run(versions=25)


@pytest.mark.parametrize(("max_staleness", "commit_every"), [(0, 1), (2, 1), (1, 3)])
def test_the_capacity_is_just_what_is_needed(max_staleness: int, commit_every: int) -> None:
    """In a real ledger: producers as far ahead as they may be, at the moment before a commit."""
    policy = StalenessPolicy(4, max_staleness, 2, commit_every)
    admission, ledger, made = Admission(policy), Ledger(), 0
    ledger.register(PartitionSpec("rollouts", ("tokens",), ("train",), on_full="raise", **policy.limits()))

    def produce(count: int) -> None:
        nonlocal made
        names = [f"s{made + at}" for at in range(count)]
        groups = [f"g{(made + at) // 2}" for at in range(count)]
        tags = [{"weight_version": admission.current_version}] * count
        admission.ready(BatchMeta("rollouts", tuple(names), tags=tuple(tags)))
        ledger.put(Put("rollouts", names, {"tokens": ("<i8", 1)}, {}, tags=tags, group_ids=groups), 0.0)
        made += count

    for step in range(3 * commit_every):
        produce(admission.start(1000))
        grant = ledger.claim(Claim("rollouts", "train", ("tokens",), 4, 4, "trainer", 60.0), 0.0)
        assert isinstance(grant, Grant)
        meta = BatchMeta(
            "rollouts", tuple(grant.sample_ids), tags=tuple(tags_of(grant.tags, len(grant.sample_ids)) or ())
        )
        assert policy.filter().split(meta, current_weight_version=step)[0].size == 4
        ledger.ack("rollouts", "train", grant.sample_ids, [grant.lease] * 4, step + 1, 0.0)
        admission.advance(step + 1, meta)
        if (step + 1) % commit_every == 0:
            produce(admission.start(1000))
            full = Put("rollouts", ["x", "y"], {"tokens": ("<i8", 1)}, {}, group_ids=["g", "g"])
            with pytest.raises(FullError):
                ledger.put(full, 0.0)
            ledger.commit("rollouts", "train", step + 1, 0.0)
