"""Columns as producers write them and trainers read them: rows, padded arrays and jagged arrays.

``Rows`` is what a read returns: views of the stored bytes until you choose a layout. ``kv_first_write``,
``read_columns`` and ``write_columns`` are the calls of a rollout pipeline.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tunegym.dataplane.encoding import As, Column, convert, encode, import_torch, raw_number
from tunegym.dataplane.errors import FieldError
from tunegym.dataplane.model import BatchMeta, Tags
from tunegym.dataplane.objects import object_array

if TYPE_CHECKING:
    from tunegym.dataplane.client import DataPlaneClient

Layout: TypeAlias = Literal["padded", "jagged"]


@dataclass(frozen=True, eq=False)
class Jagged:
    """Rows of different lengths in one array."""

    values: np.ndarray  # the items of all rows, concatenated
    offsets: np.ndarray  # row i is ``values[offsets[i] : offsets[i + 1]]``

    @property
    def lengths(self) -> np.ndarray:
        """The length of every row."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        bounds = self.offsets.tolist()
        return (self.values[start:stop] for start, stop in pairwise(bounds))


class Rows:
    """The rows of one field, in the order of the batch.

    Nothing is copied until necessary. A numpy result may be a read-only view: copy it to change it. Tensors are always
    writable.

    Args:
        parts: columns, and which rows of each, in order.
    """

    def __init__(self, parts: Sequence[tuple[Column, Sequence[int]]]) -> None:
        self._parts = [(column, places) for column, places in parts if len(places)]
        keys = {column.shape_key for column, _ in self._parts}
        if len(keys) > 1:
            found = ", ".join(f"{dtype} of rank {rank}" for dtype, rank in sorted(keys))
            raise FieldError(f"rows of different kinds: {found}", hint="read them separately")

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
        """The name of the dtype; ``object`` for objects and for no rows."""
        return self._parts[0][0].dtype if self._parts else "object"

    @property
    def rank(self) -> int:
        """The number of dimensions of a row."""
        return self._parts[0][0].rank if self._parts else 0

    @property
    def lengths(self) -> list[int] | None:
        """The first dimension of every row; None for scalars and objects."""
        return [len(row) for row in self._raw] if self.rank else None

    def to_list(self, as_: As = "numpy") -> list[Any]:
        """A list with one value per row."""
        if self.dtype == "object":
            return [row for column, places in self._parts for row in column.object_rows(places)]
        return [convert(row, self.dtype, as_) for row in self._raw]

    def objects(self) -> np.ndarray:
        """An object array with one item per row."""
        return object_array(self.to_list())

    def dense(self, as_: As = "numpy") -> Any:
        """One array. Raises ``FieldError`` if the rows differ in shape."""
        self._check_arrays("dense()")
        column, places = self._parts[0]
        where = _index(places)
        if len(self._parts) == 1 and column.kind == "dense" and isinstance(where, slice):
            raw = column.values[where]  # a view
        else:
            shapes = {row.shape for row in self._raw}
            if len(shapes) > 1:
                raise FieldError(f"rows of {len(shapes)} shapes can't be one array", hint="use padded() or jagged()")
            raw = self._stacked()
        return convert(raw, self.dtype, as_)

    def padded(self, pad_to: int | None = None, pad_value: float = 0, as_: As = "numpy") -> Any:
        """One array, with rows padded at the end to ``pad_to`` or to the longest row.

        Raises:
            FieldError: a row is longer than ``pad_to``, rows are scalars, or the dtype can't hold ``pad_value``.
        """
        self._check_lengths("padded()")
        value = raw_number(pad_value, self.dtype)
        shapes = {column.shape if column.kind == "dense" else None for column, _ in self._parts}
        shape = shapes.pop() if len(shapes) == 1 else None
        one_length = shape is not None and pad_to in (None, shape[0])
        raw = self._stacked() if one_length else _padded(self._raw, pad_to, value)
        return convert(raw, self.dtype, as_)

    def jagged(self, as_: As = "numpy") -> Any:
        """All rows concatenated: ``Jagged``, or a nested tensor of torch."""
        self._check_lengths("jagged()")
        column, places = self._parts[0]
        where = _index(places)
        if len(self._parts) == 1 and column.kind == "jagged" and isinstance(where, slice):
            offsets = column.offsets[where.start : where.stop + 1]
            raw, offsets = column.values[offsets[0] : offsets[-1]], offsets - offsets[0]  # a view
        else:
            offsets = np.zeros(len(self) + 1, dtype=np.int64)
            np.cumsum([len(row) for row in self._raw], out=offsets[1:])
            raw = np.concatenate(self._raw)
        values = convert(raw, self.dtype, as_)
        if as_ == "numpy":
            return Jagged(values, offsets)
        torch = import_torch()
        return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets))

    @cached_property
    def _raw(self) -> list[np.ndarray]:
        """Every row as stored."""
        return [row for column, places in self._parts for row in column.raw_rows(places)]

    def _check_arrays(self, wanted: str) -> None:
        if not self._parts:
            raise FieldError(f"no rows for {wanted}", hint="an empty batch has no dtype: check its size first")
        if self.dtype == "object":
            raise FieldError(f"objects have no {wanted}", hint="use objects() or to_list()")

    def _check_lengths(self, wanted: str) -> None:
        self._check_arrays(wanted)
        if not self.rank:
            raise FieldError(f"scalars have no length for {wanted}", hint="use dense()")
        inner = {column.shape[1:] if column.kind == "dense" else column.shape for column, _ in self._parts}
        if len(inner) > 1:
            found = " and ".join(map(str, sorted(inner)[:2]))
            raise FieldError(
                f"rows differ in more than their first dimension: {found} after it",
                hint="read them separately, or use to_list()",
            )

    def _stacked(self) -> np.ndarray:
        """Rows of one shape as a new array."""
        if any(column.kind == "jagged" for column, _ in self._parts):
            return np.stack(self._raw)
        return np.concatenate([column.values[_index(places)] for column, places in self._parts])


