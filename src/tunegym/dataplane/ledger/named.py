"""Rows of ids that have nothing in common: a table by their hashes, which is searched for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.numbering import RETIRED, UNKNOWN
from tunegym.dataplane.ledger.spans import Span, array_of

_EMPTY, _DELETED, _LATEST = -1, -2, -3
_FIRST = 1 << 10
_FULL = 0.5
_ROOM = 3
_FEW = 12
"""So many ids are looked up one by one faster than at once."""


def hashes_of(ids: Sequence[str]) -> np.ndarray:
    """A hash of each id."""
    return np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids))


class Named:
    """Which row an id has, and which id a row; and which ids had one: the newest ``most`` of these.

    An id's place in the table is that of its hash, or behind it, before the next empty one. There is its row, or, once
    it is retired, a negative number. Both are places in the lists of ids and of hashes: rows count from the start,
    retired ids from the end. Ids whose hashes are equal are told apart by themselves.

    Attributes:
        count: how many ids have rows.
    """

    def __init__(self, most: int) -> None:
        self.count = 0
        self._names: list[str | None] = [None, None]
        self._hashes = np.zeros(2, dtype=np.int64)
        self._rows = 0
        self._most = most
        self._retired = self._next = 0
        self._renew(_FIRST)

    def _renew(self, size: int) -> None:
        self._table = np.full(size, _EMPTY, dtype=np.int32)
        self._view = self._table.data
        self._last = size - 1
        self._filled = 0

    def __bool__(self) -> bool:
        return self._filled > 0

    # looking ------------------------------------------------------------------------------------------

    def find(self, ids: Sequence[str], hashes: np.ndarray) -> np.ndarray:
        """The row of each, ``UNKNOWN`` or ``RETIRED``."""
        found = np.full(len(ids), UNKNOWN, dtype=np.int32)
        places: Any = None
        slots = hashes & self._last
        while len(slots) > _FEW:
            values = self._table[slots]
            sought = np.flatnonzero(values != _EMPTY)
            if not len(sought):
                return found
            values, slots = values[sought], slots[sought] + 1 & self._last
            places = sought if places is None else places[sought]
            same = np.flatnonzero(self._hashes[values] == hashes[places])
            if len(same):
                names, on = self._names, np.ones(len(values), dtype=bool)
                for at, place, value in zip(same.tolist(), places[same].tolist(), values[same].tolist(), strict=True):
                    if names[value] == ids[place]:
                        found[place], on[at] = max(value, RETIRED), False
                places, slots = places[on], slots[on]
        for place, slot in zip(range(len(ids)) if places is None else places.tolist(), slots.tolist(), strict=True):
            found[place] = self._find(ids[place], slot)
        return found

    def _find(self, sample_id: str, slot: int) -> int:
        view, names, last = self._view, self._names, self._last
        while (value := view[slot]) != _EMPTY:
            if names[value] == sample_id:
                return max(value, RETIRED)
            slot = slot + 1 & last
        return UNKNOWN

    def names(self, rows: Span) -> list[Any]:
        """The ids of rows that have some."""
        names = self._names
        return names[rows] if isinstance(rows, slice) else [names[row] for row in rows.tolist()]

    def all(self) -> np.ndarray:
        """The rows that have ids, in their order."""
        return np.sort(self._table[self._table >= 0])

    def retired(self) -> list[Any]:
        """The ids that are remembered, the oldest first."""
        size = self._retired
        oldest = self._next if size == self._most else 0
        return [self._names[_LATEST - (oldest + at) % size] for at in range(size)]

    # changing -----------------------------------------------------------------------------------------

    def put(self, ids: Sequence[str], hashes: np.ndarray, rows: Span, size: int) -> None:
        """New ids, which are distinct; ``size`` is how many rows there may be."""
        if size > self._rows:
            self._widen(size - self._rows)
            self._rows = size
        self._set(rows, ids, hashes)
        self.count += len(ids)
        self._add(array_of(rows), hashes)

    def retire(self, rows: Span) -> None:
        """These rows have no ids any more, which are remembered."""
        each, hashes = array_of(rows), self._hashes[rows].copy()
        names = self.names(rows)
        self._set(rows, [None] * len(names), np.zeros(len(names), dtype=np.int64))
        self.count -= len(names)
        start = max(0, len(names) - self._most)
        if start:
            self._replace(each[:start], hashes[:start])
        for begin, values in self._places(len(names) - start):
            some = slice(start + begin, start + begin + len(values))
            self._set(values, names[some], hashes[some])
            self._replace(each[some], hashes[some], values)

    def remember(self, ids: Sequence[str]) -> None:
        """Ids that are retired already, and were not here, the oldest first."""
        hashes = hashes_of(ids)
        for begin, values in self._places(len(ids)):
            some = slice(begin, begin + len(values))
            self._set(values, ids[some], hashes[some])
            self._add(values, hashes[some])

    def _places(self, count: int) -> list[tuple[int, np.ndarray]]:
        """For so many retired ids; the oldest are forgotten, if there is no room without. From which on, and where."""
        wanted, room = min(self._most, self._retired + count), len(self._names) - self._rows - 2
        if wanted > room:
            self._widen(min(self._most, max(wanted, 2 * room)) - room)
        parts: list[tuple[int, np.ndarray]] = []
        begin = 0
        while begin < count:
            some = min(count - begin, self._most - self._next)
            values = _LATEST - np.arange(self._next, self._next + some, dtype=np.int32)
            old = values[: max(0, self._retired - self._next)]
            if len(old):
                self._replace(old, self._hashes[old])
            self._retired = max(self._retired, self._next + some)
            self._next = (self._next + some) % self._most
            parts.append((begin, values))
            begin += some
        return parts

    def _widen(self, count: int) -> None:
        """Room for more rows, or for more retired ids: that is between them."""
        at, fresh = self._rows, np.zeros(count, dtype=np.int64)
        self._names[at:at] = [None] * count
        self._hashes = np.concatenate([self._hashes[:at], fresh, self._hashes[at:]])

    def _set(self, places: Span, names: Sequence[str | None], hashes: np.ndarray) -> None:
        self._hashes[places] = hashes
        if isinstance(places, slice):
            self._names[places] = names
        elif len(places) and places[0] < 0:  # of retired ids, which go down
            end = len(self._names) + int(places[0]) + 1
            self._names[end - len(places) : end] = names[::-1]
        else:
            for place, name in zip(places.tolist(), names, strict=True):
                self._names[place] = name

    # the table ----------------------------------------------------------------------------------------

    def _add(self, values: np.ndarray, hashes: np.ndarray) -> None:
        if self._filled + len(values) > _FULL * len(self._table):  # make another, with nothing deleted in it
            there = self._table[(self._table != _EMPTY) & (self._table != _DELETED)]
            size = _FIRST
            while size < _ROOM * (len(there) + len(values)):
                size *= 2
            self._renew(size)
            self._insert(there, self._hashes[there])
        self._insert(values, hashes)

    def _insert(self, values: np.ndarray, hashes: np.ndarray) -> None:
        table, last = self._table, self._last
        slots = hashes & last
        while len(values) > _FEW:
            there = table[slots]
            empty = there == _EMPTY
            free = empty | (there == _DELETED)
            table[slots[free]] = values[free]
            got = table[slots] == values  # unless the place was taken, before or by another of these
            self._filled += int(np.count_nonzero(got & empty))
            lost = np.flatnonzero(~got)
            values, slots = values[lost], slots[lost] + 1 & last
        view = self._view
        for value, slot in zip(values.tolist(), slots.tolist(), strict=True):
            while view[slot] not in (_EMPTY, _DELETED):
                slot = slot + 1 & last
            self._filled += view[slot] == _EMPTY
            view[slot] = value

    def _replace(self, values: np.ndarray, hashes: np.ndarray, by: np.ndarray | None = None) -> None:
        """Put other values in the places of these, or nothing."""
        table, last = self._table, self._last
        slots = hashes & last
        for _ in range(len(table)):
            if not len(values):
                return
            here = table[slots] == values
            found = slots[here]
            if by is not None:
                table[found] = by[here]
            else:
                ends = table[found + 1 & last] == _EMPTY  # nothing is behind it that is sought across it
                table[found] = np.where(ends, _EMPTY, _DELETED)
                self._filled -= int(np.count_nonzero(ends))
            rest = np.flatnonzero(~here)
            values, slots, by = values[rest], slots[rest] + 1 & last, by if by is None else by[rest]
        raise AssertionError(f"{len(values)} ids are not where they were put")
