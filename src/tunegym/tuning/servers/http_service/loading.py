"""The load: requests that come when they come, whether or not earlier ones were answered.

A request's latency counts from the instant that it was due, so what it waited for a free connection is in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any

from tunegym.tuning.servers.http_service.arrivals import Arrivals
from tunegym.tuning.servers.http_service.tally import Tally
from tunegym.tuning.servers.http_service.wire import LONGEST_HEAD, request

MOST_CONNECTIONS = 400
"""More than the service takes in at once, so that its own limit is the one that counts."""
MOST_WAITING = 4000
"""Requests without a connection; further ones fail at once."""
IDLE_S = 1.0
"""Without a window to measure, load goes on for no longer than this."""
BEHIND_S = 1.0
"""A generator that was held up makes up for no more than this."""


@dataclass(frozen=True, slots=True)
class _Request:
    number: int
    key: str


class Load:
    """Sends requests to a port of loopback. One thread, that of the running event loop, calls it."""

    def __init__(self, port: int, arrivals: Arrivals) -> None:
        self.port = port
        self.arrivals = arrivals
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._free: list[_Client] = []
        self._connections = 0
        self._opening: set[asyncio.Task[None]] = set()
        self._open: set[int] = set()
        self._waiting: deque[_Request] = deque()
        self._tally: Tally | None = None
        self._next: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._until = 0.0
        self._counts: dict[str, int] = dict.fromkeys(("due", "sent", "answered", "refused", "failed"), 0)

    def flow(self, until: float) -> None:
        """Let requests come until then, and not much longer."""
        self._until = until + IDLE_S
        if self._next is None:
            self._due = self._loop.time()
            self._schedule()

    def turn(self, rate: float, skew: float) -> None:
        """Another rate, from now on."""
        if rate != self.arrivals.rate and self._next is not None:
            self._next.cancel()
            self._due = self._loop.time()
            self.arrivals.turn(rate, skew)
            self._schedule()
        self.arrivals.turn(rate, skew)

    async def watch(self, tally: Tally) -> dict[str, Any]:
        """What becomes of the requests of a window.

        Also when it was ``heard`` of: after it began, some are missing; and how ``late_s`` this process was, with a
        request or with the end.
        """
        heard = self._loop.time()
        self._tally = tally
        self.flow(tally.end + tally.target_s)
        await asyncio.sleep(tally.end + tally.target_s - self._loop.time())
        self._tally = None
        now = self._loop.time()
        late_s = max(tally.late_s, now - tally.end - tally.target_s)
        return {**tally.summary(now), "heard": heard, "late_s": late_s}

    async def drain(self, patience_s: float) -> None:
        """No further requests, and those that are there answered, if that takes no longer than this."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        deadline = self._loop.time() + patience_s
        while self.in_flight and self._loop.time() < deadline:
            await asyncio.sleep(0.002)

    @property
    def in_flight(self) -> int:
        """Requests that have got no answer yet, whether or not they were sent."""
        return len(self._open)

    def counts(self) -> dict[str, int]:
        """Everything since the beginning."""
        return {**self._counts, "waiting": len(self._waiting), "in_flight": self.in_flight}

    # requests ---------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._due += self.arrivals.gap()
        self._next = self._loop.call_at(self._due, self._come)

    def _come(self) -> None:
        now = self._loop.time()
        self._next = None
        if now > self._until:
            return
        self._due = max(self._due, now - BEHIND_S)
        while self._due <= now:
            self._request(self._due, now)
            self._due += self.arrivals.gap()
        self._next = self._loop.call_at(self._due, self._come)

    def _request(self, due: float, now: float) -> None:
        wanted = _Request(next(self._numbers), self.arrivals.key())
        self._counts["due"] += 1
        self._open.add(wanted.number)
        if self._tally is not None:
            self._tally.due(wanted.number, due, now)
        if self._free:
            self._send(self._free.pop(), wanted)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append(wanted)
            if self._connections + len(self._opening) < MOST_CONNECTIONS:
                self._open_connection()
        else:
            self.done(wanted, 0)

    def _send(self, client: _Client, wanted: _Request) -> None:
        self._counts["sent"] += 1
        client.send(wanted)

    def done(self, wanted: _Request, status: int) -> None:
        """A request has its answer, or (0) will get none."""
        self._open.remove(wanted.number)
        self._counts[{200: "answered", 503: "refused"}.get(status, "failed")] += 1
        if self._tally is not None:
            self._tally.done(wanted.number, status, self._loop.time())

    # connections ------------------------------------------------------------------------------------------

    def _open_connection(self) -> None:
        task = self._loop.create_task(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(lambda: _Client(self), "127.0.0.1", self.port)
        except OSError:
            if not self._connections and len(self._opening) == 1:  # nobody is left who could ever send them
                while self._waiting:
                    self.done(self._waiting.popleft(), 0)

    def opened(self) -> None:
        """There is one more connection."""
        self._connections += 1

    def closed(self, client: _Client) -> None:
        """There is one less."""
        self._connections -= 1
        if client in self._free:
            self._free.remove(client)

    def free(self, client: _Client) -> None:
        """A connection has nothing to do: the request that has waited for longest takes it."""
        if self._waiting:
            self._send(client, self._waiting.popleft())
        else:
            self._free.append(client)


class _Client(asyncio.BufferedProtocol):
    """One connection that is kept alive, with one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._room = bytearray(LONGEST_HEAD)
        self._read = b""
        self._wanted: _Request | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._load.opened()
        self._load.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.closed(self)
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._load.done(wanted, 0)

    def send(self, wanted: _Request) -> None:
        self._wanted = wanted
        self._transport.write(request(wanted.key))

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._read += self._room[:nbytes]
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end or len(body) < _length(head):
            return
        self._read = b""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._load.done(wanted, int(head[9:12]))
            self._load.free(self)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
