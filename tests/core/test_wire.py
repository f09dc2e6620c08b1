"""Messages: values arrive as they were sent, malformed input is refused, and deadlines hold."""

from __future__ import annotations

import contextlib
import enum
import math
import os
import socket
import struct
import threading
import time
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tests.strategies import same

from tunegym.core.wire import Connection, ConnectionClosedError, Decoder, WireError, decode, encode, pack

HEADER = struct.Struct("!4sIQ")
MAGIC = b"TGS\x01"

DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness=">"),
    npst.floating_dtypes(sizes=(16, 32, 64), endianness="<"),
    npst.complex_number_dtypes(sizes=(64, 128), endianness="<"),
)
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0)))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.text(),
    st.binary(max_size=40),
    ARRAYS,
    ARRAYS.filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.sampled_from(["$t", "$", "$a", "$d", "$x"])), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(VALUES)
@example({"$t": [1], "a": {"$d": 1}})
@example([math.nan, math.inf, -math.inf, -0.0, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1])
@example(np.zeros((0, 3), np.float32))
@example(np.array(5, np.int8))
def test_round_trip(value: Any) -> None:
    found = decode(encode(value))
    assert same(found, value)


def test_arrays_belong_to_the_receiver() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    views = [array.T, array[:, ::2], np.asfortranarray(array), array[::-1]]
    frame = bytearray(encode(views))
    found = decode(frame)
    frame[:] = bytes(len(frame))
    for one, view in zip(found, views, strict=True):
        assert np.array_equal(one, view)
        assert one.flags.writeable
        assert one.flags.owndata


def test_subclasses_arrive_as_their_base() -> None:
    color = enum.Enum("color", {"RED": "red"}, type=str)
    number = enum.IntEnum("number", {"ONE": 1})
    point = namedtuple("point", "x y")
    value = [color.RED, number.ONE, point(1, 2), OrderedDict(a=1), np.str_("text"), {color.RED: True}]
    assert decode(encode(value)) == ["red", 1, (1, 2), {"a": 1}, "text", {"red": True}]


class Odd(list):
    def __iter__(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        object(), {1: 2}, {None: 2}, [print], {"a": {"b": {1, 2}}}, {"a": Odd()}, 1 << 100_000, "\ud800", {"\ud800": 1},
        np.array(["text"]), np.array([object()]), np.array(["2020-01-01"], "datetime64[D]"), np.longdouble(1),
        np.datetime64("2020-01-01"), np.zeros(2, [("a", "i4")]), np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_that_can_not_be_sent(value: Any) -> None:
    with pytest.raises(WireError, match="sent"):
        encode(value)


def test_depth_is_bounded() -> None:
    deepest = orjson.loads(b"[" * 64 + b"]" * 64)
    assert decode(encode(deepest)) == deepest
    with pytest.raises(WireError, match="deeper than 64"):
        encode([deepest])
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WireError, match="deeper"):
        encode(endless)
    for levels in (65, 500, 5000, 100_000):
        with pytest.raises(WireError):
            decode(frame_of(b"[" * levels + b"]" * levels))


def test_size_is_bounded() -> None:
    frame = encode(bytes(1001))
    header = frame[: HEADER.size]  # refused before anything is kept
    for call, *arguments in (encode, bytes(1001), 1000), (pack, "x" * 1000, 1000), (decode, frame, 1000):
        with pytest.raises(WireError, match="is over the limit of 1,000"):
            call(*arguments)
    with pytest.raises(WireError, match="is over the limit of 1,000"):
        Decoder(1000).feed(header)


def frame_of(text: bytes, rest: bytes = b"") -> bytes:
    return HEADER.pack(MAGIC, len(text), len(rest)) + text + rest


MALFORMED: dict[str, list[tuple[bytes, bytes]]] = {
    "broken JSON": [(b"", b""), (b"{", b""), (b"\xff", b"")],
    "unused bytes": [(b"1", b"x")],
    r"starts with \$": [(b'{"$t":[1],"a":2}', b"")],
    "malformed": [
        (b'{"$f":"00"}', b""),
        (b'{"$i":"zz"}', b""),
        (b'{"$a":["<i4",0,4611686018427387904,4611686018427387904]}', b""),
    ],
    "unknown": [
        *((text, b"") for text in (b'{"$z":1}', b'{"$t":1}', b'{"$d":[]}', b'{"$f":1}', b'{"$a":[]}')),
        *((text, bytes(8)) for text in (b'{"$b":1e3}', b'{"$a":[4,1]}', b'{"$s":["<f8"]}')),
        (b'{"$i":"%s"}' % (b"f" * 5000), b""),
    ],
    "fewer bytes": [
        *((text, b"x") for text in (b'{"$b":-1}', b'{"$b":2}', b'{"$b":true}', b'{"$s":"<f8"}')),
        (b'{"$a":["<i4",4611686018427387904,4611686018427387904]}', bytes(8)),
    ],
    "no type of number": [(b'{"$a":["%s",1]}' % name, bytes(8)) for name in (b"|O", b"<M8[s]", b"<i4,<i4")],
    "impossible shape": [
        (b'{"$a":["<i4",%s]}' % shape, bytes(8)) for shape in (b"-1", b"1.0", b"null", b",".join([b"1"] * 100))
    ],
    "bool with other values": [(b'{"$a":["|b1",2]}', b"\x01\x02")],
}


