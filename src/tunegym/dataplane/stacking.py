"""Rows put together: what the rows of a list have in common, and the pieces in which they are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np

from tunegym.dataplane.errors import FieldError

Buffers: TypeAlias = tuple[tuple[np.ndarray, ...], ...]

_SMALL_ROWS = 1024
"""Rows of fewer bytes than this are put together first: one large piece is written faster than many small ones."""


def stacked(raws: list[np.ndarray]) -> tuple[Literal["dense", "jagged"], tuple[int, ...], Buffers]:
    """The kind, the shape and the buffers of a column of contiguous rows, as they are kept.

    Raises:
        FieldError: they are of several ranks, or differ in more than their first dimension.
    """
    all_shapes = [row.shape for row in raws]
    shapes, count = set(all_shapes), len(raws)
    ranks = {len(shape) for shape in shapes}
    if len(ranks) > 1:
        raise several("ranks", ranks)
    if ranks == {0}:
        return "dense", (), ((np.stack(raws),),)
    inner = {shape[1:] for shape in shapes}
    if len(inner) > 1:
        first, other = sorted(inner)[:2]
        raise FieldError(
            f"rows that differ in more than their first dimension: {first} and {other} after it",
            hint="only the first dimension may differ: transpose or pad the others",
        )
    lengths = [shape[0] for shape in all_shapes]
    nbytes = sum(lengths) * math.prod(all_shapes[0][1:]) * raws[0].itemsize
    pieces = (np.concatenate(raws),) if nbytes < _SMALL_ROWS * count else tuple(raws)
    if len(shapes) == 1:
        return "dense", shapes.pop(), (pieces,)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return "jagged", inner.pop(), (pieces, (offsets,))


def several(what: str, found: Iterable[Any]) -> FieldError:
    """Rows that have nothing in common where they must."""
    return FieldError(f"rows of several {what}: {', '.join(map(str, sorted(found)))}", hint="convert them to one")
