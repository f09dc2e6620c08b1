from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    EndOfStreamError,
    EpochError,
    FullError,
    SampleError,
    SealedError,
    SpecError,
    UnknownPartitionError,
)
from tunegym.dataplane.ledger import grouping
from tunegym.dataplane.predicate import Tag


@pytest.fixture
def small(open_desk: Callable[..., Any]) -> Any:
    return open_desk(tasks=("train",), capacity=3)


def test_a_full_partition_refuses_who_may_not_wait(small: Any) -> None:
    small.put(["a", "b"])
    with pytest.raises(FullError, match="2 of 3, and 2 more don't fit"):
        small.put(["c", "d"])
    small.put(["c"])
    small.put(["a", "b", "c"], ["y"])
    assert small.stats["resident"] == 3


def test_on_full_raise_never_waits(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(capacity=1, on_full="raise")
    desk.put(["a"])
    with pytest.raises(FullError):
        desk.put_or_wait(["b"])


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


def test_acked_samples_take_room_until_they_are_committed(small: Any) -> None:
    small.put(["a", "b", "c"])
    small.train(3, 7)
    waiter = small.put_or_wait(["d"])
    small.commit(6)
    small.clear(["a"])
    assert small.settled() == []
    assert small.stats["resident"] == 3
    small.commit(7)
    assert small.settled() == [waiter]
    assert small.freed() == [1]


def test_who_waits_for_room_hears_when_its_time_is_over_and_those_behind_go_on(small: Any) -> None:
    small.put(["a", "b"])
    large, little = small.put_or_wait(["c", "d"], timeout_s=1.0), small.put_or_wait(["e"], timeout_s=5.0)
    assert small.ledger.next_deadline() == 1.0
    small.pass_time(1.0)
    assert small.settled() == [large, little]
    assert isinstance(large.outcome, FullError)
    assert little.outcome is None
    assert small.ledger.next_deadline() == float("inf")


def test_who_gives_up_lets_those_behind_go_on(small: Any) -> None:
    small.put(["a", "b"])
    large, little = small.put_or_wait(["c", "d"]), small.put_or_wait(["e"])
    small.ledger.give_up(large, 0.0)
    assert small.settled() == [little]
    small.ledger.give_up(large, 0.0)
    small.ledger.give_up(little, 0.0)
    small.clear(["a"])
    first, second = small.wait(3), small.wait(2)
    small.ledger.give_up(first)
    assert small.settled() == [second]
    assert second.outcome.sample_ids == ["b", "e"]


def test_the_puts_of_an_owner_that_is_gone_wait_no_more(small: Any) -> None:
    small.put(["a", "b"])
    dead, alive = small.put_or_wait(["c", "d"], owner="me"), small.put_or_wait(["e"], owner="you")
    small.ledger.owner_gone("me", 0.0)
    assert small.settled() == [alive]
    assert not dead.settled


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


def test_a_put_that_waits_can_not_use_an_id_that_is_used_up_meanwhile(small: Any) -> None:
    small.put(["a", "b", "c"])
    first, second = small.put_or_wait(["d"]), small.put_or_wait(["d", "e"])
    small.clear(["a"])
    assert small.settled() == [first]
    small.clear(["d"])
    assert small.settled() == [second]
    assert isinstance(second.outcome, SampleError)


def test_what_would_never_come_true_is_refused(small: Any, open_desk: Callable[..., Any]) -> None:
    with pytest.raises(SpecError, match="never fit"):
        small.put_or_wait(["a", "b", "c", "d"])
    with pytest.raises(SpecError, match="never comes true"):
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


def test_a_large_claim_does_not_starve_behind_small_ones(one_task: Any) -> None:
    large = one_task.wait(8)
    small = [one_task.wait(1) for _ in range(3)]
    for number in range(8):
        one_task.put([f"s{number}"])
    assert one_task.settled() == [large]
    one_task.put(["x", "y"])
    assert one_task.settled() == small[:2]


def test_lines_of_other_fields_take_turns(one_task: Any) -> None:
    """Whoever came first in any line gets the next samples, so no line starves another."""
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


@pytest.mark.parametrize("where", [None, Tag("v") == 9])
def test_a_claim_whose_owner_is_gone_waits_no_more_and_takes_nothing(one_task: Any, where: Any) -> None:
    dead, alive = one_task.wait(1, owner="me", where=where), one_task.wait(1, owner="you", where=where)
    assert one_task.ledger.owner_gone("me", 0.0) == 0
    one_task.put(["a"], tags=[{"v": 9}])
    assert one_task.settled() == [alive]
    assert not dead.settled
    assert one_task.ledger.owner_gone("you", 0.0) == 1
    assert one_task.stats["waiting"] == {"puts": 0, "claims": 0}
    assert one_task.counts() == (1, 0, 0)


@pytest.mark.parametrize("where", [None, Tag("v") == 9])
def test_who_waits_at_a_partition_that_is_deleted_hears_so_and_the_next_of_its_name_is_another(
    small: Any, where: Any
) -> None:
    small.put(["a", "b", "c"], tags=[{"v": 1}] * 3)
    small.claim(3)
    claim, put = small.wait(1, where=where), small.put_or_wait(["d"])
    small.ledger.delete("p")
    assert small.settled() == [claim, put]
    for one in (claim, put):
        assert isinstance(one.outcome, UnknownPartitionError)
        assert "'p' was deleted" in str(one.outcome)
    small.ledger.register(small.spec)
    small.ledger.give_up(claim, 0.0)
    small.put(["a"], tags=[{"v": 9}])
    assert small.settled() == []
    assert small.claim(1, where=where).sample_ids == ["a"]


@pytest.mark.parametrize("where", [None, Tag("v") == 9])
def test_who_waits_at_a_partition_that_is_sealed_gets_the_rest_and_then_the_end(one_task: Any, where: Any) -> None:
    waiters = [one_task.wait(3, where=where) for _ in range(2)]
    one_task.put(["a", "b"], tags=[{"v": 9}] * 2)
    one_task.ledger.seal("p", 0.0)
    assert one_task.settled() == waiters[:1]
    assert waiters[0].outcome.sample_ids == ["a", "b"]
    one_task.ack(waiters[0].outcome)
    assert one_task.settled() == waiters[1:]
    assert isinstance(waiters[1].outcome, EndOfStreamError)


def test_a_put_that_waits_at_a_partition_that_is_sealed_is_refused(small: Any) -> None:
    small.put(["a", "b", "c"])
    waiters = [small.put_or_wait(["d"]), small.put_or_wait(["e"])]
    small.ledger.seal("p", 0.0)
    assert small.settled() == waiters
    assert all(isinstance(one.outcome, SealedError) for one in waiters)


def test_groups_that_never_make_a_batch_cost_a_claim_that_waits_nothing(
    open_desk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(tasks=("train",))
    waiter = desk.wait(5)
    looked: list[int] = []
    monkeypatch.setattr(grouping, "counts", lambda sizes, least, most: looked.append(len(sizes)) or [])
    for number in range(20):
        desk.put([f"{number}-a", f"{number}-b"], group_ids=[f"{number}"] * 2)
    assert not looked
    monkeypatch.undo()
    desk.put(["x"], group_ids=["x"])
    assert desk.settled() == [waiter]
    assert len(waiter.outcome.sample_ids) == 5
