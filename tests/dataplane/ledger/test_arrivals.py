"""What is known by heart of new samples is what a look at the columns would tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunegym.dataplane.ledger import arrivals
from tunegym.dataplane.ledger.arrivals import Arrival, Arrivals
from tunegym.dataplane.ledger.snapshot import restore, snapshot


def names(first: int, count: int) -> list[str]:
    return [f"s{number:05d}" for number in range(first, first + count)]


def known(desk: Any) -> Arrivals:
    return desk.ledger._held["p"].partition.rows.arrivals


def arrival(first: int, count: int) -> Arrival:
    return Arrival(slice(first, first + count), 1.0, names(first, count), [*range(count)], {"v": first})


def test_some_of_those_that_came_together() -> None:
    kept = Arrivals()
    kept.add(arrival(10, 5))
    found = kept.of(slice(11, 13))
    assert found == Arrival(slice(11, 13), 1.0, names(11, 2), [1, 2], {"v": 10})
    for other in (slice(9, 11), slice(14, 16), slice(30, 31), np.array([11, 13])):
        assert kept.of(other) is None


@pytest.mark.parametrize("rows", [slice(0, 11), slice(12, 13), slice(14, 99), np.array([3, 12]), np.array([99, 0])])
def test_rows_that_change_are_forgotten(rows: Any) -> None:
    kept = Arrivals()
    kept.add(arrival(10, 5))
    kept.add(arrival(200, 5))
    kept.forget(rows)
    assert kept.of(slice(10, 11)) is None
    assert kept.of(slice(200, 205)) is not None


def test_only_the_newest_are_known() -> None:
    kept = Arrivals()
    for first in range(0, 100 * arrivals._MOST, 100):
        kept.add(arrival(first, 1))
    assert kept.of(slice(0, 1)) is not None
    kept.add(arrival(10**6, 1))
    assert kept.of(slice(0, 1)) is None
    kept.add(arrival(2 * 10**6, arrivals._MOST_SAMPLES))
    assert (len(kept._known), kept._samples) == (1, arrivals._MOST_SAMPLES)
    kept.add(arrival(3 * 10**6, arrivals._MOST_SAMPLES + 1))
    assert len(kept._known) == 1


CHANGES = {
    "none": lambda desk: None,
    "tags of some": lambda desk: desk.ledger.write_tags("p", names(2, 1), [{"v": 9}], 0.0),
    "a field with tags": lambda desk: desk.put(names(1, 2), ["y"], tags={"w": 1}),
    "a field with lengths": lambda desk: desk.put(names(1, 2), ["y"], lengths=[7, 8], lengths_given=True),
    "some are cleared, others take their place": lambda desk: (
        desk.clear(names(1, 3)),
        desk.put(names(50, 3), tags={"v": 5}, lengths=[1, 2, 3]),
    ),
    "all are consumed, others take their place": lambda desk: (
        desk.train(10),
        desk.train(10, task="judge"),
        desk.put(names(50, 10), tags=[{"v": at} for at in range(10)]),
    ),
    "new ones among others": lambda desk: desk.put([*names(8, 2), *names(50, 3)], ["x", "y"], tags={"v": 4}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tags", [None, {}, {"v": 1, "who": "me"}, [{"v": at} for at in range(10)]])
@pytest.mark.parametrize("lengths", [None, list(range(10))])
def test_a_claim_tells_what_a_look_would(desk: Any, change: str, tags: Any, lengths: Any) -> None:
    desk.put(names(0, 10), tags=tags, lengths=lengths)
    CHANGES[change](desk)
    blank = restore(snapshot(desk.ledger))  # knows nothing by heart
    for most in (3, 4, 2):
        found = desk.claim(most, 1)
        looked_up = blank.claim(desk.wanted(most, 1), desk.now)
        assert found.plain() == looked_up.plain() | {"tags": found.tags}
        assert found.each_tags() == looked_up.each_tags()
    assert desk.ledger.stats(5.0) == blank.stats(5.0)


def test_who_changes_what_a_claim_gave_changes_nothing_else(desk: Any) -> None:
    desk.put(names(0, 4), tags={"v": 1}, lengths=[1, 2, 3, 4])
    first = desk.claim(4)
    first.sample_ids.clear()
    first.lengths.clear()
    first.tags["v"] = 2
    second = desk.claim(4, task_name="judge")
    assert (second.sample_ids, second.lengths, second.tags) == (names(0, 4), [1, 2, 3, 4], {"v": 1})
    assert known(desk).of(slice(0, 4)) is not None
