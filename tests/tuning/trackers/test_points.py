from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.reports.live_journals import add_episode, open_store

from tunegym.tuning.stores.reader import JOURNAL
from tunegym.tuning.trackers.following import Follower
from tunegym.tuning.trackers.points import Point, Points
from tunegym.tuning.trackers.process import _count
from tunegym.tuning.trackers.tail import Tail


def read(path: Path) -> list[Any]:
    tail = Tail(path)
    found: list[Any] = []
    while some := tail.read(10):
        found += some
    return [*found, *tail.rest()]


def record(first: int, ends: Sequence[int], upto: int) -> dict[str, Any]:
    """A record of steps with a reward of 1 each, in which episodes end."""
    starts = [first, *(one + 1 for one in ends)]
    over = [[0, 0, a, b, b - a + 1, float(b - a + 1), "terminated", {}] for a, b in zip(starts, ends, strict=False)]
    count = upto - first + 1
    return {"count": count, "upto": upto, "reward": [1.0] * count, "at": float(upto), "episodes": over}


def test_every_early_episode_is_a_point(tmp_path: Path) -> None:
    store = open_store(tmp_path / "e")
    add_episode(store, 3)
    add_episode(store, 5, failing=2)
    add_episode(store, 4, end="reset")
    store.close()
    first, second = read(tmp_path / "e" / JOURNAL)
    assert (first.number, first.values["episode/return"], first.values["episode/length"]) == (3, 3.0, 3.0)
    assert second.number == 8  # the third was cut short, and counts for nothing
    assert second.values == {
        "episode/return": -96.0,
        "episode/length": 5.0,
        "step/reward": 1.0,  # a penalty is no measurement
        "failed": 1.0,
        "episodes": 2.0,
    }
    assert list(second.values)[-1] == "episodes"


def test_many_are_thinned_the_same_way_every_time() -> None:
    def points() -> list[Point]:
        made = Points()
        found: list[Point] = []
        for first in range(1, 200_001, 100):
            found += made.add(record(first, range(first + 9, first + 100, 10), first + 99))
        return [*found, *made.flush()]

    found = points()
    assert found == points()
    numbers = [one.number for one in found]
    assert numbers == sorted(set(numbers))
    assert 500 < len(found) < 1000 + 500 * 8
    assert found[-1].values["episodes"] == 20_000
    assert all(one.values["episode/return"] == pytest.approx(10.0) for one in found)


def test_a_system_whose_episodes_never_end_has_rewards() -> None:
    made = Points()
    found = [point for at in range(1, 6) for point in made.add(record(at, [], at))]
    assert [one.number for one in found] == [1, 2, 3, 4, 5]
    assert found[0].values == {"step/reward": 1.0, "failed": 0.0, "episodes": 0.0}


class Kept:
    def __init__(self) -> None:
        self.points: list[Point] = []
        self.closed = False

    def open(self, head: Any, refused: Any) -> set[int]:
        assert head["live"]
        return {point.number for point in self.points}

    def send(self, entries: Sequence[Any]) -> Iterator[int]:
        assert not entries
        return iter(())

    def send_points(self, points: Sequence[Point]) -> Iterator[int]:
        for point in points:
            self.points.append(point)
            yield point.number

    def close(self) -> None:
        self.closed = True


def follow(folder: Path, sink: Kept) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    finish = threading.Event()
    finish.set()
    assert Follower(Tail(folder / JOURNAL), sink, told.append, finish).run()
    return told


def test_a_resume_sends_the_rest_and_nothing_twice(tmp_path: Path) -> None:
    sink = Kept()
    store = open_store(tmp_path / "e")
    add_episode(store, 2000)
    add_episode(store, 3)
    store.flush()  # and no end: it is interrupted within a window
    store.close()
    assert follow(tmp_path / "e", sink)[-1] == {"done": len(sink.points), "lacks": 0}
    before = list(sink.points)
    store = open_store(tmp_path / "e")
    add_episode(store, 2)
    store.end(0, "over")
    store.close()
    follow(tmp_path / "e", sink)
    assert sink.points[: len(before)] == before
    numbers = [one.number for one in sink.points]
    assert numbers == sorted(set(numbers))
    assert sink.points[-1].values["episodes"] == 3.0
    assert sink.closed
    assert _count(tmp_path / "e" / JOURNAL) == len(sink.points)
