"""The bytes alone, without a ledger: put into segments and read out again, beside numpy's own copy of the same bytes.

Every source is out of the caches when it is copied. Rates count the bytes of the rows, not of what they are padded
with, and the process's CPU time, threads included. For information: what a whole read takes has its bound in ``peers``.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dataplane.batches import KINDS, ROWS, out_of_cache
from benchmarks.dataplane.places import memory
from benchmarks.trial_overhead.measure import Line, middle
from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.storage.mmap import MmapStorage
from tunegym.dataplane.storage.usage import SegmentUsage

TIMES = 8


def measured(quick: bool) -> Iterator[Line]:
    """Each column of each batch."""
    folder = Path(tempfile.mkdtemp(prefix="columns-", dir=memory()))
    try:
        for kind in ("jagged", "dense", "large"):
            for name, rows in KINDS[kind].fields().items():
                yield from _column(folder, kind, f"{KINDS[kind].what}, {name}", rows, 2 if quick else 5)
    finally:
        shutil.rmtree(folder)


def _column(folder: Path, kind: str, what: str, rows: Any, rounds: int) -> Iterator[Line]:
    found = _Column(folder, rows)
    try:
        numbers = [found.rates() for _ in range(rounds)]
    finally:
        found.close()
    for action in ("put", "padded") if kind == "jagged" else ("put",):  # others are views
        ratios = tuple(one[action] / one["copy"] for one in numbers)
        ours, copy = middle(numbers, action), middle(numbers, "copy")
        yield Line(f"bytes alone, {action}, {what}", "GB/s", ours, "numpy's copy", copy, ratios, None)


class _Column:
    """One column in a storage of its own."""

    def __init__(self, folder: Path, rows: Any) -> None:
        self._rows = rows
        self._flat = np.concatenate(list(rows))
        self._warm = np.ones_like(self._flat)
        self._storage, self._usage = MmapStorage(folder), SegmentUsage(folder)
        self._locations: list[Any] = []

    def rates(self) -> dict[str, float]:
        """GB/s of each action."""
        return {
            "copy": self._rate(lambda _: np.copyto(self._warm, self._flat), lambda: None),
            "put": self._rate(lambda _: self._put(), self._keep_up),
            "padded": self._rate(lambda location: self._gathered(location).padded(), self._located),
        }

    def _rate(self, work: Callable[[Any], Any], prepare: Callable[[], Any]) -> float:
        used = []
        for _ in range(TIMES):
            given = prepare()
            out_of_cache()
            begun = time.process_time()
            result = work(given)
            used.append(time.process_time() - begun)
            del result, given
        return self._flat.nbytes / statistics.mean(used) / 1e9

    def _put(self) -> None:
        location, _ = self._storage.write("p", {"field": encode(self._rows)})
        self._usage.keep(location)
        self._storage.settle(location)
        self._locations.append(location)

    def _keep_up(self) -> None:
        """As consumers do."""
        self._usage.free(self._locations[:-1])
        del self._locations[:-1]

    def _located(self) -> Any:
        self._keep_up()
        self._put()
        return self._locations[-1]

    def _gathered(self, location: Any) -> Rows:
        return Rows([(self._storage.read(location)["field"], range(ROWS))])

    def close(self) -> None:
        self._storage.close()
        self._usage.free(self._locations)
        self._usage.sweep()
