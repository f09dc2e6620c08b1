"""Nested Python values as JSON plus raw arrays, and back exactly. No pickle: reading executes no code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from tunegym.dataplane import encoding
from tunegym.dataplane.errors import FieldError, StorageError

MOST_DEPTH = 100
_ALIGNED = 16
_TAG = "$"
_PLAIN_ARRAYS = (np.ndarray, np.memmap)


class Leaves:
    """The raw bytes of arrays, concatenated."""

    def __init__(self) -> None:
        self.pieces: list[np.ndarray] = []
        self.nbytes = 0

    def add(self, raw: np.ndarray) -> int:
        """Append an array; its offset."""
        if not raw.nbytes:
            return self.nbytes
        gap = -self.nbytes % _ALIGNED
        self.pieces += [np.zeros(gap, dtype=np.uint8), raw.reshape(-1).view(np.uint8)]
        self.nbytes += gap + raw.nbytes
        return self.nbytes - raw.nbytes


def pack(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows as JSON text, the offset of each row in it, and the bytes of their arrays.

    The round trip is exact for dicts, lists, tuples, texts, bytes, numbers of any size, NaN, None, and numpy and
    torch arrays and scalars as leaves.

    Raises:
        FieldError: a row contains anything else, such as a set or an instance of your own class.
    """
    leaves = Leaves()
    texts: list[bytes] = []
    for number, row in enumerate(rows):
        try:
            texts.append(orjson.dumps(_pack(row, leaves, 0)))
        except FieldError as error:
            raise FieldError(f"row {number}: {error.message}", hint=error.hint) from None
        except TypeError as error:
            raise FieldError(f"row {number}: {error}", hint="texts must be Unicode, without lone surrogates") from None
    return _joined(texts, leaves)


def copy(texts: Sequence[bytes], leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packed rows, with the bytes of their own arrays only: like ``pack``, without making a value of them."""
    own = Leaves()
    try:
        plain = [text if b'"$"' not in text else orjson.dumps(_copy(orjson.loads(text), leaves, own)) for text in texts]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise StorageError(f"a row of objects can't be read: {error}", hint="its bytes are damaged") from error
    return _joined(plain, own)


def _copy(value: Any, leaves: np.ndarray, own: Leaves) -> Any:
    if type(value) is list:
        return [_copy(one, leaves, own) for one in value]
    if type(value) is not dict:
        return value
    kind, *rest = value.get(_TAG, [None])
    if kind in ("s", "n", "T"):
        name, shape, at = rest
        nbytes = math.prod(shape) * encoding.raw_dtype(name).itemsize
        return {_TAG: [kind, name, shape, own.add(_cut(leaves, at, nbytes))]}
    if kind == "b":
        return {_TAG: [kind, own.add(_cut(leaves, *rest)), rest[1]]}
    return {key: _copy(one, leaves, own) for key, one in value.items()}


def _joined(texts: Sequence[bytes], leaves: Leaves) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    text = np.frombuffer(b"".join(texts), dtype=np.uint8)
    return text, offsets, np.concatenate(leaves.pieces) if leaves.pieces else np.zeros(0, dtype=np.uint8)


def unpack(text: bytes, leaves: np.ndarray) -> Any:
    """One row. Its numpy arrays are read-only views, its tensors are copies."""
    try:
        plain = orjson.loads(text)
        return plain if b'"$"' not in text else _unpack(plain, leaves)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise StorageError(f"a row of objects can't be read: {error}", hint="its bytes are damaged") from error


def _pack(value: Any, leaves: Leaves, depth: int) -> Any:
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if depth > MOST_DEPTH:
        raise FieldError(f"nested deeper than {MOST_DEPTH}", hint="does it contain itself?")
    if kind is int:
        return value if -(2**63) <= value < 2**64 else {_TAG: ["i", hex(value)]}
    if kind is float:
        return value if math.isfinite(value) else {_TAG: ["f", str(value)]}
    if kind is list:
        return [_pack(one, leaves, depth + 1) for one in value]
    if kind is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: _pack(one, leaves, depth + 1) for key, one in value.items()}
        return {_TAG: ["d", *(_pack(one, leaves, depth + 1) for item in value.items() for one in item)]}
    if kind is tuple:
        return {_TAG: ["t", *(_pack(one, leaves, depth + 1) for one in value)]}
    if kind is bytes:
        return {_TAG: ["b", leaves.add(np.frombuffer(value, dtype=np.uint8)), len(value)]}
    return _pack_leaf(value, leaves, depth)


def _pack_leaf(value: Any, leaves: Leaves, depth: int) -> Any:
    if type(value) in _PLAIN_ARRAYS and value.dtype.kind == "O":
        return {_TAG: ["o", list(value.shape), *(_pack(one, leaves, depth + 1) for one in value.ravel().tolist())]}
    if type(value) in _PLAIN_ARRAYS or isinstance(value, np.generic):
        array = np.asarray(value)
        name = encoding.name_of(array.dtype, texts=True)
        at = leaves.add(encoding.to_raw(array, name))
        return {_TAG: ["s" if isinstance(value, np.generic) else "n", name, list(array.shape), at]}
    if encoding.is_tensor(value):
        if value.is_nested:
            raise FieldError("a nested tensor can't be inside an object", hint="give a list of tensors")
        array, name = encoding.tensor_array(value)
        return {_TAG: ["T", name, list(array.shape), leaves.add(array)]}
    raise FieldError(
        f"a {type(value).__module__}.{type(value).__qualname__} can't be stored exactly",
        hint="use dicts, lists, tuples, texts, bytes, numbers, None, numpy arrays and torch tensors",
    )


def _unpack(value: Any, leaves: np.ndarray) -> Any:
    if type(value) is list:
        return [_unpack(one, leaves) for one in value]
    if type(value) is not dict:
        return value
    if _TAG not in value:
        return {key: _unpack(one, leaves) for key, one in value.items()}
    kind, *rest = value[_TAG]
    if kind in ("s", "n", "T"):
        return _unpack_leaf(kind, leaves, *rest)
    if kind == "b":
        return _cut(leaves, *rest).tobytes()
    if kind == "i":
        return int(rest[0], 16)
    if kind == "f":
        return float(rest[0])
    if kind == "o":
        return object_array([_unpack(one, leaves) for one in rest[1:]]).reshape(rest[0])
    items = [_unpack(one, leaves) for one in rest]
    if kind == "t":
        return tuple(items)
    if kind == "d":
        return dict(zip(items[::2], items[1::2], strict=True))
    raise ValueError(f"unknown kind {kind!r}")


def _unpack_leaf(kind: str, leaves: np.ndarray, name: str, shape: list[int], at: int) -> Any:
    dtype = encoding.raw_dtype(name)
    if dtype.itemsize:
        raw = _cut(leaves, at, math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
    else:
        raw = np.zeros(shape, dtype=dtype)
    if kind == "T":
        return encoding.to_torch(raw.copy(), name)
    array = encoding.to_numpy(raw, name)
    return array[()] if kind == "s" else array


def _cut(leaves: np.ndarray, at: int, nbytes: int) -> np.ndarray:
    if at < 0 or nbytes < 0 or at + nbytes > len(leaves):
        raise ValueError("an array beyond its end")
    return leaves[at : at + nbytes]


def object_array(values: Sequence[Any]) -> np.ndarray:
    """A one-dimensional object array of the values."""
    array = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        array[at] = value
    return array
