"""``tunegym serve``: accepts connections and starts a server process for each, so that none can harm another.

A thread attends to each connection. It greets, checks the token, waits for a free place, hands the socket to a server
process (see ``serve``), and ends that process when the client has gone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunegym.core.errors import ConfigError, Problem, TunegymError, UnresolvedReferenceError
from tunegym.core.processes import Child
from tunegym.core.stop import StopFlag
from tunegym.core.wire import Connection, ConnectionClosedError, WireError, keep_alive
from tunegym.tuning.servers.process import start_server
from tunegym.tuning.servers.protocol import HELLO_LIMIT, RefusedError, greeting, new_nonce, read_hello
from tunegym.tuning.workloads.signature import GymClass, describe_class

STRANGERS = 32
"""Connections that may be in their handshake at a time."""
HELLO_S = 10.0
"""How long a client may take to introduce itself."""
HANG_UP_S = 5.0
"""How long a server may continue after its client hung up, so that it can close in good order."""

_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Offer:
    """A class to serve: modules of ``folder`` come before all others, and servers print to the descriptor ``output``.

    Clients must know the ``token``; ``max_connections`` servers run at a time.
    """

    gym_class: GymClass
    folder: Path
    token: str
    max_connections: int = 8
    output: int = 2


def checked_class(reference: str, folder: Path) -> GymClass:
    """Return the class that is to be served. Raises ``ConfigError`` if it can't be."""
    try:
        return describe_class(reference, (str(folder),))
    except UnresolvedReferenceError as error:
        problem = Problem("MODULE:CLASS", error.message, found=reference, hint=error.hint)
        raise ConfigError("tunegym serve", [problem]) from None


