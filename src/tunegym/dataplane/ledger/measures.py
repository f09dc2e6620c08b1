"""Histograms of seconds, with the same buckets everywhere."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.spans import every

BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Upper ends of the buckets, in seconds; one more holds what is above."""


class Histogram:
    """How many values are in each bucket, and their sum.

    Args:
        finer: more buckets, below all others.
    """

    def __init__(self, finer: tuple[float, ...] = ()) -> None:
        self._bounds = finer + BOUNDS
        self._ends = np.array(self._bounds)
        self.counts = np.zeros(len(self._bounds) + 1, dtype=np.int64)
        self.total = 0.0

    def add(self, values: np.ndarray) -> None:
        """Count values in."""
        if not len(values):
            return
        first = values[0]
        if first == values[-1] and every(values == first):  # of one put
            self.counts[bisect_left(self._bounds, first)] += len(values)
            self.total += float(first) * len(values)
            return
        self.counts += np.bincount(np.searchsorted(self._ends, values), minlength=len(self.counts))
        self.total += float(values.sum())

    def add_one(self, value: float) -> None:
        """Count one value in."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def plain(self) -> dict[str, Any]:
        """As plain data: ``counts`` has one more than ``bounds``."""
        return {"bounds": list(self._bounds), "counts": self.counts.tolist(), "sum": self.total}


def histogram_of(values: np.ndarray) -> dict[str, Any]:
    """Of these values, as plain data."""
    found = Histogram()
    found.add(values)
    return found.plain()
