"""The samples of a partition as rows of arrays: flat memory, and everything for a batch at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.arrivals import Arrivals
from tunegym.dataplane.ledger.blocks import Blocks
from tunegym.dataplane.ledger.ids import IdIndex, Keep
from tunegym.dataplane.ledger.placing import Places, longer
from tunegym.dataplane.ledger.spans import Span, array_of, cut, join, size_of, span_of
from tunegym.dataplane.ledger.tagging import TagColumns

FREE, LEASED, ACKED, DONE, COVERED = 0, 1, 2, 3, 4
"""What a sample is for a task: to be claimed, claimed, acked and not yet covered by a commit, acked without a version,
covered. What is acked is at least ``ACKED``; what no rewind gives back is at least ``DONE``."""

ROW_BITS = 28
MOST_ROWS = 1 << ROW_BITS
_FIRST = 1024
_LOOSE = 256
_ONE_EACH = ("alive", "produced", "lengths", "born")
_SEVERAL = ("states", "leases")


class Rows:
    """Arrays with a slot for each sample; slots are used again, the one that is unused for longest first.

    Attributes:
        alive: whether a slot holds a sample that has not been cleared.
        produced: its fields, as bits.
        states, leases: by task; a lease is 0 unless the state is ``LEASED``.
        places: where its bytes are.
        lengths: -1 if not known.
        born: when it was put.
        groups: its group; there only if samples have some.
    """

    def __init__(self, fields: int, tasks: int, blocks: Blocks, size: int = _FIRST) -> None:
        self.size = size
        self.places = Places(fields, size, blocks)
        self.alive = np.zeros(size, dtype=bool)
        self.produced: np.ndarray = np.zeros(size, dtype=self.places.kind)
        self.states = [np.zeros(size, dtype=np.uint8) for _ in range(tasks)]
        self.leases = [np.zeros(size, dtype=np.uint32) for _ in range(tasks)]
        self.lengths = np.zeros(size, dtype=np.int32)
        self.born = np.zeros(size, dtype=np.float64)
        self.groups = np.zeros(0, dtype=np.int32)
        self.ids = IdIndex(size)
        self.tags = TagColumns(size)
        self.arrivals = Arrivals()
        self._unused: deque[Span] = deque([slice(0, size)])
        self._unused_count = size
        self._loose = 0

    def take(self, count: int) -> Span:
        """So many unused slots."""
        while self._unused_count < count:
            self._grow()
        parts: list[Span] = []
        missing = count
        while missing:
            part, rest = cut(self._unused.popleft(), missing)
            if size_of(rest):
                self._unused.appendleft(rest)
            parts.append(part)
            missing -= size_of(part)
        self._unused_count -= count
        rows = join(parts)
        return rows if isinstance(rows, slice) else span_of(rows)

    def give_back(self, rows: Span) -> None:
        """Slots whose samples are gone."""
        unused = self._unused
        self._unused_count += size_of(rows)
        last = unused[-1] if unused else None
        if isinstance(rows, slice) and isinstance(last, slice) and last.stop == rows.start:
            unused[-1] = slice(last.start, rows.stop)
            return
        unused.append(rows)
        self._loose += 1
        if self._loose >= _LOOSE:  # many small ones would take more room than what they are of
            parts = [unused.pop() for _ in range(min(self._loose, len(unused)))]
            unused.append(join(parts[::-1]))
            self._loose = 0

    def _grow(self) -> None:
        old, self.size = self.size, self.size * 2
        for name in _ONE_EACH:
            setattr(self, name, longer(getattr(self, name), self.size))
        for name in _SEVERAL:
            setattr(self, name, [longer(one, self.size) for one in getattr(self, name)])
        self.places.grow(self.size)
        if len(self.groups):
            self.have_groups()
        self.ids.grow(self.size)
        self.tags.grow(self.size)
        self._unused.append(slice(old, self.size))
        self._unused_count += self.size - old

    def have_groups(self) -> None:
        """Have room for the groups of all rows."""
        if len(self.groups) < self.size:
            self.groups = longer(self.groups, self.size)

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep) -> dict[str, Any]:
        """All of it as plain data and arrays."""
        unused = array_of(join(list(self._unused)))
        # What was never used is at the end, and needs no place.
        fresh = np.arange(self.size - 1, self.size - 1 - len(unused), -1, dtype=np.int32) == unused[::-1]
        never = len(fresh) if fresh.all() else int(np.argmin(fresh))
        used = self.size - never
        return {
            "size": self.size,
            "used": used,
            "unused": keep(unused[: len(unused) - never]),
            "groups": keep(self.groups[:used]),
            "ids": self.ids.state(keep, used),
            "tags": self.tags.state(keep, used),
            "places": self.places.state(keep, used),
            **{name: keep(getattr(self, name)[:used]) for name in _ONE_EACH},
            **{name: [keep(one[:used]) for one in getattr(self, name)] for name in _SEVERAL},
        }

    @classmethod
    def restored(
        cls, fields: int, tasks: int, blocks: Blocks, state: Mapping[str, Any], arrays: Sequence[np.ndarray]
    ) -> Rows:
        """Rows of a state."""
        rows = cls(fields, tasks, blocks, state["size"])
        used = state["used"]
        rows.places.restore(state["places"], arrays)
        for name in _ONE_EACH:
            getattr(rows, name)[:used] = arrays[state[name]]
        for name in _SEVERAL:
            for one, at in zip(getattr(rows, name), state[name], strict=True):
                one[:used] = arrays[at]
        if len(arrays[state["groups"]]):
            rows.groups = longer(arrays[state["groups"]], rows.size)
        rows.ids.restore(state["ids"], arrays)
        rows.tags.restore(state["tags"], arrays)
        unused = arrays[state["unused"]].astype(np.int32)
        rows._unused = deque([*_runs(unused), slice(used, rows.size)])
        rows._unused_count = len(unused) + rows.size - used
        return rows


def _runs(rows: np.ndarray) -> list[Span]:
    """The same rows, in runs if these are long."""
    edges = np.flatnonzero(np.diff(rows) != 1) + 1
    if len(edges) * _LOOSE > len(rows):
        return [rows] if len(rows) else []
    return [span_of(part) for part in np.split(rows, edges) if len(part)]
