"""What goes through the planes."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunegym.dataplane.columns import Jagged

ROWS, CLAIM = 512, 64
_LONGEST, _SHORTEST = 1500, 200
_LARGE = 24_500
_EVICT = np.ones(96 << 20, dtype=np.uint8)


@dataclass(frozen=True)
class Kind:
    """One kind of batch.

    Attributes:
        what: in a line of the table.
        rows: how many.
        repeats: how often it goes through in a round.
        jagged: whether its rows differ in length.
        fields: by name a list of rows, or an array of them.
    """

    what: str
    rows: int
    repeats: int
    jagged: bool
    fields: Callable[[], dict[str, Any]]


def _jagged(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    lengths = rng.integers(_SHORTEST, _LONGEST + 1, rows)
    return {
        "tokens": [rng.integers(0, 50_000, length) for length in lengths],
        "logprobs": [rng.random(length, dtype=np.float32) for length in lengths],
    }


def _dense() -> dict[str, Any]:
    return {"values": np.random.default_rng(1).random((ROWS, 4096), dtype=np.float32)}


def _large() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"frames": [rng.random(_LARGE, dtype=np.float32) for _ in range(ROWS)]}


KINDS = {
    "jagged": Kind("512 jagged rows", ROWS, 5, True, lambda: _jagged(ROWS)),
    "dense": Kind("512 x 4,096", ROWS, 5, False, _dense),
    "large": Kind("512 rows of 98 KB", ROWS, 3, False, _large),
    "single": Kind("single row", 1, 30, True, lambda: _jagged(1)),
}
FIELDS = ("tokens", "logprobs", "values", "frames")


def nbytes(fields: dict[str, Any]) -> int:
    """Of all rows of all fields."""
    return sum(row.nbytes for rows in fields.values() for row in rows)


def out_of_cache() -> None:
    """Whatever was in the caches of this machine isn't any more."""
    np.add(_EVICT, 1, out=_EVICT)


def touched(found: dict[str, Any]) -> dict[str, Any]:
    """Arrays, or values of jagged rows, of which every page has been looked at: a view is no use before that."""
    for rows in found.values():
        array = rows.values if isinstance(rows, Jagged) else rows
        array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max()
    return found


def timed(work: Callable[[], Any], rows: int) -> tuple[float, Any]:
    """Seconds on the wall, of a batch out of cache, and what came of it."""
    if rows > 1:
        out_of_cache()
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result
