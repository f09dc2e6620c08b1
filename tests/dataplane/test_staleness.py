"""One staleness policy: nothing becomes stale, nothing deadlocks, and the capacity is exact (P12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
        ({"group_size": 0}, "group_size is 0"),
        ({"commit_every": 0}, "commit_every is 0"),
        ({"group_size": 3}, "groups of 3"),
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


ORDERS = ["in order", "any", "any, known"]
POLICIES = st.builds(
    lambda groups, size, most, every: StalenessPolicy(groups * (size or 1), most, size, every),
    *(st.integers(1, 6), st.sampled_from([None, 1, 2, 4]), st.integers(0, 4), st.integers(1, 3)),
)


@settings(max_examples=60)
@given(POLICIES, st.integers(0, 2**32), st.sampled_from([0, 0.2]), st.sampled_from([0, 0.4]), st.sampled_from(ORDERS))
def test_nothing_becomes_stale_and_nothing_deadlocks(
    policy: StalenessPolicy, seed: int, fails: float, drops: float, order: str
) -> None:
    """Producers and a trainer of any speed: groups may take very long, fail, have old weights, or be dropped.

    Groups are claimed in the order in which they became ready, and admission hears of it; or in any order, and it does
    not hear of it, or knows.
    """
    policy = replace(policy, in_order=order != "any, known")
    random, admission, unit = Random(seed), Admission(policy), policy.unit
    speeds, producers = [0.05 + random.random() for _ in range(4)], random.randint(1, 12)
    running: list[int] = []
    ready: list[int] = []
    taken: list[int] = []
    resident = uncommitted = 0
    while (current := admission.current_version) < 25:
        full = len(taken) * unit == policy.batch_size
        possible = {"start": len(running) < producers, "finish": running, "claim": ready and not full, "train": full}
        weights = [speed * bool(one) for speed, one in zip(speeds, possible.values(), strict=True)]
        match random.choices([*possible], weights)[0]:
            case "start":
                version = max(0, current - random.choice([0, 0, 1, 2]))
                if admission.start(unit, version) or admission.start(unit, version := current):
                    running.append(version)
                else:
                    assert running or ready or full, "every process waits"
            case "finish":
                version = running.pop(random.choice([0, -1, -1, -1]))
                if random.random() < fails:
                    admission.abandon(unit, version)
                    continue
                ready.append(version)
                if order != "any":
                    admission.ready(of([version] * unit))
                resident += unit
                assert resident <= (policy.capacity or 0)
            case "claim":
                version = ready.pop(0 if order == "in order" else random.randrange(len(ready)))
                assert not policy.filter().split(of([version] * unit), current_weight_version=current)[1].size, "stale"
                if random.random() < drops:
                    admission.drop(of([version] * unit))
                    resident -= unit
                else:
                    taken.append(version)
            case "train":
                admission.advance(current + 1, of(taken * unit))
                taken, uncommitted = [], uncommitted + policy.batch_size
                if (current + 1) % policy.commit_every == 0:
                    resident, uncommitted = resident - uncommitted, 0


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
