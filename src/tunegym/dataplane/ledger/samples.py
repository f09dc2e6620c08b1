"""The samples of a partition as a table: one row per sample, one array per column.

Every operation of the ledger is on a batch, so every change is one numpy assignment at an array of rows. A row is
used again when its sample is gone. Ids are in a dict, tags in typed columns, so that a predicate is one comparison.
A sample's bytes are in blocks, one per put: the table knows the block and the place in it of every field.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Any, TypeAlias

import numpy as np

from tunegym.dataplane.errors import TagError
from tunegym.dataplane.model import TagColumn

FREE, LEASED, ACKED, DONE, COVERED = 0, 1, 2, 3, 4
"""State of a sample for a task: to be claimed, claimed, acked into a version that is not committed, acked without a
version, committed. Acked is at least ``ACKED``; what no rewind gives back is at least ``DONE``."""
STATES = ("free", "leased", "acked", "acked", "committed")

UNKNOWN, RETIRED = -1, -2
"""Instead of a row: an id that was never used, and one whose sample is gone."""

REMEMBERED = 1_000_000
"""An id is used once: at least so many ids of samples that are gone are remembered exactly, the newest."""

_FIRST = 1024
_MOST_TAGS = 256
_TAG_TYPES: dict[type, Any] = {int: np.int64, float: np.float64, bool: np.bool_}


class Samples:
    """The table.

    Attributes:
        ids: the row of each id, or ``RETIRED``.
        names: the id of each row.
        resident: whether a row is in use.
        alive: whether its sample was not cleared.
        produced: its fields, as bits.
        lengths: its length; -1 if unknown.
        born: when it was put.
        arrival: its number in the order of the puts; ``arrived`` have come so far.
        group: its group; 0 for none.
        states, leases: by task; a lease is 0 unless the state is ``LEASED``.
        attempts: by task, the number of claims that ended without an ack.
        block, place: by field, where its bytes are; block 0 is none.
    """

    COLUMNS = (
        "resident", "alive", "produced", "lengths", "born", "arrival", "group", "states", "leases",
        "attempts", "block", "place",
    )  # fmt: skip

    def __init__(self, fields: int, tasks: int, freed: list[Mapping[str, Any]]) -> None:
        self.size = size = _FIRST
        self.ids: dict[str, int] = {}
        self.retired: deque[str] = deque()
        self.names = np.zeros(size, dtype=object)
        self.resident = np.zeros(size, dtype=bool)
        self.alive = np.zeros(size, dtype=bool)
        self.produced = np.zeros(size, dtype=np.uint64)
        self.lengths = np.zeros(size, dtype=np.int32)
        self.born = np.zeros(size, dtype=np.float64)
        self.arrival = np.zeros(size, dtype=np.int64)
        self.group = np.zeros(size, dtype=np.int32)
        self.states = np.zeros((tasks, size), dtype=np.uint8)
        self.leases = np.zeros((tasks, size), dtype=np.int64)
        self.attempts = np.zeros((tasks, size), dtype=np.int32)
        self.block = np.zeros((fields, size), dtype=np.int64)
        self.place = np.zeros((fields, size), dtype=np.int32)
        self.tags = TagColumns(size)
        self.blocks = Blocks(freed)
        self.arrived = 0
        self._unused = list(range(size - 1, -1, -1))  # a stack

    @property
    def resident_count(self) -> int:
        """The number of rows in use."""
        return self.size - len(self._unused)

    def find(self, ids: Iterable[str]) -> np.ndarray:
        """The row of each id, ``UNKNOWN`` or ``RETIRED``."""
        return np.array(list(map(self.ids.get, ids, repeat(UNKNOWN))), dtype=np.int64)

    def have(self, rows: np.ndarray, mask: int) -> np.ndarray:
        """Which samples have all these fields."""
        bits = np.uint64(mask)
        return (self.produced[rows] & bits) == bits

    def add(self, ids: Sequence[str], now: float) -> np.ndarray:
        """New samples, without any fields yet. Returns their rows."""
        count = len(ids)
        self.reserve(self.resident_count + count)
        rows = np.array([self._unused.pop() for _ in ids], dtype=np.int64)
        self.ids.update(zip(ids, rows.tolist(), strict=True))
        self.names[rows] = ids
        self.resident[rows] = self.alive[rows] = True
        self.lengths[rows] = -1
        self.born[rows] = now
        self.arrival[rows] = np.arange(self.arrived, self.arrived + count)
        self.arrived += count
        self.states[:, rows] = FREE
        self.attempts[:, rows] = 0
        return rows

    def write(self, rows: np.ndarray, fields: Sequence[int], number: int) -> None:
        """Fields of samples are in this block from now on, in the order of the rows."""
        places = np.arange(len(rows))
        for field in fields:
            self.blocks.release(self.block[field, rows])
            self.block[field, rows] = number
            self.place[field, rows] = places
            self.produced[rows] |= np.uint64(1 << field)

    def live(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The samples that need a block, in the order of their places in it, these places, and the fields."""
        cells = self.block == number
        rows = np.flatnonzero(cells.any(axis=0))
        places = np.where(cells[:, rows], self.place[:, rows], 0).max(axis=0)  # one place for all fields of a put
        order = np.argsort(places)
        return rows[order], places[order], np.flatnonzero(cells.any(axis=1))

    def move(self, number: int, count: int, location: Mapping[str, Any], nbytes: int) -> None:
        """The first samples that need a block are copied to another, in the same order."""
        rows = self.live(number)[0][:count]
        cells = self.block[:, rows] == number
        self.place[:, rows] = np.where(cells, np.arange(len(rows)), self.place[:, rows])
        copy = self.blocks.add(location, nbytes, int(np.count_nonzero(cells)))
        self.blocks.release(self.block[:, rows][cells])
        self.block[:, rows] = np.where(cells, copy, self.block[:, rows])

    def remove(self, rows: np.ndarray) -> None:
        """Forget samples: their bytes, tags and rows. Their ids are retired."""
        self.blocks.release(self.block[:, rows].ravel())
        self.block[:, rows] = 0
        self.produced[rows] = 0
        self.group[rows] = 0
        self.tags.clear(rows)
        names = self.names[rows].tolist()
        self.names[rows] = None
        self.ids.update(zip(names, repeat(RETIRED)))
        self.retired.extend(names)
        while len(self.retired) > REMEMBERED:
            del self.ids[self.retired.popleft()]
        self.resident[rows] = False
        self._unused += rows[::-1].tolist()

    def locate(self, rows: np.ndarray, fields: Mapping[str, int]) -> dict[str, Any]:
        """Where fields of samples are, as plain data: ``{"fields": {name: runs}, "locations": [...]}``.

        A run is ``[location, start, stop]`` or ``[location, places]``: samples that follow one another in one block,
        with the location as an index into ``locations``.
        """
        locations: dict[int, int] = {}
        found = {name: _runs(self.block[at, rows], self.place[at, rows], locations) for name, at in fields.items()}
        return {"fields": found, "locations": [self.blocks.known[number].location for number in locations]}

    def reserve(self, rows: int) -> None:
        """Make room for so many samples."""
        if rows <= self.size:
            return
        old = self.size
        while self.size < rows:
            self.size *= 2
        for name in ("names", *self.COLUMNS):
            setattr(self, name, widened(getattr(self, name), self.size))
        self.tags.grow(self.size)
        self._unused = [*range(self.size - 1, old - 1, -1), *self._unused]

    def restore(self, names: Sequence[str], retired: Sequence[str]) -> None:
        """Derive everything else from the columns and the ids of the resident rows, in the order of the rows."""
        rows = np.flatnonzero(self.resident)
        self.names[rows] = names
        self.ids = dict.fromkeys(retired, RETIRED)
        self.ids.update(zip(names, rows.tolist(), strict=True))
        self.retired = deque(retired)
        self._unused = np.flatnonzero(~self.resident)[::-1].tolist()


