from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    EpochError,
    FullError,
    SpecError,
    TagError,
)
from tunegym.dataplane.predicate import Tag


@pytest.fixture
def small(open_desk: Callable[..., Any]) -> Any:
    return open_desk(tasks=("train",), capacity=3)


@pytest.mark.parametrize("make_room", ["clear", "commit"])
def test_puts_that_wait_are_taken_in_in_their_order(small: Any, make_room: str) -> None:
    small.put(["a", "b", "c"])
    large, little = small.put_or_wait(["d", "e"]), small.put_or_wait(["f"])
    if make_room == "clear":
        small.clear(["a"])
    else:
        small.train(1, 1)
        assert small.settled() == []
        small.commit(1)
    assert small.settled() == []  # the little one would fit, and doesn't pass the large one
    with pytest.raises(FullError, match="2 puts wait before"):
        small.put(["g"])
    small.clear(["b"])
    assert small.settled() == [large]
    small.clear(["c"])
    assert small.settled() == [little]
    assert small.claim(3).sample_ids == ["d", "e", "f"]


def test_a_put_that_waits_is_looked_at_again_when_there_is_room(small: Any) -> None:
    small.put(["a", "b", "c"])
    twice = [small.put_or_wait(["d"]), small.put_or_wait(["d"], fields=("y",)), small.put_or_wait(["e"])]
    small.clear(["a"])
    assert small.settled() == twice[:2]  # the second brings nothing new by then
    small.clear(["d"])
    assert small.settled() == twice[2:]
    again = small.put_or_wait(["f"])
    small.rewind(0)
    assert small.settled() == [again]
    assert isinstance(again.outcome, EpochError)


def test_what_would_never_come_true_is_refused(small: Any, open_desk: Callable[..., Any]) -> None:
    with pytest.raises(SpecError, match="never fit"):
        small.put_or_wait(["a", "b", "c", "d"])
    with pytest.raises(SpecError, match="can never be satisfied"):
        small.wait(4)
    assert small.wait(4, 3)
    grouped = open_desk(group_size=4)
    with pytest.raises(SpecError, match="groups of 4 never make"):
        grouped.wait(3)
    with pytest.raises(SpecError, match="groups of 4 never make"):
        grouped.wait(6)
    assert grouped.wait(6, 4)
    with pytest.raises(SpecError, match="never fits"):
        open_desk(capacity=3, group_size=4)


def test_one_put_serves_all_who_wait_in_their_order(one_task: Any) -> None:
    waiters = [one_task.wait(2), one_task.wait(3, 1), one_task.wait(2)]
    one_task.put(["a"])
    assert one_task.settled() == []  # the second could be served, and doesn't pass the first
    with pytest.raises(ClaimTimeoutError):
        one_task.claim(1)
    one_task.put(list("bcdefg"))
    assert one_task.settled() == waiters
    assert [one.outcome.sample_ids for one in waiters] == [["a", "b"], ["c", "d", "e"], ["f", "g"]]


def test_lines_of_other_fields_take_turns(one_task: Any) -> None:
    """The oldest claim of all lines gets the next samples, so no line starves another."""
    waiters = [one_task.wait(1, fields=fields) for fields in [("x",), ("x",), ("x", "y"), ("x",), ("x", "y")]]
    for number in range(5):
        one_task.put([f"s{number}"], ["x", "y"])
    assert one_task.settled() == waiters


def test_leases_that_end_serve_those_who_wait_even_at_their_last_moment(one_task: Any) -> None:
    one_task.put(["a"])
    one_task.claim(1, lease_s=5.0)
    waiter, late = one_task.wait(1, timeout_s=5.0), one_task.wait(1, timeout_s=5.0)
    one_task.pass_time(5.0)
    assert one_task.settled() == [waiter, late]
    assert waiter.outcome.sample_ids == ["a"]
    assert isinstance(late.outcome, ClaimTimeoutError)
    assert one_task.stats["waiting"] == {"puts": 0, "claims": 0}


# with a predicate -----------------------------------------------------------------------------------

WANTED = Tag("v") == 1


def test_what_is_given_back_comes_first_for_who_waits_by_a_predicate(one_task: Any) -> None:
    one_task.put(list("abc"), tags=[{"v": 1}] * 3)
    grant = one_task.claim(2)
    waiter = one_task.wait(3, where=WANTED)
    one_task.put(["d"], tags=[{"v": 0}])
    one_task.release(grant)
    assert one_task.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["a", "b", "c"]
    waiter = one_task.wait(2, where=WANTED)
    one_task.put(["e"], tags=[{"v": 1}])
    one_task.clear(["e", "d"])
    one_task.put(["f", "g"], tags=[{"v": 0}, {"v": 1}])
    one_task.put(["h"], tags=[{"v": 1}])
    assert waiter.outcome.sample_ids == ["g", "h"]


def test_a_predicate_that_can_not_compare_is_told_to_who_claims_not_to_who_puts(one_task: Any) -> None:
    waiters = [one_task.wait(2, where=Tag("v") > 1, timeout_s=9.0) for _ in range(2)]
    one_task.put(["a"], tags=[{"v": 1}])
    other = one_task.wait(2, where=Tag("v") == "x")
    one_task.put(["b"], tags=[{"v": "x"}])
    assert one_task.settled() == waiters
    assert all(isinstance(one.outcome, TagError) for one in waiters)
    late = one_task.wait(5, where=Tag("v") == "y", timeout_s=9.0)
    with pytest.raises(TagError, match="can't be compared"):
        one_task.claim(1, where=Tag("v") > 1)
    one_task.clear(["b"])
    assert one_task.wait(1, where=Tag("v") > 1, timeout_s=9.0)
    one_task.put(["c"], tags=[{"v": 2}])
    assert len(one_task.settled()) == 1
    one_task.pass_time(9.0)
    assert one_task.settled() == [late]
    assert isinstance(late.outcome, ClaimTimeoutError)
    assert not other.settled
