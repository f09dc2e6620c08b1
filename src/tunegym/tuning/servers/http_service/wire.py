"""HTTP/1.1 as far as the service needs it: GET over connections that are kept alive, one answer after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

LONGEST_HEAD = 8192
"""Of a request or a response, in bytes."""
LONGEST_KEY = 200

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}
REASONS |= {431: "Request Header Fields Too Large", 503: "Service Unavailable"}

Ask: TypeAlias = Callable[[bytes, Callable[[int, bytes], None]], None]


def response(status: int, body: bytes, *, keep: bool = True) -> bytes:
    """The bytes of a response."""
    connection = "" if keep else "Connection: close\r\n"
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(body)}\r\n{connection}\r\n"
    return head.encode() + body


def request(key: str) -> bytes:
    """The bytes of a request."""
    return f"GET /work?key={key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def asked_for(head: bytes) -> tuple[int, bytes] | bytes:
    """The key that a request's head asks for, or the status and reason of its refusal."""
    line, _, _ = head.partition(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
        return 400, b"this is no HTTP/1.1"
    method, target, _ = parts
    if method != b"GET":
        return 405, b"only GET is answered"
    path, _, query = target.partition(b"?")
    if path != b"/work":
        return 404, b"there is only /work?key=KEY"
    name, _, key = query.partition(b"=")
    if name != b"key" or not 0 < len(key) <= LONGEST_KEY or b"&" in key:
        return 400, b"ask for /work?key=KEY"
    return key


class Connection(asyncio.BufferedProtocol):
    """One client of the service. Requests that come before an answer wait for it, so that answers keep their order."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._room = bytearray(LONGEST_HEAD)
        self._read = b""
        self._asking = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It went; what it asked for is still worked on."""
        self._transport = None

    def get_buffer(self, sizehint: int) -> bytearray:
        """Room for what it says."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """It said something."""
        self._read += self._room[:nbytes]
        self._next()

    def _next(self) -> None:
        """Begin with the next request, if it is there and none is unanswered."""
        while self._transport is not None and not self._asking:
            head, end, rest = self._read.partition(b"\r\n\r\n")
            if not end and len(self._read) <= LONGEST_HEAD:
                return
            found = asked_for(head) if end and len(head) <= LONGEST_HEAD else (431, b"the head is too long")
            if isinstance(found, tuple):
                self._transport.write(response(*found, keep=False))
                self._transport.close()
                return
            self._read = rest
            self._asking = True
            self._ask(found, self._answer)
        if self._transport is not None and len(self._read) > LONGEST_HEAD:  # it asks on without listening
            self._transport.close()

    def _answer(self, status: int, body: bytes) -> None:
        self._asking = False
        if self._transport is not None:
            self._transport.write(response(status, body))
            if self._read:
                asyncio.get_running_loop().call_soon(self._next)
