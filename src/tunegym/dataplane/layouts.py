"""Rows of different lengths as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tunegym.dataplane.errors import FieldError

_SHORT = 64
"""Rows of fewer items on average than this are padded by a mask; longer ones by a copy of each."""


@dataclass(frozen=True, eq=False)
class Jagged:
    """Rows one after the other.

    Attributes:
        values: all items of all rows.
        offsets: row i is ``values[offsets[i] : offsets[i + 1]]``.
    """

    values: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Of every row."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        bounds = self.offsets.tolist()
        return (self.values[start:stop] for start, stop in pairwise(bounds))


def pad(rows: Sequence[np.ndarray], width: int | None, value: Any) -> np.ndarray:
    """Rows of one dtype as an array of ``width`` items for each (None: as the longest has), the last of them ``value``.

    The rows are contiguous. Every byte of the result is written once: a row, then what it lacks.

    Raises:
        FieldError: a row is longer.
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    width = longest if width is None else width
    if longest > width:
        raise FieldError(
            f"a row of {longest} doesn't fit into {width}", hint="give a larger pad_to: rows are never cut"
        )
    inner, dtype = rows[0].shape[1:], rows[0].dtype
    if sum(lengths) < _SHORT * len(rows):
        padded = np.full((len(rows), width, *inner), value, dtype=dtype)
        padded[np.arange(width) < np.array(lengths)[:, None]] = np.concatenate(rows)
        return padded
    lack = np.full((width, *inner), value, dtype=dtype)
    pieces: list[Any] = [None] * (2 * len(rows))
    pieces[::2] = rows
    pieces[1::2] = [lack[length:] for length in lengths]
    # Joined as bytes: that takes two thirds of what numpy's concatenate does, which looks at every piece's dtype.
    return np.frombuffer(bytearray().join(pieces), dtype=dtype).reshape(len(rows), width, *inner)


def flatten(rows: Sequence[np.ndarray]) -> Jagged:
    """Rows of one dtype one after the other."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return Jagged(np.concatenate(rows), offsets)
