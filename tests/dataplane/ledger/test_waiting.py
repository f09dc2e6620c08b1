from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    EpochError,
    FullError,
    SpecError,
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


def test_a_claim_with_a_predicate_waits_alone(one_task: Any) -> None:
    picky = one_task.wait(1, where=Tag("v") == 9)
    assert one_task.wait(1)
    one_task.put(["a"], tags=[{"v": 1}])
    (served,) = one_task.settled()
    assert served.outcome.sample_ids == ["a"]
    one_task.put(["b"], tags=[{"v": 1}])
    assert one_task.claim(1).sample_ids == ["b"]
    one_task.put(["c"], tags=[{"v": 9}])
    assert one_task.settled() == [picky]


def test_a_put_that_waited_serves_claims_that_wait(small: Any) -> None:
    small.put(["a", "b", "c"])
    grant = small.claim(3)
    claim, put = small.wait(2), small.put_or_wait(["d", "e"])
    small.ack(grant)
    small.clear(["a", "b"])
    assert small.settled() == [put, claim]
    assert claim.outcome.sample_ids == ["d", "e"]


def test_leases_that_end_serve_those_who_wait_even_at_their_last_moment(one_task: Any) -> None:
    one_task.put(["a"])
    one_task.claim(1, lease_s=5.0)
    waiter, late = one_task.wait(1, timeout_s=5.0), one_task.wait(1, timeout_s=5.0)
    one_task.pass_time(5.0)
    assert one_task.settled() == [waiter, late]
    assert waiter.outcome.sample_ids == ["a"]
    assert isinstance(late.outcome, ClaimTimeoutError)
    assert one_task.stats["waiting"] == {"puts": 0, "claims": 0}
