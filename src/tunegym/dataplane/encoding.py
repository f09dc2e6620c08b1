"""Columns: the values of one field for some samples, as bytes plus a JSON description.

``encode`` turns what a producer has into a ``Column`` without a copy; ``restore`` turns stored bytes back into one.
Values of dtypes that numpy lacks, such as bfloat16, are stored as integers of the same bits.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np

from tunegym.dataplane.errors import FieldError, StorageError

As: TypeAlias = Literal["numpy", "torch"]
"""The package of the returned arrays."""

_RAW = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Dtypes that numpy lacks, and the integers that store their bits."""
_NUMERIC = "biufc"
_TIMES = "mM"
_TEXTS = "SU"
Kind: TypeAlias = Literal["dense", "jagged", "object"]

ALIGNED = 64
"""Buffers start at multiples of this."""
_NUMBERS = (bool, int, float)


def aligned(nbytes: int) -> int:
    """Round up to the next offset where a buffer may start."""
    return nbytes + -nbytes % ALIGNED


@dataclass(frozen=True, eq=False)
class Column:
    """Rows of one field."""

    kind: Kind  # ``dense`` (rows of one shape), ``jagged`` (rows that differ in their first dimension), or ``object``
    rows: int  # the number of rows
    dtype: str  # its name; ``object`` for objects
    shape: tuple[int, ...]  # the shape of a row; for jagged rows without the first dimension
    # the bytes to write, each buffer as contiguous pieces: values; for jagged rows also offsets; for objects the
    # JSON text, offsets in it, and the bytes of arrays
    buffers: tuple[tuple[np.ndarray, ...], ...]
    listed: bool = False  # the values came as a list of rows, so rows elsewhere may have other lengths

    @property
    def rank(self) -> int:
        """The number of dimensions of a row."""
        return len(self.shape) + (self.kind == "jagged")

    @property
    def shape_key(self) -> tuple[str, int]:
        """Dtype and rank of a row, which all puts of a field share."""
        return self.dtype, self.rank

    @property
    def lengths(self) -> list[int] | None:
        """The first dimension of every row; None for scalars and objects."""
        if self.kind == "jagged":
            return np.diff(self.offsets).tolist()
        return [self.shape[0]] * self.rows if self.shape else None

    # bytes --------------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each buffer."""
        return tuple(sum([piece.nbytes for piece in pieces]) for pieces in self.buffers)

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers, with their alignment."""
        return sum(aligned(size) for size in self.sizes)

    def describe(self) -> dict[str, Any]:
        """JSON data that, together with the bytes, restores the column."""
        described = {"kind": self.kind, "rows": self.rows, "dtype": self.dtype}
        return {**described, "shape": list(self.shape), "sizes": list(self.sizes)}

    def pieces(self) -> list[Any]:
        """The bytes of all buffers in order, each followed by the gap to the next."""
        both = zip(self.buffers, self.sizes, strict=True)
        return [part for buffer, size in both for part in (*buffer, bytes(-size % ALIGNED))]

    def copied(self) -> Column:
        """A read-only copy."""
        return restore(self.describe(), np.frombuffer(b"".join(self.pieces()), dtype=np.uint8))

    def take(self, places: Sequence[int]) -> Column:
        """Some rows, as a column of the same dtype and rank. Raises ``StorageError`` if objects are damaged."""
        if self.kind != "object":
            return _of_rows([(row, self.dtype) for row in self.raw_rows(places)])
        from tunegym.dataplane import objects

        text, bounds, leaves = self.values, self._bounds, self.buffers[2][0]
        texts = [text[bounds[place] : bounds[place + 1]].tobytes() for place in places]
        return Column("object", len(texts), "object", (), tuple((part,) for part in objects.copy(texts, leaves)))

    # values -------------------------------------------------------------------------------------------

    @cached_property
    def values(self) -> np.ndarray:
        """All values as stored: dense rows as one array, others concatenated."""
        pieces = self.buffers[0]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return whole.reshape(self.rows, *self.shape) if self.kind == "dense" else whole

    @property
    def offsets(self) -> np.ndarray:
        """Row i of jagged rows and objects is from offsets[i] to offsets[i + 1]."""
        return self.buffers[1][0]

    @cached_property
    def _bounds(self) -> list[int]:
        """The offsets as a list: faster to look at one by one."""
        return self.offsets.tolist()

    def raw_rows(self, places: Sequence[int]) -> list[np.ndarray]:
        """Rows of arrays as stored, without a copy."""
        values = self.values
        if self.kind == "dense":
            return [values[place, ...] for place in places]
        bounds = self._bounds
        return [values[bounds[place] : bounds[place + 1]] for place in places]

    def object_rows(self, places: Sequence[int]) -> list[Any]:
        """Rows of objects, decoded."""
        from tunegym.dataplane import objects  # it needs the dtypes of this module

        text, bounds, leaves = self.values, self._bounds, self.buffers[2][0]
        return [objects.unpack(text[bounds[place] : bounds[place + 1]].tobytes(), leaves) for place in places]


def restore(description: Mapping[str, Any], memory: np.ndarray) -> Column:
    """The column of a ``describe()`` result as views of ``memory``.

    Raises:
        StorageError: description and bytes don't match.
    """
    kind, rows, dtype, shape = (description[name] for name in ("kind", "rows", "dtype", "shape"))
    parts: list[np.ndarray] = []
    start = 0
    for size in description["sizes"]:
        if start + size > len(memory):
            raise StorageError("a column is longer than its block", hint="the segment is damaged")
        parts.append(memory[start : start + size])
        start += aligned(size)
    try:
        if kind == "dense":
            values = parts[0].view(raw_dtype(dtype)).reshape(rows, *shape)
            return Column(kind, rows, dtype, tuple(shape), ((values,),))
        offsets = parts[1].view(np.int64)
        if kind == "jagged":
            values = parts[0].view(raw_dtype(dtype)).reshape(int(offsets[-1]), *shape)
        elif kind == "object":
            values = parts[0]
        else:
            raise StorageError(f"unknown column kind {kind!r}", hint="use the version that wrote it")
        if len(offsets) != rows + 1 or offsets[0] or (np.diff(offsets) < 0).any() or offsets[-1] != len(values):
            raise ValueError("its offsets are inconsistent")
    except (ValueError, TypeError, IndexError) as error:
        raise StorageError(f"a column can't be read: {error}", hint="the segment is damaged") from error
    return Column(kind, rows, dtype, tuple(shape), ((values,), (offsets,), *((leaves,) for leaves in parts[2:])))


# from values ------------------------------------------------------------------------------------------


def encode(values: Any) -> Column:
    """Encode a producer's values as a column that shares their memory.

    An array or tensor has one row per entry of its first dimension. A list of arrays of one dtype and rank that
    differ at most in their first dimension is dense if all have one shape, else jagged, like torch's nested tensors.
    A list of numbers of one type is an array: bool, int64, float64, or numpy's dtype; so is such a list or tuple as a
    row. Other lists, and object arrays of anything but arrays, are object columns.

    Raises:
        FieldError: the values can't be a column.
    """
    if isinstance(values, Column):
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind == "O":
        return _of_list(_items(values))
    if isinstance(values, list | tuple):
        return _of_list(_with_arrays(values))
    if not isinstance(values, np.ndarray) and not is_tensor(values):
        hint = "give an array, a tensor, or a list of arrays or objects"
        raise FieldError(f"a {type(values).__name__} can't be a column", hint=hint)
    if not values.ndim:
        raise FieldError("an array without dimensions has no rows", hint="give a row for each sample")
    if getattr(values, "is_nested", False):
        return _of_nested(values)
    raw, name = _stored(values)
    return Column("dense", len(raw), name, raw.shape[1:], ((raw,),))


def _stored(value: Any) -> tuple[np.ndarray, str]:
    """An array, a tensor or a scalar of numpy as it is stored, and the name of its dtype."""
    if is_tensor(value):
        return tensor_array(value)
    if isinstance(value, np.ma.MaskedArray):
        raise FieldError("a masked array can't be stored", hint="give values and mask as two fields")
    name = name_of(value.dtype)
    return to_raw(np.asarray(value), name), name


def _of_nested(tensor: Any) -> Column:
    if tensor.layout == import_torch().jagged and tensor._ragged_idx == 1 and tensor.lengths() is None:
        array, name = tensor_array(tensor.values())
        offsets = tensor.offsets().detach().cpu().numpy().astype(np.int64)
        if not offsets[0] and offsets[-1] == len(array):
            return Column("jagged", len(offsets) - 1, name, array.shape[1:], ((array,), (offsets,)))
    return _of_list(list(tensor.unbind()))


def _items(array: np.ndarray) -> list[Any]:
    if array.ndim != 1:
        raise FieldError(f"an object array with {array.ndim} dimensions", hint="give one with a single dimension")
    items = array.tolist()
    if items and all(isinstance(one, (*_NUMBERS, np.generic)) for one in items):
        raise FieldError("numbers in an object array have no dtype", hint="give them one: values.astype(...)")
    return items


def _with_arrays(rows: Sequence[Any]) -> list[Any]:
    """Lists of numbers among the rows as arrays, if every other row is an array; else the rows as they are."""
    lists = [row for row in rows if type(row) in (list, tuple)]
    arrays = [row for row in rows if isinstance(row, np.ndarray)]
    types = set(map(type, chain.from_iterable(lists)))
    numbers = all(kind in _NUMBERS or issubclass(kind, np.number | np.bool) for kind in types)
    if not lists or len(lists) + len(arrays) < len(rows) or not numbers:
        return list(rows)
    if not types and not arrays:
        hint = "give np.zeros(0, dtype=...) for a row, or wrap the lists in dicts to store them as objects"
        raise FieldError("rows without any numbers have no dtype", hint=hint)
    one = types or {arrays[0].dtype}
    return [row if isinstance(row, np.ndarray) else _of_numbers(row, one) for row in rows]


def _of_list(items: list[Any]) -> Column:
    if not items:
        raise FieldError("an empty list has no dtype", hint="give an empty array: np.zeros((0, ...), dtype=...)")
    types = {type(one): one for one in items}
    packages = {_package(one) for one in types.values()}
    if len(packages) > 1:
        raise FieldError(
            "rows mix arrays and other values, or numpy and torch",
            hint="give all rows as arrays of one package, or wrap them in dicts to store them as objects",
        )
    if packages != {None}:
        return _of_rows([_stored(one) for one in items])
    if types.keys() <= set(_NUMBERS):
        return encode(_of_numbers(items, types))
    from tunegym.dataplane import objects

    return Column("object", len(items), "object", (), tuple((part,) for part in objects.pack(items)))


def _package(value: Any) -> str | None:
    if is_tensor(value):
        return "torch"
    return "numpy" if isinstance(value, np.ndarray | np.number | np.bool | np.datetime64) else None


def _of_numbers(items: Sequence[Any], types: Collection[Any]) -> np.ndarray:
    """Numbers of one type as an array."""
    if len(types) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in types))
        raise FieldError(f"numbers of several types: {names}", hint="give an array of the dtype that you want")
    (kind,) = types
    try:
        return np.array(items, dtype=np.int64 if kind is int else kind)
    except OverflowError:
        raise FieldError("integers beyond 64 bits can't be a column", hint="wrap them in dicts") from None


def _of_rows(rows: list[tuple[np.ndarray, str]]) -> Column:
    """The column of contiguous rows: dense if all have one shape, else jagged."""
    names, ranks = {name for _, name in rows}, {row.ndim for row, _ in rows}
    for what, found in (("dtypes", names), ("ranks", ranks)):
        if len(found) > 1:
            raise FieldError(
                f"rows of several {what}: {', '.join(map(str, sorted(found)))}", hint="convert them to one"
            )
    raws, (name,), count = [row for row, _ in rows], names, len(rows)
    if ranks == {0}:
        return Column("dense", count, name, (), ((np.stack(raws),),), listed=True)
    shapes = [row.shape for row in raws]
    inner = {shape[1:] for shape in shapes}
    if len(inner) > 1:
        first, other = sorted(inner)[:2]
        raise FieldError(
            f"rows differ in more than their first dimension: {first} and {other} after it",
            hint="only the first dimension may differ: transpose or pad the others",
        )
    if len(set(shapes)) == 1:
        return Column("dense", count, name, shapes[0], (tuple(raws),), listed=True)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum([shape[0] for shape in shapes], out=offsets[1:])
    return Column("jagged", count, name, inner.pop(), (tuple(raws), (offsets,)), listed=True)


# dtypes -----------------------------------------------------------------------------------------------


@functools.cache
def name_of(dtype: np.dtype, *, texts: bool = False) -> str:
    """The name of a dtype, such as ``int64``. Raises ``FieldError`` if it can't be stored."""
    if dtype.kind in _NUMERIC + _TIMES and (dtype.isnative or dtype.itemsize <= 8):
        return dtype.name if dtype.isnative else dtype.str
    if dtype.name in _RAW:
        return dtype.name
    if texts and dtype.kind in _TEXTS:
        return dtype.str
    if dtype.kind in _TEXTS:
        raise FieldError("an array of texts can't be a column", hint="give a list of texts: values.tolist()")
    raise FieldError(
        f"values of dtype {dtype} can't be a column", hint="give numbers, or a list of dicts, lists and texts"
    )


