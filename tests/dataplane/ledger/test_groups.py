from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import ClaimTimeoutError, SampleError
from tunegym.dataplane.predicate import Tag


@pytest.fixture
def pairs(open_desk: Callable[..., Any]) -> Any:
    return open_desk(group_size=2)


def test_a_group_is_claimed_whole_or_not_at_all(pairs: Any) -> None:
    pairs.put(["a", "b", "c"], group_ids=["g", "h", "g"])
    grant = pairs.claim(4, 1)
    assert (grant.sample_ids, grant.groups) == (["a", "c"], ["g", "g"])
    with pytest.raises(ClaimTimeoutError, match="1 are in incomplete groups"):
        pairs.claim(2)
    waiter = pairs.wait(3, 2)
    pairs.put(["d", "e", "f"], group_ids=["h", "i", "i"])
    assert pairs.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["b", "d"]
    assert pairs.claim(3, 1).sample_ids == ["e", "f"]


def test_without_a_size_a_group_is_what_one_put_brings(desk: Any) -> None:
    desk.put(["a", "b", "c"], group_ids=["g", "g", "h"])
    with pytest.raises(SampleError, match="'h' is already there, and came whole"):
        desk.put(["d"], group_ids=["h"])
    assert desk.claim(2).sample_ids == ["a", "b"]
    assert desk.claim(9, 1).sample_ids == ["c"]


def test_groups_and_samples_without_do_not_mix(desk: Any, pairs: Any) -> None:
    with pytest.raises(SampleError, match="has groups, and these samples have none"):
        pairs.put(["a"])
    desk.put(["a"])
    with pytest.raises(SampleError, match="has samples without groups"):
        desk.put(["b"], group_ids=["g"])
    desk.put(["b"])
    desk.clear(["a", "b"])
    waiter = desk.wait(2)
    desk.put(["c", "d"], group_ids=["g", "g"])
    assert desk.settled() == [waiter]


def test_groups_have_their_size_and_a_sample_keeps_its_group(pairs: Any) -> None:
    pairs.put(["a"], group_ids=["g"])
    with pytest.raises(SampleError, match="would have 3 samples, and 2 make it whole"):
        pairs.put(["b", "c"], group_ids=["g", "g"])
    with pytest.raises(SampleError, match="'a' is in group 'g', not 'h'"):
        pairs.put(["a", "b"], ["y"], group_ids=["h", "h"])
    pairs.put(["a", "b"], ["x", "y"], group_ids=["g", "g"])
    pairs.put(["a"], ["y"])
    assert pairs.claim(2, fields=("x", "y")).groups == ["g", "g"]


@pytest.mark.parametrize("how", ["release", "expire", "gone", "rewind"])
@pytest.mark.parametrize("where", [None, Tag("v") == 1])
@pytest.mark.parametrize("groups", [None, list("gghhiijj")])
def test_what_is_given_back_comes_first_in_its_old_order(
    open_desk: Callable[..., Any], how: str, where: Any, groups: list[str] | None
) -> None:
    desk = open_desk(group_size=None if groups is None else 2)
    desk.put(list("abcdefgh"), group_ids=groups, tags=[{"v": 1}] * 8)
    grants = [desk.claim(2, where=where), desk.claim(4, where=where)]
    if how == "release":
        for grant in reversed(grants):
            desk.release(grant)
    elif how == "expire":
        desk.pass_time(61.0)
    elif how == "gone":
        desk.ledger.owner_gone("me", 0.0)
    else:
        for version, grant in enumerate(grants, 2):
            desk.ack(grant, version)
        desk.rewind(1)
    assert desk.claim(8, where=where).sample_ids == list("abcdefgh")
    assert desk.stats["tasks"]["train"]["redelivered"] == 6


@pytest.mark.parametrize("huge", [10**9, 2**62, 2**100])
@pytest.mark.parametrize("where", [None, Tag("v") == 1])
def test_a_claim_of_any_number_gets_what_is_there(open_desk: Callable[..., Any], huge: int, where: Any) -> None:
    for grouped in (False, True):
        desk = open_desk()
        groups = list("gggh") if grouped else None
        desk.put(list("abcd"), group_ids=groups, tags=[{"v": 1}] * 4)
        with pytest.raises(ClaimTimeoutError):
            desk.claim(huge, huge, where=where)
        waiter = desk.wait(huge, huge - 1, where=where)
        grant = desk.claim(huge, 2, where=where, task_name="judge")
        assert grant.sample_ids == list("abcd")
        with pytest.raises(ClaimTimeoutError):
            desk.claim(huge, 1, where=where, task_name="judge")
        desk.ledger.seal("p", 0.0)
        assert desk.settled() == [waiter]
        assert waiter.outcome.sample_ids == list("abcd")


def test_a_name_may_be_used_again_when_its_group_is_gone(pairs: Any) -> None:
    pairs.put(["a", "b"], group_ids=["g", "g"])
    pairs.clear(["a", "b"])
    pairs.put(["c", "d"], group_ids=["g", "g"])
    assert pairs.claim(2).groups == ["g", "g"]
