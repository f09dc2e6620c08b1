"""Where the bytes of each sample's fields are: once for what came together, by field for what came later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from tunegym.dataplane.ledger.blocks import Blocks
from tunegym.dataplane.ledger.ids import Keep
from tunegym.dataplane.ledger.spans import Span, every, size_of

Run: TypeAlias = tuple[int, range | list[int]]
"""Samples that follow one another, in one block: its number, and their places there."""


class Places:
    """The block and the place there of every field of every row.

    A sample's first put is its home: its fields share one entry. A field that is written later has an entry in a column
    of its own, which is there once it is needed.
    """

    def __init__(self, fields: int, rows: int, blocks: Blocks) -> None:
        self._blocks = blocks
        kinds = (np.uint8, np.uint16, np.uint32, np.uint64)
        self.kind: Any = next(kind for kind in kinds if fields <= np.dtype(kind).itemsize * 8)
        self._rows = rows
        self._at_home = np.zeros(rows, dtype=self.kind)
        self._home_blocks = np.zeros(rows, dtype=np.int32)
        self._home_places: np.ndarray = np.zeros(rows, dtype=np.uint16)
        self._apart: list[tuple[np.ndarray, np.ndarray] | None] = [None] * fields

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        self._rows = rows
        self._at_home = longer(self._at_home, rows)
        self._home_blocks, self._home_places = longer(self._home_blocks, rows), longer(self._home_places, rows)
        self._apart = [one and (longer(one[0], rows), longer(one[1], rows)) for one in self._apart]

    def _widen(self, count: int) -> None:
        """Have room for places up to so many."""
        if count > np.iinfo(self._home_places.dtype).max:
            self._home_places = self._home_places.astype(np.uint32)
            self._apart = [one and (one[0], one[1].astype(np.uint32)) for one in self._apart]

    def settle(self, rows: Span, mask: int, number: int) -> None:
        """New samples, with fields of one block, in its order."""
        count = size_of(rows)
        self._widen(count)
        self._at_home[rows] = mask
        self._home_blocks[rows] = number
        self._home_places[rows] = np.arange(count)

    def move(self, rows: Span, fields: Sequence[int], number: int) -> None:
        """Fields of samples are in a block from now on, in its order, and no longer where they were."""
        count = size_of(rows)
        self._widen(count)
        for at in fields:
            self._blocks.forget(self.of(at, rows)[0])
            self._at_home[rows] &= ~self.kind(1 << at)
            apart = self._apart[at]
            if apart is None:
                blocks = np.zeros(self._rows, dtype=np.int32)
                apart = self._apart[at] = blocks, np.zeros(self._rows, dtype=self._home_places.dtype)
            apart[0][rows] = number
            apart[1][rows] = np.arange(count)

    def of(self, field: int, rows: Span) -> tuple[np.ndarray, np.ndarray]:
        """Blocks and places of a field; block 0 is none."""
        home = (self._at_home[rows] & self.kind(1 << field)) != 0
        apart = self._apart[field]
        if every(home):
            return self._home_blocks[rows], self._home_places[rows]
        blocks, places = (0, 0) if apart is None else (apart[0][rows], apart[1][rows])
        return np.where(home, self._home_blocks[rows], blocks), np.where(home, self._home_places[rows], places)

    def free(self, rows: Span) -> None:
        """Nothing of these rows is wanted any more."""
        home = self._at_home[rows]
        first = int(home[0])
        if (home == first).all():
            self._blocks.forget(self._home_blocks[rows], first.bit_count())
        else:
            blocks = self._home_blocks[rows]
            for at in range(len(self._apart)):
                self._blocks.forget(blocks[(home & self.kind(1 << at)) != 0])
        self._at_home[rows] = 0
        for apart in self._apart:
            if apart is not None:
                self._blocks.forget(apart[0][rows])
                apart[0][rows] = 0

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep, rows: int) -> dict[str, Any]:
        """All of it, of so many rows, as plain data and arrays."""
        return {
            "home": [keep(one[:rows]) for one in (self._at_home, self._home_blocks, self._home_places)],
            "apart": [one and [keep(part[:rows]) for part in one] for one in self._apart],
        }

    def restore(self, state: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Take on a state; there must be room for its rows."""
        home = (longer(arrays[at], self._rows) for at in state["home"])
        self._at_home, self._home_blocks, self._home_places = home
        self._apart = [
            one and (longer(arrays[one[0]], self._rows), longer(arrays[one[1]], self._rows)) for one in state["apart"]
        ]


def runs_of(blocks: np.ndarray, places: np.ndarray) -> list[Run]:
    """Samples as runs, as few as there may be."""
    edges = [0, *(np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist(), len(blocks)]
    return [(int(blocks[start]), _as_range(places[start:end])) for start, end in pairwise(edges) if end > start]


def _as_range(places: np.ndarray) -> range | list[int]:
    first, last = int(places[0]), int(places[-1])
    if last - first == len(places) - 1 and every(places[1:] > places[:-1]):
        return range(first, last + 1)
    return places.tolist()


def longer(array: np.ndarray, size: int) -> Any:
    """The same, with zeros behind."""
    fresh = np.zeros(size, dtype=array.dtype)
    fresh[: len(array)] = array
    return fresh
