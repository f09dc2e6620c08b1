"""A client's end of a ledger host in another process: calls that are repeated until they are answered, once."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.dataplane.errors import ClosedError, DataPlaneError, NoPlaneError
from tunegym.dataplane.hosts.clients import myself
from tunegym.dataplane.hosts.frames import Inbox, pack
from tunegym.dataplane.hosts.operations import as_error
from tunegym.dataplane.hosts.server import FORMAT

_CHUNK = 1 << 20
RETRY_S = 0.05


@dataclass
class _Call:
    """A call under way."""

    frame: bytes
    done: bool = False
    reply: Any = None
    nudged: threading.Event = field(default_factory=threading.Event)

    def finish(self) -> None:
        """Its thread need wait no more."""
        self.done = True
        self.nudged.set()


class SocketHost:
    """Talks to a ledger host. Any thread may call; each takes what arrives, also for the others.

    When the connection breaks, somebody connects anew, starting the host again if it is gone, and every call that is
    not answered is sent again, under its old number: the host knows which took effect.

    Args:
        connect: gives a connected socket, or raises ``NoPlaneError``.
        patience_s: how long it is tried to reach a host that is gone.
    """

    durable = True

    def __init__(self, connect: Callable[[], socket.socket], patience_s: float = 30.0) -> None:
        self._connect = connect
        self._patience_s = patience_s
        self._guard = threading.Lock()
        self._reading = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._closed = False
        self._pid = os.getpid()
        self.name = uuid.uuid4().hex
        self._socket: socket.socket | None = None
        self._inbox = Inbox()
        with self._guard:
            self._reconnect()

    def call(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0) -> Any:
        """See ``Host``."""
        call = self._send(operation, arguments, wait_s)
        try:
            while not call.done:
                self._take_in(call)
        finally:
            with self._guard:
                self._calls = {number: one for number, one in self._calls.items() if one is not call}
            self._hand_over()
        if call.reply is None:
            raise ClosedError("the client was closed while it waited")
        if "error" in call.reply:
            raise as_error(call.reply)
        return call.reply["value"]

    def _send(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None) -> _Call:
        with self._guard:
            self._check_open()
            number = self._next
            below = min(self._calls, default=number)
            call = _Call(pack([number, below, operation, arguments, wait_s]))
            self._next += 1
            self._calls[number] = call
            try:
                assert self._socket is not None
                self._socket.sendall(call.frame)
            except OSError:
                self._reconnect()
        return call

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                "this client belongs to the process that made it, and this is a fork of it",
                hint="call connect or attach in each process",
            )
        if self._closed:
            raise ClosedError("the client is closed")

    # what arrives -------------------------------------------------------------------------------------

    def _take_in(self, call: _Call) -> None:
        """One thread at a time reads; the others wait for it, and one takes over when it has its own answer."""
        if not self._reading.acquire(blocking=False):
            call.nudged.wait()
            call.nudged.clear()
            return
        try:
            while not call.done and not self._closed:
                self._read()
            if self._closed:
                call.finish()
        finally:
            self._reading.release()

    def _hand_over(self) -> None:
        """Somebody who still waits reads from now on, unless somebody does already."""
        if not self._reading.locked():
            other = next((one for one in self._calls.values() if not one.done), None)
            if other is not None:
                other.nudged.set()

    def _read(self) -> None:
        connected = self._socket
        assert connected is not None
        try:
            ready, _, _ = select.select([connected], [], [], 1.0)
            if not ready:
                return
            content = connected.recv(_CHUNK)
            messages = self._inbox.add(content) if content else None
        except (OSError, ValueError):
            messages = None
        if messages is None:
            if self._closed:
                return
            with self._guard:
                if self._socket is connected:
                    self._reconnect()
            return
        for number, reply in messages:
            waiting = self._calls.get(number)
            if waiting is not None:
                waiting.reply = reply
                waiting.finish()

    def _reconnect(self) -> None:
        """Reach a host, and send what is not answered again. The guard is held."""
        until = time.monotonic() + self._patience_s
        while True:
            if self._closed:
                raise ClosedError("the client is closed")
            fresh: socket.socket | None = None
            try:
                fresh = self._connect()
                inbox = _introduced(fresh, self.name)
                for call in self._calls.values():
                    if not call.done:
                        fresh.sendall(call.frame)
            except BaseException as error:
                if fresh is not None:
                    fresh.close()
                if not isinstance(error, OSError | ValueError):
                    raise
                if time.monotonic() > until:
                    raise NoPlaneError(f"the plane's host can't be reached: {error}") from error
                time.sleep(RETRY_S)
                continue
            old, self._socket, self._inbox = self._socket, fresh, inbox
            if old is not None:
                old.close()
            return

    def close(self) -> None:
        """See ``Host``."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            connected = self._socket
            if connected is not None and self._pid == os.getpid():
                with contextlib.suppress(OSError):
                    connected.sendall(pack(["bye"]))
                    connected.shutdown(socket.SHUT_RDWR)
            for call in self._calls.values():
                call.finish()
        if connected is not None:
            connected.close()


def _introduced(connected: socket.socket, name: str) -> Inbox:
    """Say who one is; what arrives after the answer stays in the inbox. Raises ``OSError`` or ``DataPlaneError``."""
    connected.settimeout(30.0)
    connected.sendall(pack({"format": FORMAT, "client": myself(name)}))
    inbox = Inbox()
    while True:
        content = connected.recv(_CHUNK)
        if not content:
            raise ConnectionResetError("it hung up")
        messages = inbox.add(content)
        if messages:
            break
    if "error" in messages[0]:
        raise as_error(messages[0])
    connected.settimeout(None)
    return inbox


__all__ = ["DataPlaneError", "SocketHost"]