def widened(array: np.ndarray, size: int) -> np.ndarray:
    """The same columns with room for ``size`` rows."""
    wide = np.zeros((*array.shape[:-1], size), dtype=array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide


def _runs(block: np.ndarray, place: np.ndarray, locations: dict[int, int]) -> list[list[Any]]:
    """Samples as runs of one block each; ``locations`` numbers the blocks."""
    edges = [0, *(np.flatnonzero(block[1:] != block[:-1]) + 1).tolist(), len(block)]
    runs: list[list[Any]] = []
    for start, end in pairwise(edges):
        if end > start:
            at = locations.setdefault(int(block[start]), len(locations))
            some = place[start:end]
            first = int(some[0])
            in_order = bool((some == np.arange(first, first + len(some))).all())
            runs.append([at, first, first + len(some)] if in_order else [at, some.tolist()])
    return runs


@dataclass(slots=True)
class Block:
    """The bytes of one put, with the number of cells (a sample's field each) in it, and of those still wanted."""

    location: Mapping[str, Any]
    nbytes: int
    cells: int
    live: int

    @property
    def live_bytes(self) -> int:
        """The bytes of the cells that are still wanted, if all have the same size."""
        return self.nbytes * self.live // self.cells


class Blocks:
    """The blocks of a partition, by number from 1 on.

    Args:
        freed: gets the locations of blocks that no sample needs any more.
    """

    def __init__(self, freed: list[Mapping[str, Any]]) -> None:
        self.known: dict[int, Block] = {}
        self.freed = freed
        self.nbytes = self.live_bytes = 0
        self.dead_bytes = 0  # of freed blocks that the storage has not given back yet
        self.last = 0

    @property
    def stored_bytes(self) -> int:
        """All bytes that the storage has, needed or not."""
        return self.nbytes + self.dead_bytes

    def add(self, location: Mapping[str, Any], nbytes: int, cells: int) -> int:
        """Record a put of so many cells and return its number. Without cells it is freed at once."""
        if not cells:
            self.freed.append(location)
            return 0
        self.last += 1
        self.known[self.last] = Block(location, nbytes, cells, cells)
        self.nbytes += nbytes
        self.live_bytes += nbytes
        return self.last

    def release(self, numbers: np.ndarray) -> None:
        """One cell less for each of these numbers; 0 is none."""
        numbers = numbers[numbers != 0]
        if not len(numbers):
            return
        found, counts = np.unique(numbers, return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            block = self.known[number]
            before, block.live = block.live_bytes, block.live - count
            self.live_bytes -= before - block.live_bytes
            if not block.live:
                del self.known[number]
                self.nbytes -= block.nbytes
                self.dead_bytes += block.nbytes
                self.freed.append(block.location)


TagBatch: TypeAlias = list[tuple[str, "list[int] | None", Any, Any]]
"""By tag: its name, at which samples of the batch (None for all), its dtype, and one value for all or for each."""


class TagColumns:
    """The tags of the samples: a typed column per tag, of objects for texts and mixed types."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.values: dict[str, np.ndarray] = {}
        self.there: dict[str, np.ndarray] = {}

    def grow(self, size: int) -> None:
        """Make room for ``size`` rows."""
        self._size = size
        self._drop_empty()
        for columns in (self.values, self.there):
            columns.update({name: widened(column, size) for name, column in columns.items()})

    def _drop_empty(self) -> None:
        for name in [name for name, there in self.there.items() if not there.any()]:
            del self.values[name], self.there[name]

    def check(self, tags: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> TagBatch:
        """The tags of a batch by column. Raises ``TagError``; nothing is changed."""
        batch = _by_column(tags)
        names = {name for name, *_ in batch}
        if len(names | self.values.keys()) > _MOST_TAGS:
            self._drop_empty()
        if (count := len(names | self.values.keys())) > _MOST_TAGS:
            raise TagError(
                f"there would be {count} different tags, more than {_MOST_TAGS}",
                hint="give a tag one name, and put what differs into its value",
            )
        return batch

    def put(self, rows: np.ndarray, batch: TagBatch) -> None:
        """Set tags of rows; their other tags stay."""
        for name, having, kind, values in batch:
            at = rows if having is None else rows[having]
            column = self.values.get(name)
            if column is None:
                column = self.values[name] = np.zeros(self._size, dtype=kind)
                self.there[name] = np.zeros(self._size, dtype=bool)
            elif column.dtype != kind and column.dtype != object:
                there, typed = self.there[name], column
                column = self.values[name] = np.zeros(self._size, dtype=object)
                column[there] = objects(typed[there].tolist())
            column[at] = objects(values.tolist()) if column.dtype == object and kind is not object else values
            self.there[name][at] = True

    def clear(self, rows: np.ndarray) -> None:
        """Remove all tags of rows."""
        for name, there in self.there.items():
            there[rows] = False
            self.values[name][rows] = 0

    def column(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values of a tag at rows, and whether each has it; None counts as not having it."""
        values = self.values.get(name)
        if values is None:
            return np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
        found, there = values[rows], self.there[name][rows]
        if found.dtype == object:
            there = there & np.array([one is not None for one in found], dtype=bool)
        return found, there

    def of(self, rows: np.ndarray) -> list[TagColumn]:
        """The tags of rows, by column."""
        found: list[TagColumn] = []
        for name, there in self.there.items():
            having = np.flatnonzero(there[rows])
            if len(having) == len(rows):
                found.append((name, None, self.values[name][rows].tolist()))
            elif len(having):
                found.append((name, having.tolist(), self.values[name][rows[having]].tolist()))
        return found


def _by_column(tags: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> TagBatch:
    each = [tags] if isinstance(tags, Mapping) else tags
    batch: TagBatch = []
    for name in dict.fromkeys(chain.from_iterable(each)):
        having = [at for at, one in enumerate(each) if name in one]
        values = [each[at][name] for at in having]
        types = set(map(type, values))
        kind = _TAG_TYPES.get(types.pop(), object) if len(types) == 1 else object
        column = objects(values) if kind is object else np.array(values, dtype=kind)
        batch.append((name, None if len(having) == len(each) else having, kind, column))
    return batch


def objects(values: Sequence[Any]) -> np.ndarray:
    """An array of Python values; equal strings share one object."""
    found = np.empty(len(values), dtype=object)
    found[:] = [sys.intern(one) if type(one) is str else one for one in values]
    return found