@pytest.mark.parametrize("reason", MALFORMED)
def test_malformed(reason: str) -> None:
    for document, rest in MALFORMED[reason]:
        with pytest.raises(WireError, match=reason):
            decode(frame_of(document, rest))


@given(st.binary(min_size=HEADER.size).filter(lambda content: content[:4] not in (MAGIC, b"TGP\x01")))
@example(b"GET / HTTP/1.1\r\n\r\n")
def test_other_protocols(content: bytes) -> None:
    with pytest.raises(WireError, match="no message of tunegym's"):
        Decoder().feed(content)


BYTES = st.binary(max_size=64)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["$t", "$a", "$s", "$b", "$f", "$i", "$d", "a"]), inner, max_size=2),
        st.tuples(st.sampled_from(["<i4", "|b1", "|O", ">c16"]), inner).map(lambda pair: {"$a": list(pair)}),
    ),
    max_leaves=10,
)


def changed(value: Any, at: int, by: int) -> bytes:
    """The frame of ``value`` with another byte in one place."""
    frame = bytearray(encode(value))
    frame[at % len(frame)] ^= by
    return bytes(frame)


@given(
    BYTES
    | BYTES.map(MAGIC.__add__)
    | st.builds(frame_of, BYTES | JSON.map(orjson.dumps), BYTES)
    | st.builds(changed, VALUES, st.integers(0), st.integers(1, 255))
)
@settings(max_examples=400)
def test_hostile_frames_are_decoded_or_refused(frame: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(frame)


@given(st.lists(st.tuples(st.booleans(), VALUES), max_size=3), st.data())
@settings(max_examples=40)
def test_in_pieces(messages: list[tuple[bool, Any]], data: st.DataObject) -> None:
    """However the bytes arrive, the same messages come out."""
    content = b"".join(pack("plain") if plain else encode(value) for plain, value in messages)
    decoder = Decoder()
    found = []
    while content:
        size = data.draw(st.integers(1, len(content)))
        found += decoder.feed(content[:size])
        content = content[size:]
    assert same(found, ["plain" if plain else value for plain, value in messages])
    assert decoder.empty


def test_plain_frames() -> None:
    document = {"ids": list(range(1000)), "tags": [{"$t": 1}, None, 1.5, "text"], "key": {3: True}}
    assert decode(pack(document)) == {**document, "key": {"3": True}}
    with pytest.raises(WireError, match="sent"):
        pack({"a": object()})
    with pytest.raises(WireError, match="no message"):
        decode(HEADER.pack(b"TGP\x01", 1, 1) + b"1x")  # a plain frame has no binary part


# connections ------------------------------------------------------------------------------------------

FRAME = encode({"x": np.arange(100_000)})


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours), theirs


def test_a_message_that_has_begun_is_read_after_the_deadline(ends: tuple[Connection, socket.socket]) -> None:
    connection, theirs = ends
    theirs.sendall(FRAME[:100])
    rest = threading.Thread(target=theirs.sendall, args=(FRAME[100:],))
    rest.start()
    assert connection.receive(time.monotonic() - 5.0, silence_s=30.0)["x"].tolist() == list(range(100_000))
    rest.join()
    theirs.sendall(encode(1) + pack(2))
    assert [connection.receive(time.monotonic() - 5.0) for _ in range(2)] == [1, 2]
    theirs.sendall(encode(3) + pack(4))
    assert connection.receive_some() == [3, 4]
    assert connection.receive_some(time.monotonic()) is None


@pytest.mark.parametrize("begun", [b"", FRAME[:100]], ids=["nothing", "a part"])
def test_deadlines(ends: tuple[Connection, socket.socket], begun: bytes) -> None:
    connection, theirs = ends
    theirs.sendall(begun)
    with pytest.raises(TimeoutError):
        connection.receive(time.monotonic() - 5.0, silence_s=0.05)
    with pytest.raises(TimeoutError):
        connection.send(bytes(4 << 20), time.monotonic() + 0.05)


def test_a_watched_descriptor_tells_of_a_death(ends: tuple[Connection, socket.socket]) -> None:
    first, theirs = ends
    reading, writing = os.pipe()
    connection = Connection(first.socket, watched=reading)
    theirs.sendall(encode("last words"))
    os.write(writing, b"x")
    assert connection.receive() == "last words"
    with pytest.raises(ConnectionClosedError, match="gone"):
        connection.receive()
    with pytest.raises(ConnectionClosedError, match="gone"):
        connection.send(bytes(4 << 20))
    os.close(reading)
    os.close(writing)
