"""Who waits at a partition: in lines, in which nobody is passed."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from tunegym.dataplane.ledger.requests import Claim, Put, Waiter

_PUTS = "puts"
_SLACK = 256


def line_of(request: Put | Claim, number: int = 0) -> Hashable:
    """Who stands in one line: puts that bring samples, and the claims of a task that require the same fields.

    A claim with a predicate stands alone: what it doesn't want, others may.
    """
    if isinstance(request, Put):
        return _PUTS
    if request.where is not None:
        return number
    return request.task_name, frozenset(request.fields)


class Waiting:
    """The lines of a partition.

    Args:
        left: is told of everybody who leaves.
    """

    def __init__(self, left: Callable[[Waiter], None]) -> None:
        self._left = left
        self._lines: dict[Hashable, deque[Waiter]] = {}
        self._all: dict[int, Waiter] = {}
        self._times: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._all)

    def count(self, kind: type) -> int:
        """How many wait with requests of a kind."""
        return sum(isinstance(one.request, kind) for one in self._all.values())

    def add(self, waiter: Waiter) -> None:
        """Stand in line."""
        self._lines.setdefault(line_of(waiter.request, waiter.number), deque()).append(waiter)
        self._all[waiter.number] = waiter
        if waiter.deadline is not None:
            heapq.heappush(self._times, (waiter.deadline, waiter.number))
            if len(self._times) > 2 * len(self._all) + _SLACK:
                self._times = [(one.deadline, one.number) for one in self.all() if one.deadline is not None]
                heapq.heapify(self._times)

    def remove(self, waiter: Waiter) -> bool:
        """Leave the line; whether it stood there."""
        if self._all.pop(waiter.number, None) is None:
            return False
        key = line_of(waiter.request, waiter.number)
        line = self._lines[key]
        line.remove(waiter)
        if not line:
            del self._lines[key]
        self._left(waiter)
        return True

    def behind(self, request: Put | Claim) -> bool:
        """Whether somebody waits already in the line of a new request."""
        return bool(self._lines) and line_of(request) in self._lines

    def all(self) -> list[Waiter]:
        """Everybody, in the order of their arrival."""
        return list(self._all.values())

    def of(self, owner: str) -> list[Waiter]:
        """An owner's."""
        return [one for one in self._all.values() if one.request.owner == owner]

    def overdue(self, now: float) -> list[Waiter]:
        """Those whose time is over, in the order of their deadlines."""
        found = []
        while self.next_deadline() <= now:
            found.append(self._all[heapq.heappop(self._times)[1]])
        return found

    def next_deadline(self) -> float:
        """When the next one's time is over."""
        while self._times and self._times[0][1] not in self._all:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else math.inf

    def serve(self, attempt: Callable[[Put | Claim], tuple[Any] | None], settle: Callable[[Waiter, Any], None]) -> None:
        """See to everybody: puts first, for claims may get what they bring, then who came first.

        ``attempt`` gives what comes of a request, in a tuple, or None if it must wait on, and all behind it.
        """
        self._serve({key: line for key, line in self._lines.items() if key is _PUTS}, attempt, settle)
        self._serve({key: line for key, line in self._lines.items() if key is not _PUTS}, attempt, settle)

    def _serve(
        self,
        lines: dict[Hashable, deque[Waiter]],
        attempt: Callable[[Put | Claim], tuple[Any] | None],
        settle: Callable[[Waiter, Any], None],
    ) -> None:
        heads = [(line[0].number, at) for at, line in enumerate(lines.values())]
        heapq.heapify(heads)
        each = list(lines.values())
        while heads:
            _, at = heapq.heappop(heads)
            waiter = each[at][0]
            outcome = attempt(waiter.request)
            if outcome is None:
                continue
            self.remove(waiter)
            settle(waiter, outcome[0])
            if each[at]:
                heapq.heappush(heads, (each[at][0].number, at))
