"""Claims with a predicate that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import ClaimTimeoutError, TagError
from tunegym.dataplane.predicate import Tag

WANTED = Tag("v") == 1
SIZE = 64


# in a ledger ------------------------------------------------------------------------------------------


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


def test_groups_are_wanted_whole(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(tasks=("train",), group_size=2)
    names = [f"s{number:02d}" for number in range(40)]
    desk.put(names, group_ids=[one[:-1] + str(int(one[-1]) // 2) for one in names], tags=[{"v": 0}] * 40)
    waiter = desk.wait(4, where=WANTED)
    desk.ledger.write_tags("p", ["s00", "s02", "s03"], [{"v": 1}] * 3, 0.0)
    desk.put(["x", "y"], group_ids=["gx", "gx"], tags=[{"v": 1}, {"v": 0}])
    assert desk.settled() == []
    desk.ledger.write_tags("p", ["y"], [{"v": 1}], 0.0)
    assert desk.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["s02", "s03", "x", "y"]
    waiter = desk.wait(4, 3, where=WANTED)
    desk.clear(["s04"])
    desk.ledger.write_tags("p", ["s05"], [{"v": 1}], 0.0)
    assert desk.settled() == []
    desk.ledger.write_tags("p", ["s01"], [{"v": 1}], 0.0)
    assert desk.settled() == [waiter]
    assert sorted(waiter.outcome.sample_ids) == ["s00", "s01", "s05"]


def test_groups_may_begin_while_a_predicate_waits(one_task: Any) -> None:
    waiter = one_task.wait(2, where=WANTED)
    one_task.put(["a", "b", "c"], group_ids=["g", "g", "h"], tags=[{"v": 1}] * 3)
    assert one_task.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["a", "b"]