@functools.cache
def raw_dtype(name: str) -> np.dtype:
    """The dtype that values are stored as: the dtype itself wherever a file can hold it."""
    if name in _RAW:
        return np.dtype(_RAW[name])
    dtype = np.dtype(name)
    if dtype.kind in _TEXTS or (dtype.isnative and dtype.kind not in _TIMES):
        return dtype
    # Times have no buffers, and concatenate swaps the bytes of a foreign byte order.
    return np.dtype(f"u{dtype.itemsize}")


def to_raw(array: np.ndarray, name: str) -> np.ndarray:
    """An array as it is stored, contiguous; without a copy where possible."""
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    dtype = raw_dtype(name)
    return array if array.dtype == dtype else array.view(dtype)


def to_numpy(raw: np.ndarray, name: str) -> np.ndarray:
    """Stored values as an array of their dtype, without a copy.

    Raises:
        FieldError: numpy has no such dtype, and ml_dtypes is not installed.
    """
    if name not in _RAW:
        dtype = np.dtype(name)
        return raw if raw.dtype == dtype else raw.view(dtype)
    try:
        more = importlib.import_module("ml_dtypes")
    except ImportError:
        raise FieldError(
            f"numpy has no {name}", hint='read it with as_="torch", or install the package ml_dtypes'
        ) from None
    return raw.view(getattr(more, name))


