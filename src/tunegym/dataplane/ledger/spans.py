"""Rows as a slice where they follow one another, else as an array: what is done to slices costs a tenth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Span: TypeAlias = slice | np.ndarray
"""Distinct rows, in an order that counts. A slice has both its ends and no step."""

NOTHING = slice(0, 0)


def span_of(rows: np.ndarray) -> Span:
    """These rows, as a slice if they follow one another."""
    count = len(rows)
    if not count:
        return NOTHING
    first = int(rows[0])
    if int(rows[-1]) - first != count - 1 or (count > 2 and not every(rows[1:] - rows[:-1] == 1)):
        return rows
    return slice(first, first + count)


def size_of(span: Span) -> int:
    """How many rows."""
    return span.stop - span.start if isinstance(span, slice) else len(span)


def array_of(span: Span) -> np.ndarray:
    """The rows as an array."""
    return np.arange(span.start, span.stop, dtype=np.int32) if isinstance(span, slice) else span


def every(mask: np.ndarray) -> bool:
    """Whether all of it is true, or not 0; for short ones half of what numpy's own ``all`` takes."""
    return np.count_nonzero(mask) == len(mask)


def pick(span: Span, mask: np.ndarray) -> Span:
    """The rows where the mask is true."""
    return span if every(mask) else array_of(span)[mask]


def cut(span: Span, count: int) -> tuple[Span, Span]:
    """The first so many rows, and the rest."""
    if isinstance(span, slice):
        middle = min(span.start + count, span.stop)
        return slice(span.start, middle), slice(middle, span.stop)
    return span[:count], span[count:]


def join(spans: Sequence[Span]) -> Span:
    """All rows of all of them, in their order."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if isinstance(last, slice) and isinstance(span, slice) and last.stop == span.start:
            merged[-1] = slice(last.start, span.stop)
        elif size_of(span):
            merged.append(span)
    if len(merged) > 1:
        return np.concatenate([array_of(span) for span in merged])
    return merged[0] if merged else NOTHING
