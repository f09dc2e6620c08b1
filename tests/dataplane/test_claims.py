"""Which samples claims get, and what becomes of them, through the client of either plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dataplane.durable import without_hosts

from tunegym.dataplane import BatchMeta, DataPlaneClient, GroupFilter, Tag, claim_groups, connect, errors
from tunegym.dataplane.ledger.partition import MOST_RETAINED
from tunegym.testing.dataplane import P, named, put, tokens

pytestmark = pytest.mark.invariant


@pytest.fixture(params=["memory", "mmap"])
def plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DataPlaneClient]:
    url = "memory://claims" if request.param == "memory" else f"mmap://{tmp_path / 'plane'}"
    with without_hosts(tmp_path), connect(url, linger_s=0.5) as client:
        client.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        yield client


def test_the_order_of_a_claim(plane: DataPlaneClient) -> None:
    """By readiness or by a tag; samples without the tag come last, and a group counts by its first."""
    put(plane, named(6), tags=[{"priority": one} if one is not None else {} for one in (2, 1, None, 3, 1, 3)])

    def claimed(order: Any, count: int, partition_id: str = P) -> tuple[str, ...]:
        meta = plane.claim_meta(partition_id, "train", ["tokens"], count, order=order, timeout_s=0)
        plane.release(meta)
        return meta.sample_ids

    assert claimed(Tag("priority").desc(), 6) == ("s-3", "s-5", "s-0", "s-1", "s-4", "s-2")
    assert claimed(Tag("priority").asc(), 3) == ("s-1", "s-4", "s-0")
    assert claimed(Tag("nothing").asc(), 1) == claimed("oldest", 1)
    put(plane, named(2, 6), tags={"priority": "high"})
    assert claimed("newest", 3) == claimed("newest", 3) == ("s-7", "s-6", "s-5")
    with pytest.raises(errors.TagError, match="no order") as told:
        claimed(Tag("priority").asc(), 1)
    assert set(told.value.sample_ids) == {"s-6", "s-7"}
    plane.register_partition("groups", ["tokens"], ["train"], group_size=2)
    tags = [{"priority": one} for one in (1.5, 0.5, 2.0, 0.0)]
    put(plane, named(4), "groups", group_ids=list("aabb"), tags=tags)
    assert claimed(Tag("priority").desc(), 2, "groups") == ("s-2", "s-3")
    assert claimed("newest", 4, "groups") == ("s-2", "s-3", "s-0", "s-1")


def test_samples_that_no_claim_can_use_are_named_and_given_up(plane: DataPlaneClient) -> None:
    """An error names its samples, also from another process; after ``max_attempts`` a group is dead, whole."""
    plane.register_partition("groups", ["tokens", "reward"], ["train"], max_attempts=2)
    done = put(plane, named(4), "groups", group_ids=list("aabb"), tags=[{"score": one} for one in (1, "x", 2, 3)])
    with pytest.raises(errors.TagError, match="can't be compared") as told:
        plane.claim_meta("groups", "train", ["tokens"], 4, where=Tag("score") > 0, timeout_s=0)
    assert told.value.sample_ids == ("s-1",)
    plane.put_samples("groups", ["s-2"], {"reward": np.zeros(1)})
    with pytest.raises(errors.FieldError) as unread:
        plane.get_samples(done, ["reward"])
    assert unread.value.sample_ids == ("s-0", "s-1", "s-3")
    with pytest.raises(errors.SampleError) as unknown:
        plane.get_samples(replace(done, sample_ids=("s-0", "x", "s-2", "y")))
    assert unknown.value.sample_ids == ("x", "y")
    for gone in ({}, {"dead": 2}):
        claimed = plane.claim_meta("groups", "train", ["tokens"], 2)
        assert claimed.group_ids == ("a", "a")
        plane.release(claimed)
        assert plane.stats()["groups"]["gone"] == gone
    assert plane.claim_meta("groups", "train", ["tokens"], 2).group_ids == ("b", "b")


def test_a_batch_is_refilled_with_groups_that_vary(plane: DataPlaneClient) -> None:
    """Groups without variance are dropped with their reason; if no others come in time, nothing is held."""
    plane.register_partition("groups", ["tokens", "reward"], ["train"], group_size=2)
    rewards, dropped = np.array([0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1.0]), []

    def claim(groups: int, timeout_s: float | None) -> BatchMeta:
        where = plane, "groups", "train", ["tokens", "reward"]
        wanted = GroupFilter("reward")
        return claim_groups(*where, groups, 2, wanted, columns=["reward"], on_drop=dropped.append, timeout_s=timeout_s)

    fields = {"tokens": tokens(named(12)), "reward": rewards}
    plane.put_samples("groups", named(12), fields, group_ids=[name for name in "abcdef" for _ in range(2)])
    found = claim(2, None)
    assert found.group_ids == ("a", "a", "d", "d")
    assert {one for drop in dropped for one in drop.group_ids or ()} == {"b", "c"}
    assert plane.stats()["groups"]["gone"] == {"no variance": 4}
    plane.ack(found)
    with pytest.raises(errors.ClaimTimeoutError):
        claim(2, 0.0)
    stats = plane.stats()["groups"]
    assert (stats["gone"], stats["tasks"]["train"]["leased"]) == ({"no variance": 6, "consumed": 4}, 0)
    assert claim(1, None).group_ids == ("f", "f")


def test_plainly_acked_samples_can_be_read_until_a_put_needs_their_room(plane: DataPlaneClient) -> None:
    plane.register_partition("small", ["tokens"], ["train"], capacity=4)
    put(plane, named(4), "small")
    claimed = plane.claim_meta("small", "train", ["tokens"], 4)
    plane.ack(claimed.slice(0, 3))
    found = plane.stats()["small"]
    assert (found["resident"], found["retained"], found["gone"]) == (1, 3, {"consumed": 3})
    assert not plane.check_consumption_status("small", ["train"])
    plane.ack(claimed.slice(3))
    assert plane.check_consumption_status("small", ["train"])
    assert plane.get_samples(claimed)["tokens"].lengths == [len(row) for row in tokens(claimed.sample_ids)]
    with pytest.raises(errors.SampleError):
        put(plane, claimed.sample_ids[:1], "small")
    put(plane, named(2, 4), "small", timeout_s=0)
    with pytest.raises(errors.SampleError) as told:
        plane.get_samples(claimed)
    assert told.value.sample_ids == claimed.sample_ids[:2]
    assert plane.clear_samples("small", claimed.sample_ids) == 2
    with pytest.raises(errors.SampleError):
        plane.get_samples(claimed.slice(2))
    found = plane.stats()["small"]
    assert (found["resident"], found["retained"], found["gone"]) == (2, 0, {"consumed": 4})


def test_plainly_acked_samples_leave_when_a_put_needs_their_bytes(plane: DataPlaneClient) -> None:
    """The oldest first."""
    row = np.zeros((1, 4096), dtype=np.uint8)
    plane.register_partition("small", ["x"], ["train"], capacity_bytes=4 * 4800, on_full="raise")
    for number in range(7):
        plane.put_samples("small", [f"s{number}"], {"x": row})
        plane.ack(plane.claim_meta("small", "train", ["x"], 1))
    found = plane.stats()["small"]
    assert (found["resident"], found["produced"]) == (0, 7)
    assert 0 < found["retained"] < 5
    with pytest.raises(errors.SampleError):
        plane.get_samples(BatchMeta("small", ("s0",), ("x",)))
    assert plane.get_samples(BatchMeta("small", ("s6",), ("x",)))["x"].dense().shape == (1, 4096)


def test_plainly_acked_samples_without_a_capacity(plane: DataPlaneClient) -> None:
    """They don't fill the disk: the last ones can be read."""
    for begin in range(0, MOST_RETAINED + 4000, 2000):
        put(plane, names := named(2000, begin))
        for task in ("train", "judge"):
            plane.ack(plane.claim_meta(P, task, ["tokens"], 2000))
    assert plane.stats()[P]["retained"] <= MOST_RETAINED
    assert len(plane.get_samples(BatchMeta(P, tuple(names), ("tokens",)))["tokens"]) == 2000