def to_torch(raw: np.ndarray, name: str) -> Any:
    """Stored values as a writable tensor: read-only memory is copied, other memory is shared."""
    torch = import_torch()
    dtype = getattr(torch, "bool" if name == "bool" else name, None)
    if not isinstance(dtype, torch.dtype):
        raise FieldError(f"torch has no dtype {name}", hint='read it with as_="numpy"')
    if not raw.flags.writeable or not raw.flags.c_contiguous:
        raw = raw.copy(order="C")
    if name not in _RAW:
        return torch.from_numpy(raw)
    # Not every torch knows uint16.
    return torch.from_numpy(raw.view(raw.dtype.str.replace("u", "i"))).view(dtype)


def convert(raw: np.ndarray, name: str, as_: As) -> Any:
    """Stored values as a numpy array or a torch tensor."""
    if as_ == "numpy":
        return to_numpy(raw, name)
    if as_ == "torch":
        return to_torch(raw, name)
    raise FieldError(f"as_ is {as_!r}", hint='give "numpy" or "torch"')


def raw_number(value: float, name: str) -> Any:
    """A number as the dtype stores it. Raises ``FieldError`` if the dtype can't hold it."""
    if name == "bfloat16":
        return _bfloat16(float(value))
    if name in _RAW:
        torch = import_torch()
        return torch.tensor(value, dtype=getattr(torch, name)).view(torch.uint8).item()
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(value).astype(name, casting="unsafe")
    except (TypeError, ValueError, OverflowError) as error:
        raise FieldError(f"{value!r} is not a {name}", hint="give a number") from error
    exact = found.dtype.kind not in "biu" or found == value
    if not exact or (found.dtype.kind == "f" and np.isinf(found) and not np.isinf(value)):
        raise FieldError(f"{value!r} does not fit into {name}", hint="give a value that the dtype can hold")
    return to_raw(found, name)[()]


def _bfloat16(value: float) -> int:
    bits = int(np.float32(value).view(np.uint32))
    if math.isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor. Never imports torch."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def import_torch() -> Any:
    """The torch package. Raises ``FieldError`` if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise FieldError("torch is not installed", hint='install it, or read with as_="numpy"') from None


def tensor_array(tensor: Any) -> tuple[np.ndarray, str]:
    """A dense tensor as it is stored, and the name of its dtype. Device and gradients are not kept."""
    torch = import_torch()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise FieldError("a sparse or quantized tensor can't be a column", hint="give tensor.to_dense()")
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if name in _RAW:
        signed = torch.int16 if raw_dtype(name).itemsize == 2 else torch.int8
        return plain.view(signed).numpy().view(_RAW[name]), name
    try:
        array = plain.numpy()
    except TypeError as error:
        raise FieldError(f"a tensor of dtype {name} can't be a column", hint="convert it to another dtype") from error
    return array, name_of(array.dtype)
