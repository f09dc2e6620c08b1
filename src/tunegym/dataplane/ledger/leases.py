"""Leases: which owner has claimed which samples, and until when.

A claim is one lease with one number. An ack names the id of a sample and the number of its lease, and must match the
number that is recorded for it. A lease ends when all its samples are settled, when its time is over, or with its owner.
"""

from __future__ import annotations

import heapq
import math
import secrets
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

_SLACK = 1024


def first_lease() -> int:
    """A random number to start from, so that a lease of one plane is no lease of another."""
    return secrets.randbelow(2**48)


class Timers:
    """Deadlines by key. Those that were cancelled or moved are skipped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Any]] = []
        self._times: dict[Any, float] = {}

    def set(self, key: Hashable, time: float) -> None:
        """Set or move a deadline."""
        self._times[key] = time
        heapq.heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: Hashable) -> None:
        """Remove a deadline, if it is set."""
        self._times.pop(key, None)

    def get(self, key: Hashable) -> float:
        """The deadline of a key."""
        return self._times[key]

    def next(self) -> float:
        """The earliest deadline."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[Any]:
        """Remove and return the keys whose time is over, the earliest first."""
        found: list[Any] = []
        while self.next() <= now:
            found.append(heapq.heappop(self._heap)[1])
            del self._times[found[-1]]
        return found


@dataclass(slots=True, eq=False)
class Lease:
    """The samples that an owner has claimed for a task.

    Attributes:
        rows: all samples of the claim.
        left: the number that are not settled yet.
    """

    number: int
    task: int
    owner: str
    rows: np.ndarray
    left: int


class Leases:
    """The open leases of a partition."""

    def __init__(self) -> None:
        self.known: dict[int, Lease] = {}
        self.timers = Timers()

    def add(self, lease: Lease, expires: float) -> None:
        """Record a new lease."""
        self.known[lease.number] = lease
        self.timers.set(lease.number, expires)

    def settle(self, numbers: np.ndarray) -> None:
        """One sample less for each of these numbers. A lease with no sample left ends."""
        for number, count in Counter(numbers.tolist()).items():
            lease = self.known[number]
            lease.left -= count
            if not lease.left:
                self.remove(lease)

    def remove(self, lease: Lease) -> None:
        """End a lease."""
        del self.known[lease.number]
        self.timers.cancel(lease.number)

    def extend(self, numbers: Iterable[int], expires: float) -> None:
        """Move the ends of these leases to ``expires``, never to an earlier time."""
        for number in numbers:
            if self.timers.get(number) < expires:
                self.timers.set(number, expires)

    def over(self, now: float) -> list[Lease]:
        """The leases whose time is over, the oldest first. Remove them afterwards."""
        return [self.known[number] for number in sorted(self.timers.due(now))]
