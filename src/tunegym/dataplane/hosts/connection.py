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
from tunegym.dataplane.hosts.base import Handle
from tunegym.dataplane.hosts.clients import myself
from tunegym.dataplane.hosts.frames import Inbox, pack
from tunegym.dataplane.hosts.operations import WAITING, as_error
from tunegym.dataplane.hosts.server import FORMAT

_CHUNK = 1 << 16
_LOOK_MS = 1000
RETRY_S = 0.05
NUDGE_S = 1.0
"""When a thread that waits looks by itself whether anybody reads: whoever did may have been interrupted."""


@dataclass
class _Call:
    """A call under way.

    Attributes:
        number: 0 before it is sent.
        kept: the host must not forget its answer yet.
    """

    operation: str
    arguments: Mapping[str, Any]
    number: int = 0
    frame: bytes = b""
    done: bool = False
    reply: Any = None
    kept: bool = False
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
        self._reader: _Call | None = None
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._closed = False
        self._pid = os.getpid()
        self.name = uuid.uuid4().hex
        self._socket: socket.socket | None = None
        self._inbox = Inbox()
        with self._guard:
            self._reconnect()

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """See ``Host``."""
        self._check_process()
        call = _Call(operation, arguments)
        handle = Handle() if handle is None else handle
        handle.under_way = call
        try:
            self._send(call, wait_s, handle)
            while not call.done:
                self._take_in(call)
        except DataPlaneError:
            raise
        except BaseException:
            call.kept = operation in WAITING  # whoever called abandons it
            raise
        finally:
            call.done = True  # it is not sent again
            self._forget(call)
        if call.reply is None:
            raise ClosedError("the client was closed while it waited")
        if "error" in call.reply:
            raise as_error(call.reply)
        return call.reply["value"]

    def _send(self, call: _Call, wait_s: float | None, handle: Handle) -> None:
        with self._guard:
            if self._closed:
                raise ClosedError("the client is closed")
            if handle.abandoned:
                raise ClosedError("the call was given up")
            self._calls = {number: one for number, one in self._calls.items() if one.kept or not one.done}
            below = min(self._calls, default=self._next)
            call.frame = pack([self._next, below, call.operation, call.arguments, wait_s])
            call.number = self._next
            self._next += 1
            self._calls[call.number] = call
            try:
                assert self._socket is not None
                self._socket.sendall(call.frame)
            except OSError:
                try:
                    self._reconnect()
                except BaseException:
                    del self._calls[call.number]  # whoever called is told that it failed: it must not be sent later
                    raise
            except BaseException:
                self._break()
                raise

    def _forget(self, call: _Call) -> None:
        """Unless it is kept; and somebody who still waits reads from now on, unless somebody does already."""
        with self._guard:
            if not call.kept:
                self._calls = {number: one for number, one in self._calls.items() if one is not call}
            if self._reader is call:
                self._reader = None
            if self._reader is None:
                other = next((one for one in self._calls.values() if not one.done), None)
                if other is not None:
                    other.nudged.set()

    def abandon(self, handle: Handle) -> bool:
        """See ``Host``."""
        self._check_process()
        with self._guard:
            handle.abandoned = True
            call: _Call | None = handle.under_way
            if call is None or not call.number:
                return False
            call.kept = call.reply is None
        given = {"partition_id": call.arguments["partition_id"], "task_name": call.arguments.get("task_name")}
        if not call.kept:
            took_effect = "error" not in call.reply
            if took_effect and call.operation == "claim":
                given |= {name: call.reply["value"][name] for name in ("sample_ids", "leases")}
                with contextlib.suppress(DataPlaneError):  # they are lost already, or as soon as we are
                    self.call("release", given)
            return took_effect
        try:
            return self.call("give_up", {**given, "operation": call.operation, "number": call.number})
        except DataPlaneError:  # whoever can't reach the host is soon gone
            return False
        finally:
            call.kept = False
            self._forget(call)

    def _check_process(self) -> None:
        """Before anything is touched: in a fork, locks may be held by threads that it doesn't have."""
        if self._pid != os.getpid():
            raise ClosedError(
                "this client belongs to the process that made it, and this is a fork of it",
                hint="call connect or attach in each process",
            )

    # what arrives -------------------------------------------------------------------------------------

    def _take_in(self, call: _Call) -> None:
        """One thread at a time reads; the others wait for it, and one takes over when it has its own answer."""
        with self._guard:
            if self._reader is None or self._reader.done:
                self._reader = call
        if self._reader is not call:
            call.nudged.wait(NUDGE_S)
            call.nudged.clear()
            return
        while not call.done and not self._closed:
            self._read()
        if self._closed:
            call.finish()

    def _read(self) -> None:
        connected = self._socket
        assert connected is not None
        try:
            waiting = select.poll()  # select() can't bear descriptors above 1023
            waiting.register(connected, select.POLLIN)
            ready = bool(waiting.poll(_LOOK_MS))
        except (OSError, ValueError):
            ready = True  # it is broken, as reading it will tell
        if not ready:
            return
        try:
            connected_still = self._received(connected)
        except (OSError, ValueError):
            connected_still = False
        except BaseException:
            self._break()
            raise
        if connected_still or self._closed:
            return
        with self._guard:
            if self._socket is connected:
                self._reconnect()

    def _received(self, connected: socket.socket) -> bool:
        """Hand out the answers that have arrived; False at the end of the connection."""
        content = connected.recv(_CHUNK)
        if not content:
            return False
        for number, reply in self._inbox.add(content):
            waiting = self._calls.get(number)
            if waiting is not None:
                waiting.reply = reply
                waiting.finish()
        return True

    def _break(self) -> None:
        """Something was interrupted, and may have been sent or received by half: that is begun anew."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

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
        if self._pid != os.getpid():
            return
        with self._guard:
            if self._closed:
                return
            self._closed = True
            connected = self._socket
            if connected is not None:
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
