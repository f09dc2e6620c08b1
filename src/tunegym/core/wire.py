"""Messages between processes: frames of JSON and raw bytes on a stream. Nothing in them can run code.

A frame is a magic word, the length of its JSON, the length of its binary part, the JSON, and the binary part. There are
two kinds. A *plain* frame (``pack``) holds a document that JSON can hold; orjson writes and reads it in one go, so that
large lists cost no Python per item. A *typed* frame (``encode``) keeps the types of its values: numpy arrays and
scalars, bytes, tuples, infinities and large integers. JSON has none of these, so each is an object with one key that
starts with ``$``, and the bytes of arrays are in the binary part, in the order of the JSON.

``Decoder`` turns received bytes into values, whichever kind they are, and refuses frames above its limit before it
reads them. ``Connection`` sends and receives values on a socket, with deadlines.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson

MESSAGE_LIMIT = 64 << 20
"""Default limit of a frame in bytes, header included."""

_HEADER = struct.Struct("!4sIQ")
_TYPED, _PLAIN = b"TGS\x01", b"TGP\x01"
_MAX_DEPTH = 64
_MAX_DIGITS = 1024
_INTEGERS = range(-(1 << 63), 1 << 64)
_DOUBLE = struct.Struct(">d")
_DTYPES = frozenset(
    [f"{order}{kind}" for order in "<>" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")]
    + ["|b1", "|i1", "|u1"]
)
_CHUNK = 1 << 16
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))


class WireError(Exception):
    """A value that can't be sent, or bytes that are no message; the message says why."""


class ConnectionClosedError(Exception):
    """The other side closed the connection, or is gone."""


# values to frames -------------------------------------------------------------------------------------


def pack(document: Any, limit: int = MESSAGE_LIMIT) -> bytes:
    """Return the plain frame of a JSON document: None, bool, int, float, str, lists and dicts of them.

    Tuples arrive as lists and infinities as None: use ``encode`` where types matter.

    Raises:
        WireError: the document holds something else, or takes more than ``limit`` bytes.
    """
    try:
        text = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"it can't be sent: {error}") from None
    _check_size(_HEADER.size + len(text), limit)
    return _HEADER.pack(_PLAIN, len(text), 0) + text


def encode(value: Any, limit: int = MESSAGE_LIMIT) -> bytes:
    """Return the typed frame of a value.

    None, bool, int, float, str, bytes, numpy arrays and scalars of numbers, and lists, tuples and dicts (with string
    keys) of them. An instance of a subclass arrives as its base type.

    Raises:
        WireError: the value holds something else, is nested too deeply, or takes more than ``limit`` bytes.
    """
    blobs: list[bytes] = []
    try:
        text = orjson.dumps(_json_of(value, 0, blobs))
    except WireError:
        raise
    except Exception as error:  # a subclass of dict or list may raise anything
        raise WireError(f"it can't be sent: {type(error).__name__}: {error}") from None
    rest = sum(map(len, blobs))
    _check_size(_HEADER.size + len(text) + rest, limit)
    return b"".join((_HEADER.pack(_TYPED, len(text), rest), text, *blobs))


_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,  # not str(): an Enum overrides __str__
    bytes: bytes,
    list: list,
    tuple: tuple,
    dict: dict,
}


