"""Rows of a field that were read, wherever they are: a view of them until one says what they are wanted as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tunegym.dataplane import dtypes
from tunegym.dataplane.dtypes import As
from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import FieldError
from tunegym.dataplane.layouts import Jagged, flatten, pad
from tunegym.dataplane.objects import object_array

Piece = tuple[Column, Sequence[int]]
_APART = "read them apart, or use to_list()"


class Rows:
    """The rows of one field, in the order of the batch that they were read for.

    Nothing is copied before it must be. What comes out as numpy may be a view that can't be written to: copy it to
    change it. Tensors are always one's own.

    Args:
        parts: columns, and which rows of each, in order.
    """

    def __init__(self, parts: Sequence[Piece]) -> None:
        self._parts = [(column, places) for column, places in parts if len(places)]
        keys = {column.shape_key for column, _ in self._parts}
        if len(keys) > 1:
            found = ", ".join(f"{dtype} of rank {rank}" for dtype, rank in sorted(keys))
            raise FieldError(f"rows that don't belong together: {found}", hint="read them apart")

    def __len__(self) -> int:
        return sum(len(places) for _, places in self._parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        if not self._parts:
            return "Rows(none)"
        return f"Rows({len(self)} of {self.dtype}, rank {self.rank})"

    @property
    def dtype(self) -> str:
        """Its name; ``object`` for objects, and for no rows at all."""
        return self._parts[0][0].dtype if self._parts else "object"

    @property
    def rank(self) -> int:
        """How many dimensions a row has."""
        return self._parts[0][0].rank if self._parts else 0

    @property
    def lengths(self) -> list[int] | None:
        """The first dimension of every row; None where rows have none."""
        return [len(row) for row in self._raw] if self.rank else None

    # as what they are wanted --------------------------------------------------------------------------

    def to_list(self, as_: As = "numpy") -> list[Any]:
        """One value for each row."""
        if self._objects:
            return [row for column, places in self._parts for row in column.object_rows(places)]
        return [dtypes.convert(row, self.dtype, as_) for row in self._raw]

    def objects(self) -> np.ndarray:
        """An array of objects, one for each row."""
        return object_array(self.to_list())

    def dense(self, as_: As = "numpy") -> Any:
        """One array with a row for each. Raises ``FieldError`` if they are not of one shape."""
        self._check_arrays("dense()")
        raw = self._one_run()
        if raw is None:
            shapes = {row.shape for row in self._raw}
            if len(shapes) > 1:
                raise FieldError(
                    f"rows of {len(shapes)} shapes can't be one array", hint="use padded() or jagged() for them"
                )
            raw = self._stacked(shapes.pop())
        return dtypes.convert(raw, self.dtype, as_)

    def padded(self, pad_to: int | None = None, pad_value: float = 0, as_: As = "numpy") -> Any:
        """One array, of rows filled up with ``pad_value`` to ``pad_to``, or to the longest of them.

        Raises:
            FieldError: a row is longer than ``pad_to``, rows have no length, or the dtype can't hold the value.
        """
        self._check_lengths("padded()")
        value = dtypes.raw_number(pad_value, self.dtype)
        shapes = {column.shape if column.kind == "dense" else None for column, _ in self._parts}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is not None and pad_to in (None, shape[0]):
            raw = self._stacked(shape)
        else:
            raw = pad(self._raw, pad_to, value)
        return dtypes.convert(raw, self.dtype, as_)

    def jagged(self, as_: As = "numpy") -> Any:
        """All items one after the other: ``Jagged``, or a nested tensor of torch."""
        self._check_lengths("jagged()")
        whole = self._one_jagged() or flatten(self._raw)
        values = dtypes.convert(whole.values, self.dtype, as_)
        if as_ == "numpy":
            return Jagged(values, whole.offsets)
        torch = dtypes.import_torch()
        return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(whole.offsets.copy()))

    # how ----------------------------------------------------------------------------------------------

    @property
    def _objects(self) -> bool:
        return self.dtype == "object"

    @cached_property
    def _raw(self) -> list[np.ndarray]:
        """Every row as it is kept."""
        return [row for column, places in self._parts for row in column.raw_rows(places)]

    def _check_arrays(self, wanted: str) -> None:
        if not self._parts:
            raise FieldError(f"there are no rows for {wanted}", hint="an empty batch has no dtype: look at its size")
        if self._objects:
            raise FieldError(f"objects have no {wanted}", hint="use objects() or to_list()")

    def _check_lengths(self, wanted: str) -> None:
        self._check_arrays(wanted)
        if not self.rank:
            raise FieldError(f"single numbers have no length for {wanted}", hint="use dense()")
        inner = {column.shape[1:] if column.kind == "dense" else column.shape for column, _ in self._parts}
        if len(inner) > 1:
            found = " and ".join(map(str, sorted(inner)[:2]))
            raise FieldError(f"rows that differ in more than their first dimension: {found} after it", hint=_APART)

    def _one_run(self) -> np.ndarray | None:
        """Rows that are next to each other in one dense column, as they are."""
        if len(self._parts) > 1:
            return None
        column, places = self._parts[0]
        run = _run(places)
        return column.values[run] if column.kind == "dense" and run is not None else None

    def _one_jagged(self) -> Jagged | None:
        """Rows that are next to each other in one column, as they are."""
        if len(self._parts) > 1:
            return None
        column, places = self._parts[0]
        run = _run(places)
        if run is None:
            return None
        if column.kind == "dense":
            values = column.values[run]
            offsets = np.arange(len(values) + 1, dtype=np.int64) * column.shape[0]
            return Jagged(values.reshape(len(values) * column.shape[0], *column.shape[1:]), offsets)
        offsets = column.offsets[run.start : run.stop + 1]
        return Jagged(column.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def _stacked(self, shape: tuple[int, ...]) -> np.ndarray:
        stacked = np.empty((len(self), *shape), dtype=dtypes.raw_dtype(self.dtype))
        at = 0
        for column, places in self._parts:
            place = stacked[at : at + len(places)]
            run = _run(places)
            if column.kind == "jagged":
                np.stack(column.raw_rows(places), out=place)
            elif run is not None:
                place[...] = column.values[run]
            else:
                np.take(column.values, places, axis=0, out=place, mode="clip")
            at += len(places)
        return stacked


def _run(places: Sequence[int]) -> slice | None:
    """Places that are next to each other, in order."""
    if isinstance(places, range):
        return slice(places.start, places.stop) if places.step == 1 else None
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 != len(places):
        return None
    if len(places) > 2 and (np.diff(places) != 1).any():
        return None
    return slice(first, last + 1)
