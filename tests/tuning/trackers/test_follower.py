"""Nothing is lost, nothing is sent twice, whatever a sink does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tunegym.tuning.stores.reader import JOURNAL
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.trackers import process
from tunegym.tuning.trackers.feed import Feed, Item
from tunegym.tuning.trackers.process import Follower, Message, reason_of


class Memory:
    """A sink that remembers, and fails where ``fails`` says so."""

    def __init__(self, fails: Callable[[str, int], None] = lambda _what, _number: None) -> None:
        self.sent: list[int] = []
        self.opened = 0
        self.closed = 0
        self.fails = fails

    def open(self, head: Mapping[str, Any]) -> set[int]:
        assert head["run"] == "a-token"
        self.opened += 1
        self.fails("open", self.opened)
        return set(self.sent)

    def send(self, items: Sequence[Item]) -> Iterator[int]:
        for item in items:
            self.fails("before", item.number)
            self.sent.append(item.number)
            self.fails("after", item.number)
            yield item.number

    def close(self) -> None:
        self.closed += 1
        self.fails("close", self.closed)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(process, "LONGEST_PAUSE_S", 0.0)


@pytest.fixture
def journal(tmp_path: Path, store: Callable[[], JournalStore], add: Callable) -> Path:
    """Twenty closed trials."""
    opened = store()
    for number in range(20):
        add(opened, float(number))
    opened.close()
    return tmp_path / "e" / JOURNAL


def follow(journal: Path, sink: Any, until: Callable[[list[Message]], bool]) -> tuple[bool, list[Message]]:
    """Follow until what was told is enough, then finish."""
    told: list[Message] = []
    finish = threading.Event()

    def tell(message: Message) -> None:
        told.append(message)
        if until(told):
            finish.set()

    return Follower(Feed(journal), sink, tell, finish).run(), told


def all_sent(told: list[Message]) -> bool:
    return told[-1].get("sent", 0) >= 20


def test_sends_everything_once(journal: Path) -> None:
    sink = Memory()
    complete, told = follow(journal, sink, all_sent)
    assert complete
    assert sink.sent == list(range(1, 21))
    assert sink.closed == 1
    assert told[-1] == {"done": 20, "lacks": 0}


def test_passes_over_what_is_there(journal: Path) -> None:
    sink = Memory()
    sink.sent = [2, 3, 5]
    complete, told = follow(journal, sink, all_sent)
    assert complete
    assert sorted(sink.sent) == list(range(1, 21))
    assert told[-1]["done"] == 20


@pytest.mark.parametrize("error", [OSError("away"), ValueError(), SystemExit(3), RecursionError("deep")])
def test_is_tried_again_after_any_error(journal: Path, quick: None, error: BaseException) -> None:
    left = {("open", 1), ("open", 2), ("before", 4), ("after", 7), ("after", 20), ("close", 9)}

    def fails(what: str, number: int) -> None:
        if (what, number) in left:
            left.remove((what, number))
            raise error

    sink = Memory(fails)
    complete, told = follow(journal, sink, all_sent)
    assert complete
    assert sorted(sink.sent) == list(range(1, 21)), "what got through before the error is not sent again"
    assert sum("away" in message for message in told) == 1, "once per kind"
    assert {"back": True} in told
    assert told[-1] == {"done": 20, "lacks": 0}


@pytest.mark.parametrize("seed", range(5))
def test_a_storm_of_errors(journal: Path, quick: None, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TRIES", 10**6)
    monkeypatch.setattr(process, "BATCH", 7)
    rng = random.Random(seed)

    def fails(what: str, number: int) -> None:
        if what != "close" and rng.random() < 0.3:
            raise OSError(f"error {rng.random()}")

    sink = Memory(fails)
    complete, told = follow(journal, sink, all_sent)
    assert complete
    assert sorted(sink.sent) == list(range(1, 21))
    assert sum("away" in message for message in told) == 1, "numbers in a message make no other kind"


def test_a_trial_that_is_refused_does_not_keep_the_others(journal: Path, quick: None) -> None:
    def fails(what: str, number: int) -> None:
        if what == "before" and number == 6:
            raise ValueError("a value that is refused")

    sink = Memory(fails)
    complete, told = follow(journal, sink, lambda told: told[-1].get("sent", 0) >= 19)
    assert not complete
    assert sorted(sink.sent) == [number for number in range(1, 21) if number != 6]
    assert {"refused": 6, "why": "ValueError: a value that is refused"} in told
    assert told[-1] == {"done": 19, "lacks": 1}


def test_a_dead_sink_is_left_when_asked_to_finish(journal: Path) -> None:
    def fails(what: str, number: int) -> None:
        raise ConnectionRefusedError("no server")

    sink = Memory(fails)
    complete, told = follow(journal, sink, lambda told: "away" in told[-1])
    assert not complete
    assert sink.opened == 2, "one last try, and no more"
    assert "done" not in told[-1]


def test_nothing_to_send_opens_nothing(tmp_path: Path, store: Callable[[], JournalStore]) -> None:
    store().close()
    sink = Memory()
    finish = threading.Event()
    finish.set()
    assert Follower(Feed(tmp_path / "e" / JOURNAL), sink, lambda _: None, finish).run()
    assert sink.opened == 0


def test_the_reason_is_the_first_cause_in_one_line() -> None:
    first = ConnectionRefusedError("[Errno 111]\nrefused by http://user:secret@host/x")
    later = RuntimeError("a long story " * 100)
    later.__cause__ = first
    assert reason_of(later) == "ConnectionRefusedError: [Errno 111] refused by http://host/x"
    assert reason_of(ValueError()) == "ValueError"
    assert len(reason_of(ValueError("x" * 5000))) <= 300