def _index(places: Sequence[int]) -> slice | list[int]:
    """Places as a slice where they are adjacent and ascending."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places) and (isinstance(places, range) or (np.diff(places) == 1).all()):
        return slice(first, last + 1)
    return list(places)


def _padded(rows: Sequence[np.ndarray], width: int | None, value: Any) -> np.ndarray:
    """Contiguous rows of one dtype, each followed by padding. Raises ``FieldError`` if a row is longer than ``width``.

    Joined as bytes, so that every byte of the result is written once: faster than numpy's concatenate.
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    width = longest if width is None else width
    if longest > width:
        raise FieldError(f"a row of {longest} doesn't fit into {width}", hint="give a larger pad_to")
    inner, dtype = rows[0].shape[1:], rows[0].dtype
    padding = np.full((width, *inner), value, dtype=dtype)
    pieces: list[Any] = [None] * (2 * len(rows))
    pieces[::2] = rows
    pieces[1::2] = [padding[length:] for length in lengths]
    return np.frombuffer(bytearray().join(pieces), dtype=dtype).reshape(len(rows), width, *inner)


def cut(values: Any, lengths: Sequence[int]) -> list[Any]:
    """Cut the padding off padded rows, so that they can be put with their real lengths.

    ``lengths`` may be an array or a tensor of integers; for a mask use ``mask.sum(1)``.

    Raises:
        FieldError: not one length for each row, or a row is shorter than its length.
    """
    try:
        ends = [operator.index(length) for length in lengths]
    except TypeError:
        raise FieldError(f"lengths is {lengths!r:.60}", hint="give integers; for a mask its sums") from None
    if len(values) != len(ends):
        raise FieldError(f"{len(ends)} lengths for {len(values)} rows")
    short = [at for at, end in enumerate(ends) if not 0 <= end <= len(values[at])]
    if short:
        raise FieldError(f"row {short[0]} has {len(values[short[0]])} items, not {ends[short[0]]}")
    return [row[:end] for row, end in zip(values, ends, strict=True)]


