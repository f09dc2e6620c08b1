"""Actions and observations of recorded steps, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import StoreError
from tunegym.tuning.spaces import leaves
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.columns import INLINE, leaf_values, row_type
from tunegym.tuning.stores.live import SIDES
from tunegym.tuning.stores.reader import Steps

if TYPE_CHECKING:
    from tunegym.tuning.reports.live_results import LiveResults


def is_inline(space: spaces.Space[Any]) -> bool:
    """Whether elements of a space are in the journal; others have a file of their own."""
    return sum(leaf.size for leaf in leaves(space)) <= INLINE


def elements(results: LiveResults, kind: str, space: spaces.Space[Any]) -> np.ndarray:
    """The ``kind`` ("action" or "observation") of every recorded step.

    Raises:
        StoreError: their file is not there, or too short.
    """
    if not is_inline(space):
        return _mapped(results, kind, row_type(space))
    parts: list[np.ndarray] = []
    for group in reader.steps(results.path):
        if isinstance(group, Steps):
            found = group.actions if kind == "action" else group.observations
            assert found is not None
            rows = np.zeros(len(group.numbers), dtype=row_type(space))
            for leaf, values in zip(leaves(space), found, strict=True):
                rows[leaf.name or "value"] = leaf_values(leaf, values)
            parts.append(rows)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=row_type(space))


def _mapped(results: LiveResults, kind: str, dtype: np.dtype[Any]) -> np.ndarray:
    rows = results.past.sides.get(kind, 0)
    path = results.folder / SIDES[kind]
    if not rows:
        return np.zeros(0, dtype=dtype)
    try:
        found = path.stat().st_size // dtype.itemsize
        if found >= rows:
            return np.memmap(path, dtype=dtype, mode="r", shape=(rows,))
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}", hint="put the file back") from error
    raise StoreError(
        f"{path} is too short: the journal knows of {rows} rows, and it has {found}", hint="put the whole file back"
    )
