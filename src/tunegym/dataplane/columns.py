"""Columns as a producer has them and a trainer wants them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from tunegym.dataplane.dtypes import As
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.errors import FieldError
from tunegym.dataplane.gathering import Rows
from tunegym.dataplane.layouts import Jagged
from tunegym.dataplane.model import BatchMeta, Tags

__all__ = ["Jagged", "Plane", "Rows", "cut", "jagged", "kv_first_write", "padded", "read_columns", "write_columns"]

Layout: TypeAlias = Literal["padded", "jagged"]


class Plane(Protocol):
    """What is needed of a client here: a protocol, so that a wrapper or a test's stand-in will do."""

    def put_samples(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        tags: Tags | Sequence[Tags] | None = None,
        group_ids: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        lengths: Sequence[int] | None = None,
        epoch: int | None = None,
    ) -> BatchMeta:
        """Write fields of samples."""
        ...

    def get_samples(self, meta: BatchMeta, select_fields: Sequence[str]) -> Mapping[str, Rows]:
        """The rows of fields."""
        ...


def padded(rows: Any, pad_to: int | None = None, pad_value: float = 0, as_: As = "numpy") -> Any:
    """Rows, or whatever can be a column, as one array: see ``Rows.padded``."""
    return _rows(rows).padded(pad_to, pad_value, as_)


def jagged(rows: Any, as_: As = "numpy") -> Any:
    """Rows, or whatever can be a column, one after the other: see ``Rows.jagged``."""
    return _rows(rows).jagged(as_)


def cut(values: Any, lengths: Sequence[int]) -> list[Any]:
    """Padded rows without what they were padded with at their end.

    So a producer puts a padded array whose lengths it knows, and a stage what it computed from a padded read. The
    lengths may be an array or a tensor of integers: of a mask whose rows are true up to their end, ``mask.sum(1)``.

    Raises:
        FieldError: not one length for each row, or a row is shorter than its length.
    """
    try:
        ends = [operator.index(length) for length in lengths]
    except TypeError:
        raise FieldError(f"lengths is {lengths!r:.60}", hint="give integers: of a mask its sums, as integers") from None
    if len(values) != len(ends):
        raise FieldError(f"{len(ends)} lengths for {len(values)} rows")
    short = [at for at, end in enumerate(ends) if not 0 <= end <= len(values[at])]
    if short:
        raise FieldError(f"row {short[0]} has {len(values[short[0]])} items, and not {ends[short[0]]}")
    return [row[:end] for row, end in zip(values, ends, strict=True)]


def kv_first_write(
    plane: Plane,
    partition_id: str,
    sample_ids: Sequence[str],
    fields: Mapping[str, Any],
    *,
    tags: Tags | Sequence[Tags] | None = None,
    group_ids: Sequence[str] | None = None,
    lengths_of: str | None = None,
    timeout_s: float | None = None,
    epoch: int | None = None,
) -> BatchMeta:
    """A rollout batch in one put: all of its fields become ready at once, and the lengths of its rows are recorded.

    Rows that are padded have all the same length: ``cut`` them first.

    Args:
        plane: the client.
        partition_id: where.
        sample_ids: a text for each sample.
        fields: by name a column with a row for each sample.
        tags: for each sample, or the same for all.
        group_ids: of each sample, in a partition with groups.
        lengths_of: the field whose lengths are the samples', whatever was recorded before. By default the one length
            that all fields agree on whose rows differ in length.
        timeout_s: how long to wait for room; None for ever.
        epoch: of the weights that made the batch: see ``DataPlaneClient.put_samples``.

    Raises:
        FieldError: fields disagree on the lengths, and none is named.
    """
    columns = {name: encode(values) for name, values in fields.items()}
    lengths: list[int] | None = None
    if lengths_of is None:
        jagged = {name: tuple(column.lengths or ()) for name, column in columns.items() if column.kind == "jagged"}
        if len(set(jagged.values())) > 1:
            raise FieldError(
                f"fields of different lengths: {', '.join(jagged)}",
                hint=f"name the one that counts: lengths_of={next(iter(jagged))!r}",
            )
    else:
        lengths = columns[lengths_of].lengths if lengths_of in columns else None
        if lengths is None:
            raise FieldError(f"{lengths_of!r} has no lengths", hint="name a field of this batch whose rows have some")
    return plane.put_samples(
        partition_id, sample_ids, columns, tags, group_ids, timeout_s, lengths=lengths, epoch=epoch
    )


def read_columns(
    plane: Plane,
    meta: BatchMeta,
    fields: Sequence[str],
    layout: Layout = "padded",
    pad_to: int | Mapping[str, int] | None = None,
    pad_values: Mapping[str, float] | None = None,
    as_: As = "numpy",
) -> dict[str, Any]:
    """Fields of a batch, in its order, as a trainer takes them.

    Rows that are single numbers come as one array, objects as an array of objects. All others come as ``layout`` says:
    one array, padded at the end of the first dimension of a row, or ``Jagged`` (with torch a nested tensor).

    Args:
        plane: the client.
        meta: the batch.
        fields: which.
        layout: see above.
        pad_to: the length of all rows: give every rank of a step the same. For all fields whose rows have a length, or
            by field; by default each field's longest row here.
        pad_values: by field; 0 for all others.
        as_: ``numpy`` or ``torch``.

    Raises:
        FieldError: a field is not there, a row is longer than ``pad_to``, or a setting names no field.
    """
    if layout not in ("padded", "jagged"):
        raise FieldError(f"layout is {layout!r}", hint='give "padded" or "jagged"')
    if not meta.size:
        raise FieldError("an empty batch has no columns", hint="look at meta.size first")
    by_field = dict.fromkeys(fields, pad_to) if isinstance(pad_to, int | np.integer) else dict(pad_to or {})
    values = dict(pad_values or {})
    for what, names in (("pad_to", by_field), ("pad_values", values)):
        unknown = [name for name in names if name not in fields]
        if unknown:
            raise FieldError(f"{what} names {unknown[0]!r}, which is not read", hint=f"read are: {', '.join(fields)}")
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
    plane: Plane,
    meta: BatchMeta,
    columns: Mapping[str, Any],
    timeout_s: float | None = None,
    *,
    epoch: int | None = None,
) -> BatchMeta:
    """Write fields back for the samples of a batch, in its order: what a stage adds, and the next one waits for.

    The lengths of the samples stay those of the batch, whatever the rows here have.
    """
    if not columns:
        raise FieldError("no column is given", hint="give at least one by name")
    put = plane.put_samples(meta.partition_id, meta.sample_ids, columns, timeout_s=timeout_s, epoch=epoch)
    return put if meta.sequence_lengths is None else replace(put, sequence_lengths=meta.sequence_lengths)


def _rows(values: Any) -> Rows:
    if isinstance(values, Rows):
        return values
    column = encode(values)
    return Rows([(column, range(column.rows))])
