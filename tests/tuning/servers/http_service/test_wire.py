from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tunegym.tuning.servers.http_service.wire import LONGEST_HEAD, Connection, asked_for, request, response

END = b"\r\n\r\n"


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


class Talk:
    """A connection whose answers are given by the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, Callable[[int, bytes], None]]] = []
        self.connection = Connection(lambda key, answer: self.asked.append((key, answer)))
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def say(self, text: bytes) -> None:
        while text:
            room = self.connection.get_buffer(-1)
            part, text = text[: len(room)], text[len(room) :]
            room[: len(part)] = part
            self.connection.buffer_updated(len(part))

    async def answer(self, body: bytes) -> None:
        self.asked[-1][1](200, body)
        await asyncio.sleep(0)

    @property
    def keys(self) -> list[bytes]:
        return [key for key, _ in self.asked]


def test_what_the_load_asks_is_what_the_service_reads() -> None:
    head, end, rest = request("k7").partition(END)
    assert (asked_for(head), end, rest) == (b"k7", END, b"")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"hello", 400),
        (b"GET /work?key=a", 400),
        (b"GET /work HTTP/1.1", 400),
        (b"GET /work?key= HTTP/1.1", 400),
        (b"GET /work?key=" + b"x" * 201 + b" HTTP/1.1", 400),
        (b"GET /work?key=a&key=b HTTP/1.1", 400),
        (b"POST /work?key=a HTTP/1.1", 405),
        (b"GET /etc/passwd HTTP/1.1", 404),
    ],
)
def test_what_is_not_understood_is_refused_and_ended(head: bytes, status: int) -> None:
    talk = Talk()
    talk.say(head + END)
    assert talk.transport.written.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Connection: close" in talk.transport.written
    assert talk.transport.closed
    assert not talk.asked


def test_a_head_without_end_is_refused() -> None:
    talk = Talk()
    talk.say(b"GET /work?key=a HTTP/1.1\r\nX: " + b"x" * LONGEST_HEAD)
    assert talk.transport.written.startswith(b"HTTP/1.1 431 ")
    assert talk.transport.closed


def test_answers_keep_the_order_of_the_requests() -> None:
    async def body() -> None:
        talk = Talk()
        talk.say(request("a") + request("b") + request("c")[:5])
        assert talk.keys == [b"a"]
        await talk.answer(b"A")
        assert talk.keys == [b"a", b"b"]
        await talk.answer(b"B")
        talk.say(request("c")[5:])
        assert talk.keys == [b"a", b"b", b"c"]
        await talk.answer(b"C")
        assert talk.transport.written == response(200, b"A") + response(200, b"B") + response(200, b"C")
        assert not talk.transport.closed

    asyncio.run(body())


def test_a_client_that_never_listens_is_let_go() -> None:
    talk = Talk()
    talk.say(request("a") + request("b") * 400)
    assert talk.keys == [b"a"]
    assert talk.transport.closed


def test_an_answer_to_a_client_that_went() -> None:
    talk = Talk()
    talk.say(request("a"))
    talk.connection.connection_lost(None)
    talk.asked[0][1](200, b"A")
    assert talk.transport.written == b""
