"""What became of the requests of one window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts the requests that were due in a window, and those that were answered in it.

    Attributes:
        begin: of the window.
        end: of the window; requests are still awaited for ``target_s`` after it.
        target_s: within which an answer is in time.
        late_s: the longest that a request was asked for after it was due, which is not the service's fault.
    """

    begin: float
    end: float
    target_s: float
    offered: int = 0
    in_time: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    completed: int = 0
    late_s: float = 0.0
    _latencies: list[float] = field(default_factory=list)
    _open: dict[int, float] = field(default_factory=dict)

    def due(self, number: int, due: float, now: float) -> None:
        """Request ``number`` is to be sent at ``due``, of which one thinks ``now``."""
        if self.begin <= due < self.end:
            self.offered += 1
            self.late_s = max(self.late_s, now - due)
            self._open[number] = due

    def done(self, number: int, status: int, at: float) -> None:
        """It got this status at ``at``; 0 if it got none."""
        if status == 200 and self.begin <= at < self.end:
            self.completed += 1
        due = self._open.pop(number, None)
        if due is None:
            return
        if status == 200:
            self.answered += 1
            self.in_time += at - due <= self.target_s
            self._latencies.append(at - due)
        elif status == 503:
            self.refused += 1
        else:
            self.failed += 1

    def summary(self, now: float) -> dict[str, Any]:
        """The window in numbers. A request without an answer counts with the time that it has waited so far."""
        latencies = sorted([*self._latencies, *(now - due for due in self._open.values())])
        return {
            "offered": self.offered,
            "in_time": self.in_time,
            "answered": self.answered,
            "refused": self.refused,
            "failed": self.failed,
            "unanswered": len(self._open),
            "completed": self.completed,
            "p50_s": quantile(latencies, 0.5),
            "p99_s": quantile(latencies, 0.99),
        }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of them don't exceed; 0 without any."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
