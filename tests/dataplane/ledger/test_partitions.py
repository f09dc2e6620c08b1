from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import EndOfStreamError, SealedError, SpecError, UnknownPartitionError
from tunegym.dataplane.ledger.requests import Grant
from tunegym.dataplane.model import PartitionSpec


@pytest.mark.parametrize(
    ("name", "value"),
    [("fields", ("x",)), ("tasks", ("train",)), ("capacity", 5), ("group_size", 2), ("on_full", "raise")],
)
def test_registering_something_else_names_what_differs(desk: Any, name: str, value: Any) -> None:
    other = {"fields": ("x", "y"), "tasks": ("train", "judge"), name: value}
    with pytest.raises(SpecError, match=name):
        desk.ledger.register(PartitionSpec("p", **other))


def test_deleting_tells_everybody_who_waits_and_lets_all_bytes_go(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(capacity=2)
    desk.put(["a"])
    desk.put(["b"])
    grant = desk.claim(1)
    claim, put = desk.wait(2), desk.put_or_wait(["c"])
    desk.ledger.delete("p")
    settled = desk.settled()
    assert settled == [claim, put]
    assert all(isinstance(one.outcome, UnknownPartitionError) for one in settled)
    assert sorted(desk.freed()) == [1, 2]
    assert desk.ledger.owners() == set()
    assert desk.ledger.next_deadline() == float("inf")
    with pytest.raises(UnknownPartitionError):
        desk.ack(grant)


def test_a_partition_that_is_made_anew_knows_nothing_of_the_old_one(desk: Any) -> None:
    desk.put(["a"])
    grant = desk.claim(1)
    desk.ledger.delete("p")
    desk.ledger.register(desk.spec)
    desk.put(["a"], shapes={"x": ("<f8", 3)})
    again = desk.claim(1)
    assert again.leases != grant.leases
    with pytest.raises(Exception, match="lost"):
        desk.ack(grant)
    desk.ack(again)


def test_sealed_gives_the_rest_to_those_who_wait_and_then_the_end(desk: Any) -> None:
    desk.put(["a", "b", "c"])
    first, second, third = desk.wait(4), desk.wait(4), desk.wait(5)
    desk.ledger.seal("p", 0.0)
    (served,) = desk.settled()
    assert served is first
    assert served.outcome.sample_ids == ["a", "b", "c"]
    desk.ack(served.outcome)
    assert desk.settled() == [second, third]
    assert isinstance(second.outcome, EndOfStreamError)
    with pytest.raises(EndOfStreamError):
        desk.claim(1)


def test_at_a_sealed_partition_one_waits_for_what_may_be_given_back(desk: Any) -> None:
    desk.put(["a", "b"])
    grant = desk.claim(2)
    waiter = desk.wait(2)
    desk.ledger.seal("p", 0.0)
    assert desk.settled() == []
    desk.ledger.release("p", "train", grant.sample_ids[:1], grant.leases[:1], 0.0)
    assert desk.settled() == []
    desk.ledger.ack("p", "train", grant.sample_ids[1:], grant.leases[1:], None, 0.0)
    assert desk.settled() == [waiter]
    assert isinstance(waiter.outcome, Grant)
    assert waiter.outcome.sample_ids == ["a"]


def test_fields_may_still_be_written_to_a_sealed_partition_and_one_waits_for_them(desk: Any) -> None:
    desk.put(["a"])
    waiter = desk.wait(3, fields=("x", "y"))
    desk.ledger.seal("p", 0.0)
    assert desk.settled() == []
    desk.put(["a"], ["y"])
    assert desk.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["a"]
    with pytest.raises(SealedError):
        desk.put(["b"])
    with pytest.raises(SealedError):
        desk.put(["a", "b"], ["y"])
    assert desk.stats["produced"] == 1


def test_a_put_that_waits_is_refused_when_the_partition_is_sealed(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(capacity=1)
    desk.put(["a"])
    waiter = desk.put_or_wait(["b"])
    desk.ledger.seal("p", 0.0)
    assert desk.settled() == [waiter]
    assert isinstance(waiter.outcome, SealedError)


def test_a_sealed_partition_says_what_is_left_and_can_not_be_claimed(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(group_size=3)
    desk.put(["a", "b"], group_ids=["g", "g"])
    desk.ledger.seal("p", 0.0)
    with pytest.raises(EndOfStreamError, match="2 in incomplete groups"):
        desk.claim(3)
    desk = open_desk()
    desk.put(["a", "b"], group_ids=["g", "g"])
    desk.ledger.seal("p", 0.0)
    with pytest.raises(EndOfStreamError, match="2 in groups larger than 1"):
        desk.claim(1)


def test_an_unregistered_task_or_field_is_named(desk: Any) -> None:
    desk.put(["a"])
    for call in (
        lambda: desk.claim(1, task_name="eval"),
        lambda: desk.ledger.commit("p", "eval", 1, 0.0),
        lambda: desk.ledger.rewind("p", "eval", 1, 0.0),
        lambda: desk.ledger.consumed("p", ["train", "eval"]),
        lambda: desk.ledger.ack("p", "eval", ["a"], [1], None, 0.0),
    ):
        with pytest.raises(SpecError, match="'eval'"):
            call()
    for call in (
        lambda: desk.claim(1, fields=("x", "z")),
        lambda: desk.put(["b"], shapes={"z": ("<i8", 1)}),
        lambda: desk.ledger.locate("p", ["a"], ["z"]),
    ):
        with pytest.raises(SpecError, match="'z'"):
            call()
    assert desk.stats["produced"] == 1