def _json_of(value: Any, depth: int, blobs: list[bytes]) -> Any:
    """Return the JSON of a value, and append its binary parts to ``blobs``."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$f": _DOUBLE.pack(value).hex()}
    if kind is int:
        return value if value in _INTEGERS else {"$i": _hexadecimal(value)}
    if kind is list or kind is tuple:
        _check_depth(depth)
        items = [_json_of(one, depth + 1, blobs) for one in value]
        return items if kind is list else {"$t": items}
    if kind is dict:
        _check_depth(depth)
        packed = {_key_of(key): _json_of(one, depth + 1, blobs) for key, one in value.items()}
        return {"$d": packed} if any(key.startswith("$") for key in packed) else packed
    if kind is bytes:
        blobs.append(value)
        return {"$b": len(value)}
    numpy = sys.modules.get("numpy")  # a small child need not import it
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.str in _DTYPES:
        blobs.append(value.tobytes())
        return {"$s": value.dtype.str}
    if numpy is not None and isinstance(value, numpy.ndarray) and not isinstance(value, numpy.ma.MaskedArray):
        if value.dtype.str not in _DTYPES:
            raise WireError(f"an array of {value.dtype} can't be sent")
        blobs.append(value.tobytes())
        return {"$a": [value.dtype.str, *value.shape]}
    for base, convert in _BASES.items():
        if isinstance(value, base):
            return _json_of(convert(value), depth, blobs)
    raise WireError(f"a {kind.__name__} can't be sent")


def _hexadecimal(value: int) -> str:
    text = hex(value)
    if len(text) > _MAX_DIGITS:
        raise WireError("an integer of that many digits can't be sent")
    return text


def _key_of(key: Any) -> str:
    if not isinstance(key, str):
        raise WireError(f"a dict with the key {key!r:.40} can't be sent: keys must be strings")
    return str.__str__(key)


def _check_depth(depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise WireError(f"it is nested deeper than {_MAX_DEPTH} levels")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise WireError(f"a message of {size:,} bytes is over the limit of {limit:,}")


# frames to values -------------------------------------------------------------------------------------


class Decoder:
    """Turns received bytes into values. After a ``WireError`` it can't be used any more.

    Args:
        limit: largest frame in bytes; may be changed between two messages.
    """

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self.limit = limit
        self._received = bytearray()

    @property
    def empty(self) -> bool:
        """Whether no part of a further message has arrived."""
        return not self._received

    def feed(self, content: bytes | bytearray | memoryview) -> list[Any]:
        """Add received bytes; return the values that are complete now. Their arrays own their memory.

        Raises:
            WireError: the bytes are no message, or announce one above the limit.
        """
        if not self._received and 0 < len(content) == self._size(content, 0):  # the usual case, without a copy
            return [_value(memoryview(content))]
        received = self._received
        received += content
        values: list[Any] = []
        at = 0
        while (size := self._size(received, at)) and len(received) - at >= size:
            with memoryview(received) as view, view[at : at + size] as frame:
                values.append(_value(frame))
            at += size
        del received[:at]
        return values

    def _size(self, content: bytes | bytearray | memoryview, at: int) -> int:
        """Return the size of the frame that begins at ``at``; 0 if its header is incomplete."""
        if len(content) - at < _HEADER.size:
            return 0
        magic, text, rest = _HEADER.unpack_from(content, at)
        if magic != _TYPED and (magic != _PLAIN or rest):
            raise WireError(f"this is no message of tunegym's: it begins with {bytes(magic)!r}")
        size = _HEADER.size + text + rest
        _check_size(size, self.limit)
        return size


def decode(frame: bytes | bytearray, limit: int = MESSAGE_LIMIT) -> Any:
    """Return the value of exactly one frame. Raises ``WireError`` if ``frame`` is anything else."""
    decoder = Decoder(limit)
    values = decoder.feed(frame)
    if len(values) != 1 or not decoder.empty:
        raise WireError("the message is incomplete" if not values else "there is more than one message")
    return values[0]


def _value(frame: memoryview) -> Any:
    magic, text, _ = _HEADER.unpack_from(frame)
    try:
        document = orjson.loads(frame[_HEADER.size : _HEADER.size + text])
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message with broken JSON: {error}") from None
    if magic == _PLAIN:
        return document
    reader = _Reader(frame, _HEADER.size + text)
    try:
        value = reader.value(document, 0)
    except WireError:
        raise
    except Exception as error:  # malformed input can make Python or numpy raise anything
        raise WireError(f"a malformed message: {type(error).__name__}: {error}") from None
    if reader.at != len(frame):
        raise WireError("a message with unused bytes")
    return value


class _Reader:
    """Rebuilds the values of a typed frame; ``at`` is the position of the next array's bytes."""

    def __init__(self, frame: memoryview, at: int) -> None:
        self.at = at
        self._frame = frame

    def value(self, found: Any, depth: int) -> Any:
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
        match tag, found:
            case "$a", [str(name), *shape]:
                return self._array(name, shape)
            case "$s", str():
                return self._array(found, [])[()]
            case "$t", list():
                return tuple(self.value(found, depth))
            case "$d", dict():
                return self._dict(found, depth)
            case "$b", int():
                return bytes(self._take(found))
            case "$f", str():
                return _DOUBLE.unpack(bytes.fromhex(found))[0]
            case "$i", str() if len(found) <= _MAX_DIGITS:
                return int(found, 16)
        raise WireError(f"a message with an unknown value: {tag[:20]!r} of type {type(found).__name__}")

    def _dict(self, found: dict[str, Any], depth: int) -> dict[str, Any]:
        _check_depth(depth)
        return {key: self.value(one, depth + 1) for key, one in found.items()}

    def _array(self, name: str, shape: list[Any]) -> Any:
        import numpy as np

        if name not in _DTYPES:
            raise WireError(f"an array of {name!r:.40}, which is no type of number")
        if len(shape) > 64 or any(type(length) is not int or length < 0 for length in shape):
            raise WireError("an array of an impossible shape")
        dtype, count = np.dtype(name), math.prod(shape)
        content = self._take(count * dtype.itemsize)
        if count == 0:
            return np.empty(shape, dtype)
        if dtype.kind == "b" and (np.frombuffer(content, np.uint8) > 1).any():
            raise WireError("an array of bool with other values")
        return np.frombuffer(content, dtype).reshape(shape).copy()

    def _take(self, length: int) -> memoryview:
        if type(length) is not int or not 0 <= length <= len(self._frame) - self.at:
            raise WireError("a message with fewer bytes than its arrays have")
        taken = self._frame[self.at : self.at + length]
        self.at += length
        return taken


