"""Leases: who has claimed what for how long."""

from __future__ import annotations

import heapq
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tunegym.dataplane.ledger.ids import Keep
from tunegym.dataplane.ledger.rows import MOST_ROWS, ROW_BITS
from tunegym.dataplane.ledger.spans import Span, array_of, span_of

MOST_LEASES = 2**32 - 1
"""After so many, their numbers begin again."""
_SLACK = 1024


Numbers: TypeAlias = int | np.ndarray
"""Of leases: one for each sample, or one for all of them."""


def any_lease() -> int:
    """A number to begin with, another one for each plane: what was claimed from one is no claim at another."""
    return secrets.randbelow(MOST_LEASES // 2)


def tickets(number: int, rows: Span) -> Sequence[int]:
    """What proves the claim of each row: the number of the lease and the row in one integer."""
    base = number << ROW_BITS
    if isinstance(rows, slice):
        return range(base + rows.start, base + rows.stop)
    return (rows.astype(np.int64) + base).tolist()


def read_tickets(given: Sequence[int]) -> tuple[Numbers, Span]:
    """Numbers of leases and rows; what is no ticket at all gives number 0. There must be one."""
    first, last, count = given[0], given[-1], len(given)
    if isinstance(first, int) and isinstance(last, int) and last - first == count - 1:
        number, row = first >> ROW_BITS, first & (MOST_ROWS - 1)
        in_order = isinstance(given, range) or [*given] == [*range(first, last + 1)]
        if in_order and number > 0 and row + count <= MOST_ROWS:  # of one claim, and of rows that follow one another
            return number, slice(row, row + count)
    try:
        each = np.asarray(given, dtype=np.int64)
    except (OverflowError, TypeError, ValueError):
        each = np.zeros(len(given), dtype=np.int64)
    return np.maximum(each >> ROW_BITS, 0), span_of((each & (MOST_ROWS - 1)).astype(np.int32))


@dataclass(slots=True, eq=False)
class Lease:
    """Samples that an owner has claimed for a task.

    Attributes:
        rows: of the claim; some may be settled by now.
        left: how many are not.
    """

    number: int
    task: int
    owner: str
    expires: float
    rows: Span
    left: int


class Leases:
    """The leases of a partition of which something is left."""

    def __init__(self) -> None:
        self.known: dict[int, Lease] = {}
        self._by_owner: dict[str, dict[int, None]] = {}
        self._times: list[tuple[float, int]] = []

    def add(self, lease: Lease) -> None:
        """A new one."""
        self.known[lease.number] = lease
        self._by_owner.setdefault(lease.owner, {})[lease.number] = None
        self._time(lease)

    def _time(self, lease: Lease) -> None:
        heapq.heappush(self._times, (lease.expires, lease.number))
        if len(self._times) > 2 * len(self.known) + _SLACK:
            self._times = [(one.expires, one.number) for one in self.known.values()]
            heapq.heapify(self._times)

    def settle(self, numbers: Numbers, samples: int) -> None:
        """So many samples, one for each number, are no longer leased. A lease of which none is left is forgotten."""
        if isinstance(numbers, int):
            self._less(numbers, samples)
            return
        found, counts = np.unique(numbers, return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._less(number, count)

    def _less(self, number: int, count: int) -> None:
        lease = self.known[number]
        lease.left -= count
        if not lease.left:
            self.forget(lease)

    def forget(self, lease: Lease) -> None:
        """It is over."""
        del self.known[lease.number]
        own = self._by_owner[lease.owner]
        del own[lease.number]
        if not own:
            del self._by_owner[lease.owner]

    def extend(self, numbers: Numbers, expires: float) -> None:
        """These last until then, if not longer."""
        for number in [numbers] if isinstance(numbers, int) else dict.fromkeys(numbers.tolist()):
            lease = self.known[number]
            if lease.expires < expires:
                lease.expires = expires
                self._time(lease)

    def over(self, now: float) -> list[Lease]:
        """Those that are over by now, the oldest first."""
        found: list[Lease] = []
        while self.next_end() <= now:
            found.append(self.known[heapq.heappop(self._times)[1]])
        return sorted(found, key=lambda one: one.number)

    def next_end(self) -> float:
        """When the next one is over."""
        while self._times:
            expires, number = self._times[0]
            lease = self.known.get(number)
            if lease is not None and lease.expires == expires:
                return expires
            heapq.heappop(self._times)
        return math.inf

    def owners(self) -> list[str]:
        """Who has leases."""
        return list(self._by_owner)

    def of(self, owner: str) -> list[Lease]:
        """An owner's, the oldest first."""
        return [self.known[number] for number in self._by_owner.get(owner, ())]

    def of_task(self, task: int) -> list[Lease]:
        """Those for a task, the oldest first."""
        return [lease for lease in self.known.values() if lease.task == task]

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep) -> list[list[Any]]:
        """All of them as plain data and arrays."""
        return [
            [one.number, one.task, one.owner, one.expires, one.left, keep(array_of(one.rows))]
            for one in self.known.values()
        ]

    def restore(self, state: Sequence[Sequence[Any]], arrays: Sequence[np.ndarray]) -> None:
        """Take on a state."""
        for number, task, owner, expires, left, at in state:
            self.add(Lease(number, task, owner, expires, span_of(arrays[at]), left))
