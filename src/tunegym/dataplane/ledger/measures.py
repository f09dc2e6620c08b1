"""Histograms of seconds, with the same buckets everywhere."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np

BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Upper ends of the buckets, in seconds; one more holds what is above."""

_BOUNDS = np.array(BOUNDS)


class Histogram:
    """How many values are in each bucket, and their sum."""

    def __init__(self) -> None:
        self.counts = np.zeros(len(BOUNDS) + 1, dtype=np.int64)
        self.total = 0.0

    def add(self, values: np.ndarray) -> None:
        """Count values in."""
        if not len(values):
            return
        first = values[0]
        if first == values[-1] and (values == first).all():  # of one put
            self.counts[bisect_left(BOUNDS, first)] += len(values)
            self.total += float(first) * len(values)
            return
        self.counts += np.bincount(np.searchsorted(_BOUNDS, values), minlength=len(self.counts))
        self.total += float(values.sum())

    def plain(self) -> dict[str, Any]:
        """As plain data: ``counts`` has one more than ``bounds``."""
        return {"bounds": list(BOUNDS), "counts": self.counts.tolist(), "sum": self.total}


def histogram_of(values: np.ndarray) -> dict[str, Any]:
    """Of these values, as plain data."""
    found = Histogram()
    found.add(values)
    return found.plain()
