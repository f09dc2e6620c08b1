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
        self.counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def add(self, values: np.ndarray) -> None:
        """Count values in."""
        if not len(values):
            return
        first = values[0]
        if first == values[-1] and every(values == first):  # of one put
            self.add_one(float(first), len(values))
            return
        found = np.bincount(np.searchsorted(self._ends, values), minlength=len(self.counts)).tolist()
        self.counts = [one + more for one, more in zip(self.counts, found, strict=True)]
        self.total += float(values.sum())

    def add_one(self, value: float, times: int = 1) -> None:
        """Count one value in, once or several times."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def plain(self) -> dict[str, Any]:
        """As plain data: ``counts`` has one more than ``bounds``."""
        return {"bounds": list(self._bounds), "counts": list(self.counts), "sum": self.total}


def histogram_of(values: np.ndarray) -> dict[str, Any]:
    """Of these values, as plain data."""
    found = Histogram()
    found.add(values)
    return found.plain()
