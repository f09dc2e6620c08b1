from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import EndOfStreamError, SealedError, SpecError
from tunegym.dataplane.model import PartitionSpec


@pytest.mark.parametrize(
    ("name", "value"),
    [("fields", ("x",)), ("tasks", ("train",)), ("capacity", 5), ("group_size", 2), ("on_full", "raise")],
)
def test_registering_something_else_names_what_differs(desk: Any, name: str, value: Any) -> None:
    other = {"fields": ("x", "y"), "tasks": ("train", "judge"), name: value}
    with pytest.raises(SpecError, match=name):
        desk.ledger.register(PartitionSpec("p", **other))


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
