"""The follower sends every item, and none twice, whatever a sink does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tunegym.tuning.model.head import Head
from tunegym.tuning.stores.reader import JOURNAL
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.trackers import process
from tunegym.tuning.trackers.feed import Feed, Item
from tunegym.tuning.trackers.process import JournalFollower, Message, reason_of

Fails = Callable[[str, int], None]
ALL = list(range(1, 21))


class Memory:
    """A sink that remembers, and fails where ``fails`` says so."""

    def __init__(self, fails: Fails = lambda _what, _number: None, sent: Sequence[int] = ()) -> None:
        self.sent = list(sent)
        self.opened = 0
        self.closed = 0
        self.fails = fails

    def open(self, head: Head) -> set[int]:
        assert head.run == "a-token"
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
def journal(tmp_path: Path, store: Callable[[], JournalStore], add: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty closed trials, and no pauses after failures."""
    monkeypatch.setattr(process, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(process, "LONGEST_PAUSE_S", 0.0)
    opened = store()
    for number in ALL:
        add(opened, float(number))
    opened.close()
    return tmp_path / "e" / JOURNAL


def follow(journal: Path, sink: Memory, until: Callable[[Message], bool]) -> tuple[bool, list[Message]]:
    """Follow until a message is told, then finish."""
    told: list[Message] = []
    finish = threading.Event()

    def tell(message: Message) -> None:
        told.append(message)
        if until(message):
            finish.set()

    return JournalFollower(Feed(journal), sink, tell, finish).run(), told


def all_sent(message: Message) -> bool:
    return message["sent"] >= 20


def warnings(told: list[Message]) -> list[str]:
    return [message["warning"] for message in told if "warning" in message]


@pytest.mark.parametrize("there", [(), (2, 3, 5)])
def test_sends_everything_once(journal: Path, there: tuple[int, ...]) -> None:
    sink = Memory(sent=there)
    complete, told = follow(journal, sink, all_sent)
    assert complete
    assert sorted(sink.sent) == ALL
    assert sink.closed == 1
    assert told[-1] == {"sent": 20, "complete": True}


@pytest.mark.parametrize("seed", range(8))
def test_a_storm_of_errors(journal: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that got through before an error are not sent again; each kind of error is a warning once."""
    monkeypatch.setattr(process, "TRIES", 10**6)
    monkeypatch.setattr(process, "BATCH", 7)
    rng = random.Random(seed)
    errors = [OSError, ValueError, SystemExit, RecursionError]

    def fails(what: str, number: int) -> None:
        if what != "close" and rng.random() < 0.3:
            raise rng.choice(errors)(f"error {rng.random()}")

    sink = Memory(fails)
    complete, told = follow(journal, sink, all_sent)
    assert complete
    assert sorted(sink.sent) == ALL
    assert 1 <= len(warnings(told)) <= len(errors)
    assert any(message.get("info") == "is back" for message in told)
    assert told[-1] == {"sent": 20, "complete": True}


def test_a_refused_trial_does_not_keep_the_others(journal: Path) -> None:
    def fails(what: str, number: int) -> None:
        if what == "before" and number == 6:
            raise ValueError("a value that is refused")

    sink = Memory(fails)
    complete, told = follow(journal, sink, lambda message: message["sent"] >= 19)
    assert not complete
    assert sorted(sink.sent) == [number for number in ALL if number != 6]
    assert "does not take trial 6: ValueError: a value that is refused" in warnings(told)
    assert told[-1] == {"sent": 19, "complete": False}


def test_a_dead_sink_gets_one_last_try(journal: Path) -> None:
    def fails(what: str, number: int) -> None:
        raise ConnectionRefusedError("no server")

    sink = Memory(fails)
    complete, told = follow(journal, sink, lambda message: "warning" in message)
    assert not complete
    assert sink.opened == 2
    assert "complete" not in told[-1]


def test_nothing_to_send_opens_nothing(tmp_path: Path, store: Callable[[], JournalStore]) -> None:
    store().close()
    sink = Memory()
    finish = threading.Event()
    finish.set()
    assert JournalFollower(Feed(tmp_path / "e" / JOURNAL), sink, lambda _: None, finish).run()
    assert sink.opened == 0


def test_the_reason_is_the_first_cause_in_one_line() -> None:
    later = RuntimeError("a long story " * 100)
    later.__cause__ = ConnectionRefusedError("[Errno 111]\nrefused by http://user:secret@host/x")
    assert reason_of(later) == "ConnectionRefusedError: [Errno 111] refused by http://user:***@host/x"
    assert reason_of(ValueError()) == "ValueError"
    assert len(reason_of(ValueError("x" * 5000))) <= 300
