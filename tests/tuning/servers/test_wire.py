"""Messages: what goes in comes out, and what is no message is refused."""

from __future__ import annotations

import enum
import math
import struct
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tunegym.tuning.servers.channel import Inbox
from tunegym.tuning.servers.frames import HEADER, MAGIC, WireError
from tunegym.tuning.servers.wire import decode, encode

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


def same(one: Any, other: Any) -> bool:
    """Equal in type and to the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype.str == other.dtype.str and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@given(VALUES)
@example({"$t": [1], "a": {"$d": 1}})
@example([math.nan, math.inf, -math.inf, -0.0, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1])
@example(np.zeros((0, 3), np.float32))
@example(np.array(5, np.int8))
def test_round_trip(value: Any) -> None:
    found = decode(encode(value))
    assert same(found, value)


def test_arrays_are_the_receivers_own() -> None:
    frame = bytearray(encode([np.arange(4), np.arange(4)]))
    one, other = decode(frame)
    one[:] = 9
    assert list(other) == [0, 1, 2, 3]
    frame[:] = bytes(len(frame))
    assert list(other) == [0, 1, 2, 3]
    assert one.flags.writeable
    assert one.flags.owndata


def test_what_is_derived_arrives_as_its_base() -> None:
    color = enum.Enum("color", {"RED": "red"}, type=str)
    number = enum.IntEnum("number", {"ONE": 1})
    point = namedtuple("point", "x y")
    value = [color.RED, number.ONE, point(1, 2), OrderedDict(a=1), np.str_("text"), {color.RED: True}]
    assert decode(encode(value)) == ["red", 1, (1, 2), {"a": 1}, "text", {"red": True}]


def test_arrays_in_any_order_of_memory() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    for view in (array.T, array[:, ::2], np.asfortranarray(array), array[::-1]):
        assert np.array_equal(decode(encode(view)), view)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1: 2},
        {None: 2},
        [print],
        {"a": {"b": {1, 2}}},
        np.array(["text"]),
        np.array([object()]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.datetime64("2020-01-01"),
        np.zeros(2, [("a", "i4")]),
        np.longdouble(1),
        np.ma.masked_array([1, 2], [True, False]),
        1 << 100_000,
        "\ud800",
        {"\ud800": 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_not_be_sent(value: Any) -> None:
    with pytest.raises(WireError, match="sent"):
        encode(value)


def test_what_raises_while_it_is_read() -> None:
    class Odd(list):
        def __iter__(self) -> Any:
            raise RuntimeError("no")

    with pytest.raises(WireError, match="RuntimeError: no"):
        encode({"a": Odd()})


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    assert decode(encode(nested(64))) == nested(64)
    with pytest.raises(WireError, match="deeper than 64"):
        encode(nested(65))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WireError, match="deeper"):
        encode(endless)
    for levels in (65, 500, 5000, 100_000):
        with pytest.raises(WireError):
            decode(frame_of(b"[" * levels + b"]" * levels))


def test_size_is_bounded() -> None:
    with pytest.raises(WireError, match="is more than the 1,000 that are allowed"):
        encode(bytes(1001), limit=1000)
    frame = encode(bytes(1001))
    with pytest.raises(WireError, match="is more than the 1,000 that are allowed"):
        decode(frame, limit=1000)
    inbox = Inbox(1000)
    with pytest.raises(WireError, match="is more than the 1,000 that are allowed"):
        inbox.add(frame[: HEADER.size])  # before anything of it is taken


def frame_of(text: bytes, rest: bytes = b"") -> bytes:
    return HEADER.pack(MAGIC, len(text), len(rest)) + text + rest


@pytest.mark.parametrize(
    ("document", "rest", "reason"),
    [
        (b"", b"", "broken JSON"),
        (b"{", b"", "broken JSON"),
        (b"\xff", b"", "broken JSON"),
        (b"1", b"x", "belong to nothing"),
        (b'{"$z":1}', b"", "unknown"),
        (b'{"$t":1}', b"", "int where a list belongs"),
        (b'{"$t":[1],"a":2}', b"", r"starts with \$"),
        (b'{"$d":[]}', b"", "list where a dict belongs"),
        (b'{"$f":"00"}', b"", "makes no sense"),
        (b'{"$f":1}', b"", "int where a str belongs"),
        (b'{"$i":"zz"}', b"", "makes no sense"),
        (b'{"$i":"%s"}' % (b"f" * 5000), b"", "digits"),
        (b'{"$b":-1}', b"", "fewer bytes"),
        (b'{"$b":2}', b"x", "fewer bytes"),
        (b'{"$b":true}', b"x", "fewer bytes"),
        (b'{"$b":1e3}', b"x", "fewer bytes"),
        (b'{"$a":[]}', b"", "makes no sense"),
        (b'{"$a":["|O",1]}', bytes(8), "no kind of number"),
        (b'{"$a":["<M8[s]",1]}', bytes(8), "no kind of number"),
        (b'{"$a":["<i4,<i4",1]}', bytes(8), "no kind of number"),
        (b'{"$a":[4,1]}', bytes(8), "no kind of number"),
        (b'{"$a":["<i4",-1]}', bytes(8), "impossible shape"),
        (b'{"$a":["<i4",1.0]}', bytes(8), "impossible shape"),
        (b'{"$a":["<i4",null]}', bytes(8), "impossible shape"),
        (b'{"$a":["<i4",4611686018427387904,4611686018427387904]}', bytes(8), "fewer bytes"),
        (b'{"$a":["<i4",0,4611686018427387904,4611686018427387904]}', b"", "makes no sense"),
        (b'{"$a":["<i4",%s]}' % b",".join([b"1"] * 100), bytes(4), "impossible shape"),
        (b'{"$a":["|b1",2]}', b"\x01\x02", "bool that holds something else"),
        (b'{"$s":"<f8"}', bytes(7), "fewer bytes"),
        (b'{"$s":["<f8"]}', bytes(8), "no kind of number"),
    ],
)
def test_malformed(document: bytes, rest: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode(frame_of(document, rest))


@pytest.mark.parametrize(
    "content", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaa", bytes(64)]
)
def test_other_protocols(content: bytes) -> None:
    with pytest.raises(WireError, match="no message of tunegym's"):
        Inbox().add(content)


@given(st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    for frame in (content, MAGIC + content, frame_of(content), frame_of(content[:20], content[20:])):
        try:
            decode(frame)
        except WireError:
            continue


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["$t", "$a", "$s", "$b", "$f", "$i", "$d", "a"]), inner, max_size=2),
        st.tuples(st.sampled_from(["<i4", "|b1", "|O", ">c16"]), inner).map(lambda pair: {"$a": list(pair)}),
    ),
    max_leaves=10,
)


@given(JSON, st.binary(max_size=64))
@settings(max_examples=150)
def test_any_json(document: Any, rest: bytes) -> None:
    try:
        decode(frame_of(orjson.dumps(document), rest))
    except WireError:
        return


@given(VALUES, st.data())
def test_one_byte_is_another(value: Any, data: st.DataObject) -> None:
    frame = bytearray(encode(value))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    try:
        decode(frame)
    except WireError:
        return


@given(st.lists(VALUES, max_size=3), st.data())
@settings(max_examples=30)
def test_in_pieces(values: list[Any], data: st.DataObject) -> None:
    """However the bytes arrive, the same messages come out."""
    content = b"".join(map(encode, values))
    inbox = Inbox()
    found = []
    at = 0
    while at < len(content):
        size = data.draw(st.integers(1, len(content) - at))
        inbox.add(content[at : at + size])
        at += size
        while (message := inbox.take()) is not None:
            found.append(message[0])
    assert same(found, values)
    assert inbox.empty