# connections ------------------------------------------------------------------------------------------


class Connection:
    """Sends and receives values on a connected socket. One thread may send while another receives.

    Args:
        connected: becomes non-blocking; ``close`` closes it.
        limit: largest message in bytes, see ``Decoder``.
        watched: a file descriptor that becomes readable when the other side has died (a pidfd), in case another
            process still holds its end of the connection; -1 for none.
    """

    def __init__(self, connected: socket.socket, *, limit: int = MESSAGE_LIMIT, watched: int = -1) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.decoder = Decoder(limit)
        self._arrived: deque[Any] = deque()
        self._unsent = bytearray()
        self._watched = watched
        self._readable = self._poll_for(select.POLLIN)

    def send(self, value: Any, deadline: float | None = None) -> None:
        """Send one typed value; see ``send_frame``. A ``WireError`` means that nothing was sent."""
        self.send_frame(encode(value), deadline)

    def send_frame(self, frame: bytes, deadline: float | None = None) -> None:
        """Send a frame; return when the system has accepted all of it.

        Raises:
            ConnectionClosedError: the other side is gone.
            TimeoutError: the deadline (monotonic) has passed.
        """
        left = memoryview(frame)
        while left:
            try:
                left = left[self.socket.send(left) :]
            except BlockingIOError:
                ready = self._poll_for(select.POLLOUT).poll(_milliseconds(deadline))
                if any(fd == self._watched for fd, _ in ready):
                    raise ConnectionClosedError("it is gone") from None
                if not ready:
                    raise TimeoutError from None
            except OSError as error:
                raise ConnectionClosedError(error.strerror or type(error).__name__) from None

    def post(self, frame: bytes = b"") -> bool:
        """Send a frame without waiting, after what is left of earlier ones; whether nothing is left now.

        The rest is sent by the next ``post``. Don't mix it with ``send``. Raises ``ConnectionClosedError``.
        """
        self._unsent += frame
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionClosedError(error.strerror or type(error).__name__) from None
        return True

    def wait_writable(self, deadline: float | None = None) -> None:
        """Wait until more can be sent, the connection is closed, or the deadline."""
        with contextlib.suppress(OSError, ValueError):  # another thread closed the socket
            self._poll_for(select.POLLOUT).poll(_milliseconds(deadline))

    def receive(self, deadline: float | None = None, silence_s: float | None = None) -> Any:
        """Return the next value.

        Args:
            deadline: (monotonic) when the first part of it must have arrived; None for never.
            silence_s: how long the next part may take after each part; None if all must arrive by the deadline.

        Raises:
            WireError: what arrived is no message.
            ConnectionClosedError: the other side is gone.
            TimeoutError: it took too long.
        """
        while not self._arrived:
            values = self.receive_some(deadline)
            if values is None:
                raise TimeoutError
            self._arrived.extend(values)
            if deadline is not None and silence_s is not None:
                deadline = max(deadline, time.monotonic() + silence_s)
        return self._arrived.popleft()

    def receive_some(self, deadline: float | None = None) -> list[Any] | None:
        """Read once; return the values that are complete now, in order, perhaps none. None at the deadline.

        Don't mix it with ``receive``. Raises ``WireError`` and ``ConnectionClosedError`` as ``receive`` does.
        """
        try:
            ready = self._readable.poll(_milliseconds(deadline))
            content = self.socket.recv(_CHUNK) if ready else b""
        except BlockingIOError:
            raise ConnectionClosedError("it is gone") from None  # only the watched descriptor was ready
        except (OSError, ValueError) as error:  # ValueError: another thread closed the socket
            raise ConnectionClosedError(getattr(error, "strerror", None) or str(error)) from None
        if not ready:
            return None
        if not content:
            raise ConnectionClosedError("it hung up")
        return self.decoder.feed(content)

    def hang_up(self) -> None:
        """Shut the connection down: both sides see its end. Takes no lock, so a signal handler may call it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Calling it twice is fine."""
        self.socket.close()

    def _poll_for(self, events: int) -> select.poll:
        poll = select.poll()
        poll.register(self.socket, events)
        if self._watched >= 0:
            poll.register(self._watched, select.POLLIN)
        return poll


def keep_alive(connected: socket.socket) -> None:
    """Send small messages at once, and notice a machine that vanished."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _milliseconds(deadline: float | None) -> int | None:
    """Return the time left for ``poll``, rounded up, so that nothing spins before a deadline."""
    return None if deadline is None else min(max(0, math.ceil(1000 * (deadline - time.monotonic()))), 1 << 30)
