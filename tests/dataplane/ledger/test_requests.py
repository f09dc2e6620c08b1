"""What travels in short: leases that follow one another, and tags that all samples have."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tunegym.dataplane.errors import TagError
from tunegym.dataplane.ledger.requests import tags_of
from tunegym.dataplane.ledger.snapshot import restore, snapshot

KINDS: list[Any] = [1, 0, True, False, 1.0, -0.0, 0.0, "text", "", None]


def test_each_sample_has_tags_of_its_own() -> None:
    each = tags_of({"v": 1}, 3)
    assert each == [{"v": 1}] * 3
    each[0]["v"] = 2
    assert each == [{"v": 2}, {"v": 1}, {"v": 1}]
    assert tags_of([{"v": 1}, {}], 2) == [{"v": 1}, {}]
    assert tags_of(None, 2) is None


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(KINDS, 2), *zip(KINDS, KINDS, strict=True)])
def test_tags_for_all_are_those_of_each(one_task: Any, one: Any, other: Any) -> None:
    one_task.put(["a", "b"], tags={"v": one})
    one_task.put(["c", "d"], tags=[{"v": other}] * 2)
    one_task.ledger = restore(snapshot(one_task.ledger))
    found = one_task.claim(4).each_tags()
    assert [repr(tags["v"]) for tags in found] == [repr(one)] * 2 + [repr(other)] * 2


def test_tags_for_all_besides_others(one_task: Any) -> None:
    one_task.put(["a", "b"], tags={"v": 1, "who": "me"})
    one_task.put(["a"], ["y"], tags={"v": 2})
    one_task.put(["c"], tags={})
    assert one_task.claim(3).each_tags() == [{"v": 2, "who": "me"}, {"v": 1, "who": "me"}, {}]
    one_task.put(["d", "e"])
    assert one_task.claim(2).tags is None


@pytest.mark.parametrize("tags", [{"v": [1]}, {"v": 2**63}, {1: 1}])
def test_tags_for_all_are_checked(one_task: Any, tags: Any) -> None:
    before = snapshot(one_task.ledger)
    with pytest.raises(TagError):
        one_task.put(["a"], tags=tags)
    assert snapshot(one_task.ledger) == before
