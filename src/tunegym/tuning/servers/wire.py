"""What travels between a live experiment and a server elsewhere: one value per frame, and nothing that runs code.

A frame (see ``frames``) holds JSON, and behind it the bytes of the arrays in it, in the order in which they are named
there. JSON has no tuple, no array and no infinity: these are written as an object with one key that starts with ``$``,
and so is a dict that has such a key itself.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from tunegym.tuning.servers.frames import HEADER, MAGIC, MESSAGE_LIMIT, WireError, size_of

_DEEPEST = 64
_MOST_DIGITS = 1024
_INTEGERS = range(-(1 << 63), 1 << 64)
_DOUBLE = struct.Struct(">d")
_DTYPES = frozenset(
    np.dtype(f"{order}{kind}").str
    for order in "<>"
    for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
)


# values to frames -------------------------------------------------------------------------------------


def encode(value: Any, limit: int = MESSAGE_LIMIT) -> bytes:
    """The frame of a value.

    None, bool, int, float, str, bytes, numpy arrays and scalars of numbers, and lists, tuples and dicts (keys are
    texts) of them.

    Raises:
        WireError: it holds something else, is nested too deeply, or takes more than ``limit`` bytes.
    """
    writer = _Writer()
    try:
        text = orjson.dumps(writer.packed(value, 0))
    except WireError:
        raise
    except Exception as error:  # whatever somebody's own kind of dict raises
        raise WireError(f"it can't be sent: {type(error).__name__}: {error}") from None
    rest = sum(map(len, writer.blobs))
    size = HEADER.size + len(text) + rest
    if size > limit:
        raise WireError(f"a message of {size:,} bytes is more than the {limit:,} that are allowed")
    return b"".join((HEADER.pack(MAGIC, len(text), rest), text, *writer.blobs))


class _Writer:
    """Makes JSON of values; ``blobs`` are the bytes that go behind it."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []

    def packed(self, value: Any, depth: int) -> Any:
        """What stands for the value in the JSON."""
        pack = _PACKERS.get(type(value))
        if pack is None:
            value, pack = _base_of(value)
        return pack(self, value, depth)

    def write_plain(self, value: Any, depth: int) -> Any:
        return value

    def write_int(self, value: int, depth: int) -> Any:
        if value in _INTEGERS:
            return value
        text = hex(value)
        if len(text) > _MOST_DIGITS:
            raise WireError("an integer of that many digits can't be sent")
        return {"$i": text}

    def write_float(self, value: float, depth: int) -> Any:
        return value if math.isfinite(value) else {"$f": _DOUBLE.pack(value).hex()}

    def write_bytes(self, value: bytes, depth: int) -> Any:
        self.blobs.append(value)
        return {"$b": len(value)}

    def write_array(self, value: np.ndarray, depth: int) -> Any:
        if value.dtype.str not in _DTYPES:
            raise WireError(f"an array of {value.dtype} can't be sent")
        self.blobs.append(value.tobytes())
        return {"$a": [value.dtype.str, *value.shape]}

    def write_scalar(self, value: np.generic, depth: int) -> Any:
        self.blobs.append(value.tobytes())
        return {"$s": value.dtype.str}

    def write_list(self, value: list[Any], depth: int) -> Any:
        _check_depth(depth)
        return [self.packed(one, depth + 1) for one in value]

    def write_tuple(self, value: tuple[Any, ...], depth: int) -> Any:
        _check_depth(depth)
        return {"$t": [self.packed(one, depth + 1) for one in value]}

    def write_dict(self, value: dict[Any, Any], depth: int) -> Any:
        _check_depth(depth)
        packed = {}
        for key, one in value.items():
            if not isinstance(key, str):
                raise WireError(f"a dict with the key {key!r:.40} can't be sent: keys are texts")
            packed[str.__str__(key)] = self.packed(one, depth + 1)
        return {"$d": packed} if any(key.startswith("$") for key in packed) else packed


_PACKERS: Mapping[type, Callable[[_Writer, Any, int], Any]] = {
    type(None): _Writer.write_plain,
    bool: _Writer.write_plain,
    str: _Writer.write_plain,
    int: _Writer.write_int,
    float: _Writer.write_float,
    bytes: _Writer.write_bytes,
    list: _Writer.write_list,
    tuple: _Writer.write_tuple,
    dict: _Writer.write_dict,
    np.ndarray: _Writer.write_array,
    np.float32: _Writer.write_scalar,
    np.float64: _Writer.write_scalar,
    np.int64: _Writer.write_scalar,
    np.bool_: _Writer.write_scalar,
}
_BASES: Mapping[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,  # an Enum's own says something else
    bytes: bytes,
    list: list,
    tuple: tuple,
    dict: dict,
}


