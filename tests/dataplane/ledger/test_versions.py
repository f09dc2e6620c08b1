from __future__ import annotations

from typing import Any

import pytest

from tunegym.dataplane.errors import EpochError, LeaseLostError, SampleError, SpecError

pytestmark = pytest.mark.invariant  # P15


def versions(*numbers: int) -> list[dict[str, int]]:
    return [{"weight_version": number} for number in numbers]


def test_a_rewind_gives_back_exactly_what_was_trained_past_it(one_task: Any) -> None:
    one_task.put(list("abcdefgh"))
    for version in (1, 2, 3):
        one_task.train(2, version)
    one_task.commit(1)
    with pytest.raises(SpecError, match="rewind to 1 or later"):
        one_task.rewind(0)
    assert one_task.rewind(2) == (2, 0)
    assert one_task.counts() == (4, 0, 2)
    assert one_task.rewind(1) == (2, 0)
    assert one_task.claim(6).sample_ids == list("cdefgh")
    assert one_task.stats["tasks"]["train"]["redelivered"] == 4
    assert one_task.rewind(1) == (0, 0)


def test_given_back_samples_come_in_the_order_of_their_versions(one_task: Any) -> None:
    one_task.put(list("abcd"))
    grant = one_task.claim(4)
    for place, version in ((3, 2), (2, 3), (0, 1), (1, 4)):
        one_task.ledger.ack(
            "p", "train", grant.sample_ids[place : place + 1], grant.leases[place : place + 1], version, 0
        )
    one_task.rewind(0)
    assert one_task.claim(4).sample_ids == ["a", "d", "c", "b"]


def test_a_rewind_drops_what_vanished_weights_produced_and_begins_an_epoch(one_task: Any) -> None:
    one_task.put(list("abcdef"), tags=versions(1, 1, 2, 2, 3, 3))
    one_task.train(1, 2)
    leased = one_task.claim(4)
    one_task.ledger.ack("p", "train", leased.sample_ids[:2], leased.leases[:2], 3, 0.0)
    # a: acked into 2. b, c: into 3. d, e: claimed. f: free.
    assert one_task.rewind(1) == (2, 4)
    assert one_task.stats["gone"] == {"orphaned": 4}
    assert one_task.ledger.epoch("p") == 1
    with pytest.raises(LeaseLostError):
        one_task.ledger.ack("p", "train", leased.sample_ids[2:], leased.leases[2:], 2, 0.0)
    with pytest.raises(EpochError):
        one_task.put(["z"])
    one_task.put(["z"], epoch=1, tags=versions(1))
    assert one_task.claim(3).sample_ids == ["a", "b", "z"]


def test_versions_that_are_no_numbers_are_no_orphans(one_task: Any) -> None:
    one_task.put(list("abcd"), tags=[{"weight_version": value} for value in (1, "two", None, 9)])
    assert one_task.rewind(1) == (0, 1)
    assert one_task.claim(3).sample_ids == ["a", "b", "c"]


def test_cleared_samples_come_back_in_a_rewind_as_long_as_no_commit_covers_them(desk: Any) -> None:
    desk.put(["a", "b"], ["x", "y"], tags=[{"v": 1}, {"v": 2}], lengths=[4, 5])
    desk.train(2, 1)
    assert desk.clear(["a", "b"], "stale") == 2
    assert desk.stats["gone"] == {"stale": 2}
    assert (desk.stats["alive"], desk.stats["resident"]) == (0, 2)
    assert desk.freed() == []
    with pytest.raises(SampleError, match="was consumed or cleared"):
        desk.ledger.locate("p", ["a"], ["x"])
    with pytest.raises(SampleError):
        desk.put(["a"], ["y"])
    assert desk.clear(["a"]) == 0
    assert desk.rewind(0) == (2, 0)
    assert desk.stats["gone"] == {}
    grant = desk.claim(2)
    assert (grant.sample_ids, grant.each_tags(), grant.lengths) == (["a", "b"], [{"v": 1}, {"v": 2}], [4, 5])
    assert desk.claim(2, task_name="judge").sample_ids == ["a", "b"]
    assert desk.places(["b"], "y") == [[(1, 1, 2)]]


def test_what_one_task_orphaned_no_rewind_of_another_brings_back(desk: Any) -> None:
    """Those weights are gone: a trainer would find samples of weights that are still to come."""
    desk.put(list("abc"), tags=versions(1, 2, 2))
    desk.train(3, 1_000_001, "judge")
    desk.clear(["b"], "stale")
    assert desk.rewind(1, "train") == (0, 1)
    assert desk.stats["gone"] == {"orphaned": 2}  # b is of those weights, too
    assert desk.stats["resident"] == 3
    assert desk.rewind(1_000_000, "judge") == (1, 0)
    assert desk.stats["gone"] == {"orphaned": 2}
    assert (desk.stats["resident"], desk.counts("judge"), desk.counts("train")) == (1, (1, 0, 0), (1, 0, 0))
    assert desk.claim(1).sample_ids == ["a"]