def kv_first_write(
    plane: DataPlaneClient,
    partition_id: str,
    sample_ids: Sequence[str],
    fields: Mapping[str, Any],
    *,
    tags: Tags | Sequence[Tags] | None = None,
    group_ids: Sequence[str] | None = None,
    lengths: Sequence[int] | str | None = None,
    timeout_s: float | None = None,
) -> BatchMeta:
    """Put a rollout batch: all fields become ready at once, and the lengths of the rows are recorded.

    Padded rows all have the same length: ``cut`` them first. The arguments are those of
    ``DataPlaneClient.put_samples``, but without ``lengths`` all jagged fields must agree on them.

    Raises:
        FieldError: jagged fields disagree on the lengths, and ``lengths`` is not given.
    """
    columns = {name: encode(values) for name, values in fields.items()}
    jagged = {name: tuple(column.lengths or ()) for name, column in columns.items() if column.kind == "jagged"}
    if lengths is None and len(set(jagged.values())) > 1:
        raise FieldError(
            f"fields with different lengths: {', '.join(jagged)}",
            hint=f"name the one that counts: lengths={next(iter(jagged))!r}",
        )
    return plane.put_samples(partition_id, sample_ids, columns, tags, group_ids, timeout_s, lengths=lengths)


def read_columns(
    plane: DataPlaneClient,
    meta: BatchMeta,
    fields: Sequence[str],
    layout: Layout = "padded",
    pad_to: int | Mapping[str, int] | None = None,
    pad_values: Mapping[str, float] | None = None,
    as_: As = "numpy",
) -> dict[str, Any]:
    """Read fields of a batch in its order.

    Scalars come as one array, objects as an object array. Other rows come in the ``layout``: one array, padded at the
    end of the rows' first dimension, or ``Jagged`` (a nested tensor with torch).

    Args:
        plane: the client.
        meta: the batch.
        fields: the fields to read.
        layout: ``padded`` or ``jagged``.
        pad_to: the padded length, for all fields or by field: give every rank of a step the same. By default the
            longest row of each field.
        pad_values: by field; 0 by default.
        as_: ``numpy`` or ``torch``.

    Raises:
        FieldError: a field was not produced, a row is longer than ``pad_to``, or a setting names an unread field.
    """
    if layout not in ("padded", "jagged"):
        raise FieldError(f"layout is {layout!r}", hint='give "padded" or "jagged"')
    if not meta.size:
        raise FieldError("an empty batch has no columns", hint="check meta.size first")
    by_field = dict.fromkeys(fields, pad_to) if isinstance(pad_to, int | np.integer) else dict(pad_to or {})
    values = dict(pad_values or {})
    for what, names in (("pad_to", by_field), ("pad_values", values)):
        unknown = [name for name in names if name not in fields]
        if unknown:
            raise FieldError(f"{what} names {unknown[0]!r}, which is not read", hint=f"it reads: {', '.join(fields)}")
    if layout == "jagged" and (by_field or values):
        raise FieldError("a jagged layout isn't padded", hint='leave out pad_to and pad_values, or use layout="padded"')
    found: dict[str, Any] = {}
    for name, rows in plane.get_samples(meta, fields).items():
        try:
            found[name] = _laid_out(rows, layout, by_field.get(name), values.get(name, 0), as_)
        except FieldError as error:
            raise FieldError(f"field {name!r}: {error.message}", hint=error.hint) from None
    return found


def _laid_out(rows: Rows, layout: Layout, pad_to: int | None, pad_value: float, as_: As) -> Any:
    if rows.dtype == "object":
        return rows.objects()
    if not rows.rank:
        return rows.dense(as_)
    return rows.padded(pad_to, pad_value, as_) if layout == "padded" else rows.jagged(as_)


def write_columns(
    plane: DataPlaneClient, meta: BatchMeta, columns: Mapping[str, Any], timeout_s: float | None = None
) -> BatchMeta:
    """Add fields to the samples of a batch, in its order. The samples' lengths stay unchanged."""
    if not columns:
        raise FieldError("no column is given", hint="give at least one by name")
    put = plane.put_samples(meta.partition_id, meta.sample_ids, columns, timeout_s=timeout_s)
    return put if meta.sequence_lengths is None else replace(put, sequence_lengths=meta.sequence_lengths)
