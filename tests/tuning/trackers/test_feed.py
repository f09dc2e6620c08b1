"""The items that a tracker gets from a journal: everything once, in order, the same every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.tuning.reports.live_journals import add_episode, open_store

from tunegym.tuning.model.trial import Episode, Failed
from tunegym.tuning.stores.reader import JOURNAL, Steps
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.trackers.feed import EpisodeMeans, Feed, Item, all_items


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e" / JOURNAL


def test_follows_the_journal(path: Path, store: Callable[[], JournalStore], add: Callable) -> None:
    feed = Feed(path)
    assert (feed.read(), feed.head) == ([], None)
    journal = store()
    first = add(journal, 1.0)
    (item,) = feed.read()
    assert feed.head is not None
    assert (item.number, item.trial, feed.head.run) == (first.number, first, "a-token")
    assert item.opened_at <= item.at
    rest = [add(journal, 2.0), add(journal, Failed("why"))]
    assert [item.trial for item in feed.read(1)] == rest[:1]
    assert [item.trial for item in feed.read()] == rest[1:]
    feed.rewind()
    assert [item.trial for item in feed.read()] == [first, *rest]
    journal.close()


def test_waits_for_whole_lines(path: Path, tmp_path: Path, store: Callable[[], JournalStore], add: Callable) -> None:
    """At every byte offset, and where a resume cuts off a torn line."""
    journal = store()
    add(journal, 1.0)
    journal.close()
    whole = path.read_bytes()
    growing = Feed(tmp_path / "growing")
    seen = []
    for end in range(len(whole) + 1):
        (tmp_path / "growing").write_bytes(whole[:end])
        seen += growing.read()
    assert [item.number for item in seen] == [1]
    path.write_bytes(whole + b'{"record": "close", "num\0\0\n')
    feed = Feed(path)
    assert len(feed.read()) == 1
    journal = store()
    add(journal, 2.0)
    journal.close()
    assert [item.number for item in feed.read()] == [2]


# episodes -------------------------------------------------------------------------------------------------


def group(first: int, ends: Sequence[int], upto: int) -> Steps:
    """Steps with a reward of 1 each, in which episodes end."""
    starts = [first, *(one + 1 for one in ends)]
    over = [
        Episode(0, 0, a, b, b - a + 1, float(b - a + 1), "terminated", {}) for a, b in zip(starts, ends, strict=False)
    ]
    numbers = list(range(first, upto + 1))
    ones = [1.0] * len(numbers)
    return Steps(
        at=float(upto),
        upto=upto,
        begun=1,
        statuses={"measured": len(numbers)},
        worst=1.0,
        largest=1.0,
        numbers=numbers,
        episodes=[1] * len(numbers),
        rewards=ones,
        durations=ones,
        over=over,
    )


def test_every_early_episode_is_an_item(path: Path) -> None:
    """Those that a reset cut short don't count, and a penalty is no measurement."""
    store = open_store(path.parent)
    add_episode(store, 3)
    add_episode(store, 5, failing=2)
    add_episode(store, 4, end="reset")
    store.close()
    first, second = all_items(path)
    assert (first.number, first.values["episode/return"], first.values["episode/length"]) == (3, 3.0, 3.0)
    assert second.number == 8
    means = {"episode/return": -96.0, "episode/length": 5.0, "step/reward": 1.0}
    assert second.values == {**means, "failed": 1.0, "episodes": 2.0}
    assert list(second.values)[-1] == "episodes"


def test_many_episodes_are_thinned_the_same_way_every_time() -> None:
    def items() -> list[Item]:
        made = EpisodeMeans()
        found: list[Item] = []
        for first in range(1, 200_001, 100):
            found += made.add(group(first, range(first + 9, first + 100, 10), first + 99))
        return [*found, *made.flush()]

    found = items()
    assert found == items()
    numbers = [one.number for one in found]
    assert numbers == sorted(set(numbers))
    assert 500 < len(found) < 1000 + 500 * 8
    assert found[-1].values["episodes"] == 20_000
    assert all(one.values["episode/return"] == pytest.approx(10.0) for one in found)


def test_a_system_whose_episodes_never_end_has_rewards() -> None:
    made = EpisodeMeans()
    found = [item for at in range(1, 6) for item in made.add(group(at, [], at))]
    assert [one.number for one in found] == [1, 2, 3, 4, 5]
    assert found[0].values == {"step/reward": 1.0, "failed": 0.0, "episodes": 0.0}


def test_a_resume_changes_no_item(path: Path) -> None:
    """Also when the session before ended within a window."""
    store = open_store(path.parent)
    add_episode(store, 2000)
    add_episode(store, 3)
    store.close()
    before = all_items(path)
    store = open_store(path.parent)
    add_episode(store, 2)
    store.end(0, "over")
    store.close()
    after = Feed(path).read()
    assert after[: len(before)] == before
    assert [one.number for one in after] == sorted({one.number for one in after})
    assert after[-1].values["episodes"] == 3.0
