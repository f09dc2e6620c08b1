"""A client's end of a ledger host in another process: calls that are repeated until they are answered, once."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from tunegym.dataplane.errors import ClosedError, DataPlaneError, NoPlaneError
from tunegym.dataplane.hosts.base import Handle
from tunegym.dataplane.hosts.frames import pack
from tunegym.dataplane.hosts.line import Line
from tunegym.dataplane.hosts.operations import WAITING, as_error, release_rest
from tunegym.dataplane.hosts.pending import PendingCall, silent

_LOOK_S = 1.0
RETRY_S = 0.05
NUDGE_S = 1.0
"""When a thread that waits looks by itself whether anybody reads: whoever did may have been interrupted."""

_hosts: weakref.WeakSet[SocketHost] = weakref.WeakSet()


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
        self._reader: PendingCall | None = None
        self._calls: dict[int, PendingCall] = {}
        self._next = 1
        self._closed = False
        self._pid = os.getpid()
        self.name = uuid.uuid4().hex
        self._line: Line | None = None
        self._fresh: socket.socket | None = None
        _hosts.add(self)
        with self._guard:
            self._reconnect()

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """See ``Host``."""
        self._check_process()
        call = PendingCall(operation, arguments, until=None if wait_s is None else time.monotonic() + wait_s)
        handle = Handle() if handle is None else handle
        handle.under_way = call
        try:
            self._send(call, handle)
            while not call.done:
                self._take_in(call)
                if call.overdue() and self._give_up_later(call):
                    raise silent()
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

    def _send(self, call: PendingCall, handle: Handle) -> None:
        with self._guard:
            if self._closed:
                raise ClosedError("the client is closed")
            if handle.abandoned:
                raise ClosedError("the call was given up")
            frame = self._numbered(call)
            assert self._line is not None
            try:
                self._line.send(frame)
            except OSError:
                try:
                    self._reconnect()
                except BaseException:
                    del self._calls[call.number]  # whoever called is told that it failed: it must not be sent later
                    raise
            except BaseException:
                self._line.hang_up()
                raise

    def _numbered(self, call: PendingCall) -> bytes:
        """It is among the calls from now on; what is to be sent. The guard is held."""
        self._calls = {number: one for number, one in self._calls.items() if one.kept or not one.done}
        call.number, call.pending = self._next, list(self._calls)
        try:
            frame = call.frame()
        except BaseException:
            call.number = 0
            raise
        self._next += 1
        self._calls[call.number] = call
        return frame

    def _give_up_later(self, call: PendingCall) -> bool:
        """Wait no more for a host that doesn't answer: as soon as it does, the claim is given back. False if it has."""
        with self._guard:
            if call.done or self._closed:
                return False
            call.done = call.kept = True
            frame = self._numbered(PendingCall("give_up", call.given_up(), until=0.0, gives_up=call))
            assert self._line is not None
            try:
                self._line.send(frame)
            except OSError:  # it is sent with the next connection
                self._line.hang_up()
            except BaseException:
                self._line.hang_up()
                raise
            return True

    def _forget(self, call: PendingCall) -> None:
        """Unless it is kept; and somebody who still waits reads from now on, unless somebody does already."""
        with self._guard:
            if not call.kept:
                self._calls = {number: one for number, one in self._calls.items() if one is not call}
            if self._reader is call:
                self._reader = None
            if self._reader is None:
                other = next((one for one in self._calls.values() if not one.done and one.gives_up is None), None)
                if other is not None:
                    other.nudge()

    def abandon(self, handle: Handle) -> bool:
        """See ``Host``."""
        self._check_process()
        with self._guard:
            handle.abandoned = True
            call: PendingCall | None = handle.under_way
            if call is None or not call.number:
                return False
            call.kept = call.reply is None
        if not call.kept:
            took_effect = "error" not in call.reply
            if took_effect and call.operation == "claim":
                given = {name: call.arguments[name] for name in ("partition_id", "task_name")}
                given |= {name: call.reply["value"][name] for name in ("sample_ids", "leases")}
                release_rest(lambda held: self.call("release", held), given)
            return took_effect
        try:
            return self.call("give_up", call.given_up())
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

    def _take_in(self, call: PendingCall) -> None:
        """One thread at a time reads; the others wait for it, and one takes over when it has its own answer."""
        with self._guard:
            if self._reader is None or self._reader.done:
                self._reader = call
            elif call.nudged is None:
                call.nudged = threading.Event()
        if self._reader is not call:
            call.wait(NUDGE_S)
            return
        while not (call.done or self._closed or call.overdue()):
            self._read()
        if self._closed:
            call.finish()

    def _read(self) -> None:
        line = self._line
        assert line is not None
        if not line.wait(_LOOK_S):
            return
        try:
            connected_still = self._received(line)
        except (OSError, ValueError):
            connected_still = False
        except BaseException:
            line.hang_up()
            raise
        if connected_still or self._closed:
            return
        with self._guard:
            if self._line is line:
                self._reconnect()

    def _received(self, line: Line) -> bool:
        """Hand out the answers that have arrived; False at the end of the connection."""
        messages = line.receive()
        for number, reply in messages or ():
            waiting = self._calls.get(number)
            if waiting is not None:
                waiting.reply = reply
                if waiting.gives_up is not None:
                    waiting.gives_up.kept = False
                waiting.finish()
        return messages is not None

    def _reconnect(self) -> None:
        """Reach a host, and send what is not answered again. The guard is held."""
        until = time.monotonic() + self._patience_s
        while True:
            if self._closed:
                raise ClosedError("the client is closed")
            fresh: Line | None = None
            try:
                self._fresh = self._connect()
                fresh = Line(self._fresh)
                fresh.introduce(self.name)
                for call in self._calls.values():
                    if not call.done:
                        fresh.send(call.frame())
            except BaseException as error:
                if fresh is not None:
                    fresh.close()
                if not isinstance(error, OSError | ValueError):
                    raise
                if time.monotonic() > until:
                    raise NoPlaneError(f"the plane's host can't be reached: {error}") from error
                time.sleep(RETRY_S)
                continue
            old, self._line, self._fresh = self._line, fresh, None
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
            line = self._line
            if line is not None:
                with contextlib.suppress(OSError):
                    line.send(pack(["bye"]))
                line.hang_up()
            for call in self._calls.values():
                call.finish()
        if line is not None:
            line.close()

    def forked(self) -> None:
        """In a child: the host hears that a client is gone only when nobody has its connection any more."""
        for connected in (self._line, self._fresh):
            if connected is not None:
                connected.close()


def _forked() -> None:
    for host in list(_hosts):
        host.forked()


os.register_at_fork(after_in_child=_forked)

__all__ = ["DataPlaneError", "SocketHost"]
