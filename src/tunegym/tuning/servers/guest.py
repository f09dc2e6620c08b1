"""One connection at a ``tunegym serve``: a stranger first, then somebody with a server process of its own."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

from tunegym.core.wire import Decoder, WireError, encode
from tunegym.tuning.servers.protocol import HELLO_LIMIT, RefusedError, greeting, new_nonce, read_hello
from tunegym.tuning.servers.spawning import ServerProcess, Setup
from tunegym.tuning.workloads.signature import GymClass

HELLO_S = 10.0
"""How long a stranger may take to say who it is."""
HANG_UP_S = 5.0
"""How long a server may go on after its client hung up, so that it can be closed in good order."""

_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Served:
    """What there is to connect to.

    Attributes:
        gym_class: what is served.
        paths: folders whose modules come before all others.
        token: what a client must know.
        marker: what every process carries.
        output: descriptor that servers print to.
    """

    gym_class: GymClass
    paths: tuple[str, ...]
    token: str
    marker: str
    output: int


class Guest:
    """A connection, driven by whoever polls; no call waits, but for the ending of processes.

    Args:
        connected: the accepted socket.
        served: what there is.

    Attributes:
        name: for messages.
        process: the server's, once the client was let in.
        deadline: when (monotonic) the guest must have moved on; None for never.
    """

    def __init__(self, connected: socket.socket, served: Served) -> None:
        connected.setblocking(False)
        self.name = f"connection {next(_numbers)}"
        self.process: ServerProcess | None = None
        self.deadline: float | None = time.monotonic() + HELLO_S
        self._socket = connected
        self._served = served
        self._decoder = Decoder(HELLO_LIMIT)
        self._nonce = new_nonce()
        self._hung_up = False
        self._arguments: dict[str, Any] | None = None

    @property
    def introduced(self) -> bool:
        """Whether it has said who it is, and may be let in."""
        return self._arguments is not None

    @property
    def is_leaving(self) -> bool:
        """Whether its client has hung up, so that its server will have ended before long."""
        return self._hung_up

    def greet(self) -> None:
        """Say who we are."""
        self._send(greeting(self._nonce))

    def interests(self) -> list[tuple[int, int]]:
        """Descriptors, and the events on them that the guest waits for."""
        if self.process is None:
            return [(self._socket.fileno(), select.POLLIN)]
        found = [] if self._hung_up else [(self._socket.fileno(), _HUNG_UP)]
        return [*found, (self.process.pidfd, select.POLLIN)] if self.process.pidfd >= 0 else found

    def hear(self) -> None:
        """Of a stranger: take what it says. Raises ``RefusedError`` if it isn't to be let in, or has gone."""
        try:
            content = self._socket.recv(HELLO_LIMIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise RefusedError(f"it broke off: {error.strerror}") from None
        if not content:
            raise RefusedError("it hung up before it was let in")
        if self.introduced:
            raise RefusedError("it said more than hello")
        try:
            found = self._decoder.feed(content)
        except WireError as error:
            raise RefusedError(str(error), "connect with tunegym") from None
        if not found:
            return
        if len(found) > 1 or not self._decoder.empty:
            raise RefusedError("it said more than hello")
        said = read_hello(found[0], self._served.token, self._nonce, self._served.gym_class)
        self._arguments, self._accepted = said

    def let_in(self) -> None:
        """Start a server for the client, and hand the connection over to it. Raises ``RefusedError``."""
        served, arguments = self._served, self._arguments
        assert arguments is not None
        self._send(self._accepted)
        setup = Setup(served.gym_class.reference, arguments, served.paths)
        marker = f"{served.marker}/{self.name.replace(' ', '-')}"
        try:
            self.process = ServerProcess(setup, self._socket, marker=marker, output=served.output)
        except OSError as error:
            self._send(["lost", f"no process can be started for it: {error}"])
            raise RefusedError(f"no process can be started: {error}", passing=True) from error
        self.deadline = None

    def refuse(self, refusal: RefusedError) -> None:
        """Say why, and hang up."""
        self._send(refusal.message())
        self.close()

    def hung_up(self, patience_s: float = HANG_UP_S) -> None:
        """The client is gone, or has to go: the server hears of it, and has a while to end by itself."""
        if not self._hung_up:
            self._hung_up = True
            self.deadline = time.monotonic() + patience_s
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def ended(self) -> str:
        """End what is left of the server, hang up, and say how it ended."""
        assert self.process is not None
        by_itself = self.process.wait(0.0)
        ending = self.process.finish(0.0).describe()
        if self._hung_up:
            self.close()
            return "ended" if by_itself else "ended, as it went on after its client had hung up"
        # It may have died in the middle of an answer. Then this makes it no better, and no worse.
        self._send(["lost", ending])
        self.close()
        return ending

    def close(self) -> None:
        """Hang up: also for what the server forked, which may hold the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, message: Any) -> None:
        """Little enough for the system to take it at once; if it doesn't, the client doesn't listen."""
        with contextlib.suppress(OSError):
            self._socket.send(encode(message))