def test_a_rollout_does_not_replace_another(plane: DataPlaneClient) -> None:
    """Such as one of a producer that counts from 0 again; later stages add their fields."""
    producer = plane.producer(P)
    producer.put_samples(producer.start(2), ["a", "b"], {"tokens": [[1, 2], [3]]})
    claimed = plane.claim_meta(P, "train", ["tokens"], 2)
    with pytest.raises(errors.SampleError, match="there already") as told:
        producer.put_samples(producer.start(2), ["c", "b"], {"tokens": [[4], [5]]})
    assert told.value.sample_ids == ("b",)
    assert [row.tolist() for row in plane.get_samples(claimed)["tokens"]] == [[1, 2], [3]]
    producer.put_samples(producer.start(2), ["a", "b"], {"reward": [1.0, 2.0]})
    assert plane.stats()[P]["produced"] == 2


def test_a_batch_that_is_not_filled_is_no_attempt(plane: DataPlaneClient) -> None:
    plane.register_partition("few", ["reward"], ["train"], group_size=2, max_attempts=1)
    plane.put_samples("few", ["a", "b"], {"reward": [0.0, 1.0]}, {"reward": 1.0}, ["g", "g"])
    plane.write_tags("few", ["b"], [{"reward": 0.0}])
    for _ in range(2):
        with pytest.raises(errors.ClaimTimeoutError):
            claim_groups(plane, "few", "train", ["reward"], 3, 2, GroupFilter("reward"), timeout_s=0.1)
    assert plane.stats()["few"]["alive"] == 2


def test_listed_samples(plane: DataPlaneClient) -> None:
    put(plane, named(4), tags=[{"score": at} for at in range(4)])
    claimed = plane.claim_meta(P, "train", ["tokens"], 3)
    plane.release(claimed.slice(0, 1))
    plane.ack(claimed.slice(1, 2), version=1)
    plane.write_tags(P, ["s-0", "s-3"], [{"seen": True}, {}])
    plane.write_tags(P, named(4), {"seen": True, "by": "me"})
    plane.clear_samples(P, ["s-3"])
    found = plane.list_samples(P)
    assert [one["state"]["train"] for one in found] == ["free", "acked", "leased"]
    assert found[0] == {
        "sample_id": "s-0",
        "tags": {"score": 0, "seen": True, "by": "me"},
        "fields": ["tokens"],
        "state": {"train": "free", "judge": "free"},
        "attempts": {"train": 1, "judge": 0},
    }
    for task in ("train", "judge"):
        plane.ack(plane.claim_meta(P, task, ["tokens"], 1, where=Tag("score") == 0))
    assert [one["sample_id"] for one in plane.list_samples(P, Tag("score") < 2)] == ["s-0", "s-1"], "retained, too"
    assert [one["sample_id"] for one in plane.list_samples(P, limit=1)] == ["s-0"]
    with pytest.raises(errors.TagError) as told:
        plane.list_samples(P, Tag("by") > 3)
    assert told.value.sample_ids == ("s-0", "s-1", "s-2")
