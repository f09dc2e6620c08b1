"""From the journal to a tracker: what was not sent is tried again, and nothing is sent twice."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

from tunegym.tuning.trackers.points import Point
from tunegym.tuning.trackers.tail import Entry, Tail

BATCH = 100
"""How many trials are handed over at once."""
LOOK_EVERY_S = 0.2
"""How often the journal is looked at."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
"""The pause after a failure, which doubles from one to the next."""
TRIES = 3
"""How often a trial is tried by a tracker that is there and fails on just this one."""

Message = dict[str, Any]
"""What a follower tells: ``sent`` (so far), ``away`` (why), ``back``, ``refused`` (a number, and ``why``), and at the
end ``done`` (how many were sent; ``lacks``: how many were refused)."""
TELL_EVERY_S = 1.0
"""A long batch says how far it is; who is silent for long is taken for dead."""

_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_CHANGING = re.compile(r"0x[0-9a-f]+|[0-9]+")
_LONGEST_REASON = 300


class Sink(Protocol):
    """Where trials go. Anything may raise; the follower then opens it anew before it sends again."""

    def open(self, head: Mapping[str, Any], refused: Set[int]) -> set[int]:
        """Connect; the numbers of the trials that it has already.

        Args:
            head: the journal's first record.
            refused: the numbers of trials that will not be sent, as it has failed on them again and again.
        """
        ...

    def send(self, entries: Sequence[Entry]) -> Iterator[int]:
        """Send trials, and give the number of each as soon as it is there."""
        ...

    def send_points(self, points: Sequence[Point]) -> Iterator[int]:
        """The same for what episodes of a live experiment came to."""
        ...

    def close(self) -> None:
        """Nothing follows: write what is held back."""
        ...


class Follower:
    """Follows a journal and tells one sink of every closed trial, or point of a live one, until it is asked to finish.

    Every connection starts over with the first trial, and those that the sink has are passed over: so a resumed
    session, a sink that was away and a request whose answer was lost are all the same case.

    Args:
        tail: the journal.
        sink: where trials go.
        tell: hears what happens; must not raise.
        finish: once set, what the journal holds is sent, with no second try, and ``run`` returns.
    """

    def __init__(self, tail: Tail, sink: Sink, tell: Callable[[Message], None], finish: threading.Event) -> None:
        self._tail = tail
        self._sink = sink
        self._tell = tell
        self._finish = finish
        self._pending: deque[Entry | Point] = deque()
        self._connected = False
        self._there: set[int] = set()
        self._pause = FIRST_PAUSE_S
        self._said: set[str] = set()
        self._away = False
        self._stuck: tuple[int, int] = (0, 0)
        self._refused: set[int] = set()

    def run(self) -> bool:
        """Follow to the end; whether everything was sent."""
        while True:
            finishing = self._finish.is_set()  # asked first: what was written before is then read after
            if not self._pending:
                self._pending.extend(self._tail.read(BATCH))
            if not self._pending and finishing:
                self._pending.extend(self._tail.rest())
            if not self._pending:
                if finishing:
                    return self._end()
                self._finish.wait(LOOK_EVERY_S)
            elif not self._deliver():
                if finishing:
                    return False
                self._finish.wait(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    def _deliver(self) -> bool:
        """Send what is pending; False if that failed."""
        try:
            if not self._connected:
                self._connect()
                return True  # with the trials from the first one on
            fresh = [entry for entry in self._pending if entry.number not in self._there]
            told = time.monotonic()
            for number in self._send(fresh):
                self._there.add(number)
                if time.monotonic() - told > TELL_EVERY_S:
                    told = time.monotonic()
                    self._tell({"sent": self._sent})
        except (Exception, SystemExit) as error:
            self._failed(error)
            return False
        self._pending.clear()
        self._pause = FIRST_PAUSE_S
        self._tell({"sent": self._sent})
        if self._away:
            self._away = False
            self._tell({"back": True})
        return True

    def _send(self, fresh: Sequence[Entry | Point]) -> Iterator[int]:
        """Trials or points: a journal has one kind."""
        trials = [entry for entry in fresh if isinstance(entry, Entry)]
        points = [entry for entry in fresh if isinstance(entry, Point)]
        return self._sink.send_points(points) if points else self._sink.send(trials)

    @property
    def _sent(self) -> int:
        return len(self._there) - len(self._refused)

    def _connect(self) -> None:
        self._there = self._sink.open(self._tail.head or {}, self._refused) | self._refused
        self._connected = True
        self._pending.clear()
        self._tail.rewind()

    def _failed(self, error: BaseException) -> None:
        """Say so, once per kind of trouble, and connect again before the next try."""
        was_connected, self._connected = self._connected, False
        self._away = True
        reason = _reason(error)
        kind = _CHANGING.sub("#", reason)
        if kind not in self._said:
            self._said.add(kind)
            self._tell({"sent": self._sent})
            self._tell({"away": reason})
        first = next((entry.number for entry in self._pending if entry.number not in self._there), None)
        if was_connected and first is not None:
            self._set_aside(first, reason)

    def _set_aside(self, number: int, reason: str) -> None:
        """A trial that fails again and again, on a tracker that is there, must not keep the others."""
        stuck, times = self._stuck
        self._stuck = number, times + 1 if number == stuck else 1
        if self._stuck[1] >= TRIES:
            self._refused.add(number)
            self._tell({"refused": number, "why": reason})

    def _end(self) -> bool:
        try:
            self._sink.close()
        except (Exception, SystemExit) as error:
            self._failed(error)
            return False
        self._tell({"done": self._sent, "lacks": len(self._refused)})
        return not self._refused


def _reason(error: BaseException) -> str:
    """The first cause in one line: what the layers in between say about it is long and says no more."""
    seen: set[int] = set()
    while (cause := error.__cause__ or error.__context__) is not None and id(error) not in seen:
        seen.add(id(error))
        error = cause
    text = " ".join(str(error).split())
    text = _CREDENTIALS.sub("//", f"{type(error).__name__}: {text}" if text else type(error).__name__)
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."