def _base_of(value: Any) -> tuple[Any, Callable[[_Writer, Any, int], Any]]:
    """What is derived from something that can be sent arrives as that."""
    if isinstance(value, np.generic) and value.dtype.str in _DTYPES:
        return value, _Writer.write_scalar
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        return value, _Writer.write_array
    for kind, base in _BASES.items():
        if isinstance(value, kind):
            return base(value), _PACKERS[kind]
    raise WireError(f"a {type(value).__name__} can't be sent")


def _check_depth(depth: int) -> None:
    if depth >= _DEEPEST:
        raise WireError(f"it is nested deeper than {_DEEPEST} levels")


# frames to values -------------------------------------------------------------------------------------


def decode(frame: bytes | bytearray, limit: int = MESSAGE_LIMIT) -> Any:
    """The value of a whole frame. Arrays have memory of their own, and may be written to.

    Raises:
        WireError: it is no frame, whatever is wrong with it.
    """
    if len(frame) < HEADER.size or size_of(frame[: HEADER.size], limit) != len(frame):
        raise WireError("a message that is cut short")
    _, text, _ = HEADER.unpack_from(frame)
    view = memoryview(frame)
    try:
        document = orjson.loads(view[HEADER.size : HEADER.size + text])
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message with broken JSON: {error}") from None
    reader = _Reader(view, HEADER.size + text)
    try:
        value = reader.value(document, 0)
    except WireError:
        raise
    except Exception as error:  # whatever a foreign message makes Python or numpy raise
        raise WireError(f"a message that makes no sense: {type(error).__name__}: {error}") from None
    if reader.at != len(frame):
        raise WireError("a message with bytes that belong to nothing")
    return value


class _Reader:
    """Takes values out of a frame; ``at`` is where the next array's bytes are."""

    def __init__(self, view: memoryview, at: int) -> None:
        self.at = at
        self._view = view

    def value(self, found: Any, depth: int) -> Any:
        """The value that a part of the JSON stands for."""
        if type(found) is list:
            _check_depth(depth)
            return [self.value(one, depth + 1) for one in found]
        if type(found) is not dict:
            return found
        if len(found) == 1:
            tag, inner = next(iter(found.items()))
            if tag.startswith("$"):
                return self._tagged(tag, inner, depth)
        elif any(key.startswith("$") for key in found):
            raise WireError("a message with a key that starts with $")
        return self._dict(found, depth)

    def _tagged(self, tag: str, found: Any, depth: int) -> Any:
        match tag:
            case "$a":
                return self._array(_of(found, list))
            case "$s":
                return self._scalar(found)
            case "$t":
                return tuple(self.value(_of(found, list), depth))
            case "$d":
                return self._dict(_of(found, dict), depth)
            case "$b":
                return bytes(self._take(found))
            case "$f":
                return _DOUBLE.unpack(bytes.fromhex(_of(found, str)))[0]
            case "$i":
                return _integer(_of(found, str))
        raise WireError(f"a message with something unknown: {tag[:20]!r}")

    def _dict(self, found: dict[str, Any], depth: int) -> dict[str, Any]:
        _check_depth(depth)
        return {key: self.value(one, depth + 1) for key, one in found.items()}

    def _array(self, found: list[Any]) -> np.ndarray:
        name, *shape = found
        dtype = _dtype(name)
        if len(shape) > 64 or any(type(length) is not int or length < 0 for length in shape):
            raise WireError("an array of an impossible shape")
        count = math.prod(shape)
        content = self._take(count * dtype.itemsize)
        if count == 0:
            return np.empty(shape, dtype)
        return _numbers(content, dtype).reshape(shape).copy()

    def _scalar(self, found: Any) -> np.generic:
        dtype = _dtype(found)
        return _numbers(self._take(dtype.itemsize), dtype)[0]

    def _take(self, length: Any) -> memoryview:
        if type(length) is not int or not 0 <= length <= len(self._view) - self.at:
            raise WireError("a message with fewer bytes than its arrays have")
        taken = self._view[self.at : self.at + length]
        self.at += length
        return taken


def _numbers(content: memoryview, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind == "b" and (np.frombuffer(content, np.uint8) > 1).any():
        raise WireError("an array of bool that holds something else")
    return np.frombuffer(content, dtype)


def _dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in _DTYPES:
        raise WireError(f"an array of {name!r:.40}, which is no kind of number")
    return np.dtype(name)


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise WireError("an integer of too many digits")
    return int(text, 16)


def _of(found: Any, kind: type) -> Any:
    if type(found) is not kind:
        raise WireError(f"a message with a {type(found).__name__} where a {kind.__name__} belongs")
    return found