class ServerListener:
    """Listens on an address until it is stopped.

    Args:
        offer: the class to serve, and on which terms.
        host: name or address to listen on.
        port: 0 for any that is free.
        say: called with a line for each event.

    Raises:
        TunegymError: the address can't be listened on.
    """

    def __init__(self, offer: Offer, host: str, port: int, say: Callable[[str], None]) -> None:
        self._offer = offer
        self._say = say
        self._socket = _listen(host, port)
        self._marker = f"serve-{uuid.uuid4().hex}"
        self._numbers = itertools.count(1)
        self._strangers = threading.Semaphore(STRANGERS)
        self._places = threading.Semaphore(offer.max_connections)
        self._threads: set[threading.Thread] = set()

    @property
    def address(self) -> str:
        """Where to connect to, as a scenario writes it."""
        host, port = self._socket.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def run(self, stop: StopFlag) -> None:
        """Serve until ``stop`` is set; set twice, servers get no time to end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(stop.fd, select.POLLIN)
        try:
            while not stop.is_set:
                poll.poll()
                if not stop.is_set:
                    self._accept(stop)
        finally:
            self._socket.close()
            for thread in list(self._threads):
                thread.join()

    def _accept(self, stop: StopFlag) -> None:
        try:
            connected, address = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # most likely out of file descriptors
            self._say(f"a connection can't be accepted: {error}")
            time.sleep(0.1)
            return
        connected.setblocking(False)
        keep_alive(connected)
        name = f"connection {next(self._numbers)} from {address[0]}"
        thread = threading.Thread(target=self._attend, args=(Connection(connected, limit=HELLO_LIMIT), name, stop))
        self._threads = {one for one in self._threads if one.is_alive()} | {thread}
        thread.start()

    def _attend(self, connection: Connection, name: str, stop: StopFlag) -> None:
        """Handle one connection to its end."""
        try:
            if not self._strangers.acquire(blocking=False):
                raise RefusedError("too many are about to connect", passing=True)
            try:
                arguments, accepted = self._introduce(connection, stop)
                self._take_place(stop)
            finally:
                self._strangers.release()
        except RefusedError as refusal:
            self._say(f"{name}: refused: {refusal.reason}")
            _send(connection, refusal.message())
            connection.hang_up()
            connection.close()
            return
        try:
            _send(connection, accepted)
            self._say(f"{name}: {self._serve(connection, arguments, name, stop)}")
        finally:
            self._places.release()
            connection.hang_up()  # also for processes that the server forked, which may hold the connection
            connection.close()

    def _introduce(self, connection: Connection, stop: StopFlag) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the constructor's arguments, and the answer that accepts the client. Raises ``RefusedError``."""
        nonce = new_nonce()
        _send(connection, greeting(nonce))
        deadline = time.monotonic() + HELLO_S
        while True:
            if stop.is_set:
                raise RefusedError("the server stops", passing=True)
            try:
                messages = connection.receive_some(min(deadline, time.monotonic() + _POLL_S))
            except ConnectionClosedError:
                raise RefusedError("it hung up before it was let in") from None
            except WireError as error:
                raise RefusedError(str(error), "connect with tunegym") from None
            if messages:
                if len(messages) > 1:
                    raise RefusedError("it said more than hello")
                return read_hello(messages[0], self._offer.token, nonce, self._offer.gym_class)
            if time.monotonic() >= deadline:
                raise RefusedError("it did not say who it is in time")

    def _take_place(self, stop: StopFlag) -> None:
        """Wait for the place of a server that is about to end. Raises ``RefusedError``."""
        deadline = time.monotonic() + HANG_UP_S + 1.0
        while not self._places.acquire(timeout=_POLL_S):
            if stop.is_set or time.monotonic() >= deadline:
                most = self._offer.max_connections
                reason = f"it already serves {most} connection{'' if most == 1 else 's'}, and no more are allowed"
                raise RefusedError(reason, "serve with a higher --max-connections", passing=True)

    def _serve(self, connection: Connection, arguments: dict[str, Any], name: str, stop: StopFlag) -> str:
        """Start a server process, and return how it ended."""
        offer = self._offer
        marker = f"{self._marker}/{name.replace(' ', '-')}"
        try:
            setup = offer.gym_class.reference, arguments, (str(offer.folder),)
            process = start_server(*setup, connection.socket, marker=marker, output=offer.output)
        except OSError as error:
            reason = f"no process can be started for it: {error}"
            _send(connection, ["lost", reason])
            return reason
        self._say(f"{name}: served by process {process.pid}")
        gone = self._watch(connection, process, stop)
        by_itself = process.has_ended()
        ending = process.end(0.0).describe()
        if gone:
            return "ended" if by_itself else "ended, as it continued after its client had hung up"
        # If it died in the middle of an answer, the client sees that the message is broken, either way.
        _send(connection, ["lost", ending])
        return ending

    def _watch(self, connection: Connection, process: Child, stop: StopFlag) -> bool:
        """Wait until the process should have ended; return whether its client hung up, or had to."""
        poll = select.poll()
        poll.register(connection.socket, _HUNG_UP)
        for fd in (process.pidfd, stop.fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(None if process.pidfd >= 0 else 1000 * _POLL_S)}
            if process.has_ended():
                return False
            if ready:
                break
        connection.hang_up()
        process.wait(HANG_UP_S, stop_fd=stop.hurry_fd)
        return True


def _send(connection: Connection, message: Any) -> None:
    """Send a small message; a client that doesn't read it has gone."""
    with contextlib.suppress(ConnectionClosedError, TimeoutError):
        connection.send(message, time.monotonic() + 1.0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=STRANGERS)
    except socket.gaierror as error:
        raise TunegymError(f"{host} is nothing to listen on: {error.strerror}", hint="try 127.0.0.1") from None
    except OSError as error:
        hint = "choose another --port, or 0 for any that is free"
        raise TunegymError(f"{host}:{port} can't be listened on: {os.strerror(error.errno or 0)}", hint=hint) from None
    listener.setblocking(False)
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(str(address[0]).startswith("127.") or address[0] == "::1" for *_, address in found)
    return False
