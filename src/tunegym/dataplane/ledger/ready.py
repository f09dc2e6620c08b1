"""Which samples a task can claim: a queue for each set of fields that claims of it require."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.spans import NOTHING, Span, array_of, cut, join, pick, size_of, span_of

_SLACK = 4096
_NEAR = 1024
_MOST_STAMPS = 2**31 - 1


class ReadyQueue:
    """Rows in the order in which they became ready; what was given back comes first.

    Each row that is ready bears the stamp of the entry that it came with. Whoever leaves loses the stamp, so that an
    entry which is out of date is known by one look, and a row is never there twice.

    Attributes:
        mask: the fields that its claims require, as bits.
        count: how many of its rows are ready, exactly.
        watchers: by name; they hear of rows that join it, before they do, and of those that leave it, afterwards.
    """

    def __init__(self, mask: int, rows: int) -> None:
        self.mask = mask
        self.count = 0
        self.watchers: dict[str, Any] = {}
        self._stamps = np.zeros(rows, dtype=np.int32)
        self._last = 0
        self._parts: deque[tuple[int, Span]] = deque()
        self._length = 0

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        stamps = np.zeros(rows, dtype=np.int32)
        stamps[: len(self._stamps)] = self._stamps
        self._stamps = stamps
        for one in self.watchers.values():
            one.grow(rows)

    @property
    def size(self) -> int:
        """For how many rows it has room."""
        return len(self._stamps)

    def has(self, rows: Span) -> np.ndarray:
        """Which of these are ready."""
        return self._stamps[rows] != 0

    def append(self, rows: Span, first: bool = False) -> None:
        """Rows that have become ready, behind all others, or before them."""
        if not size_of(rows):
            return
        for one in self.watchers.values():
            one.joins(rows, first)
        self._add(rows, first)

    def _add(self, rows: Span, first: bool = False) -> None:
        count = size_of(rows)
        if self._last == _MOST_STAMPS:
            self._tidy()
        self._last += 1
        self._stamps[rows] = self._last
        entry = self._last, rows
        if first:
            self._parts.appendleft(entry)
        else:
            self._parts.append(entry)
        self._length += count
        self.count += count

    def take(self, most: int) -> Span:
        """The first rows, up to ``most``; they leave the queue."""
        found: list[Span] = []
        wanted = most
        while wanted and self.count:
            stamp, rows = self._parts.popleft()
            head, rest = cut(rows, wanted)
            if size_of(rest):
                self._parts.appendleft((stamp, rest))
            self._length -= size_of(head)
            good = pick(head, self._stamps[head] == stamp)
            count = size_of(good)
            if count:
                self._stamps[good] = 0
                self.count -= count
                wanted -= count
                found.append(good)
        taken = found[0] if len(found) == 1 else join(found)
        for one in self.watchers.values():
            one.left(taken)
        return taken

    def leave(self, rows: Span) -> None:
        """These are not ready any more, if they were."""
        count = int(np.count_nonzero(self._stamps[rows]))
        if count:
            self._stamps[rows] = 0
            self.count -= count
            if self._length > 2 * self.count + _SLACK:
                self._tidy()
            for one in self.watchers.values():
                one.left(rows)

    def look(self, most: int, wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The first rows that are wanted, up to ``most``; they stay. No more of the others is looked at than needed."""
        seen: list[tuple[int, Span]] = []
        found: list[np.ndarray] = []
        missing, near = most, _NEAR
        if len(self._parts) > _SLACK:
            self._tidy()
        try:
            while missing > 0 and self._parts:
                stamp, rows = self._parts.popleft()
                head, rest = cut(rows, near)
                near *= 2
                if size_of(rest):
                    self._parts.appendleft((stamp, rest))
                good = pick(head, self._stamps[head] == stamp)
                self._length -= size_of(head) - size_of(good)
                if size_of(good):
                    seen.append((stamp, good))
                    each = array_of(good)
                    found.append(each[wanted(each)])
                    missing -= len(found[-1])
        finally:
            self._parts.extendleft(reversed(seen))
        return np.concatenate(found)[:most] if found else np.zeros(0, dtype=np.int32)

    def order(self) -> np.ndarray:
        """All rows in their order."""
        self._tidy()
        return array_of(self._parts[0][1]) if self._parts else np.zeros(0, dtype=np.int32)

    def mark(self, marks: np.ndarray) -> None:
        """Set what is ready."""
        marks[: len(self._stamps)] |= self._stamps != 0

    def _tidy(self) -> None:
        """One entry, with nothing out of date in it."""
        if len(self._parts) == 1 and self._length == self.count and self._last < _MOST_STAMPS:
            return
        rows = (
            join([pick(some, self._stamps[some] == stamp) for stamp, some in self._parts]) if self._parts else NOTHING
        )
        self._parts = deque()
        self._length = self.count = 0
        if self._last > _MOST_STAMPS // 2:
            self._stamps[:] = 0
            self._last = 0
        rows = rows if isinstance(rows, slice) else span_of(rows)
        if size_of(rows):
            self._add(rows)
