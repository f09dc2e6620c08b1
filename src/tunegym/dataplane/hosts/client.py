"""A ledger host in another process, as a client sees it.

Calls are numbered. When the connection breaks, the reader thread connects again, starting the host if it is gone, and
sends every unanswered call again under its number: the host knows which ones took effect.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunegym.core.processes import boot_id, process_start_time
from tunegym.core.wire import Connection, ConnectionClosedError, WireError, pack
from tunegym.dataplane.connect import Plane, find
from tunegym.dataplane.errors import ClaimTimeoutError, ClosedError, DataPlaneError, NoPlaneError, SpecError
from tunegym.dataplane.hosts.folder import FORMAT, SEGMENTS, bootstrap, check, reach
from tunegym.dataplane.hosts.operations import MESSAGE_BYTES, Handle, as_error, as_plain

PATIENCE_S = 30.0
"""How long a client tries to reach a host that is gone."""
GRACE_S = 5.0
"""How long after the end of a claim's wait the client waits for the host's answer."""
_RETRY_S = 0.05
_GREET_S = 30.0
_CLOSE_S = 1.0


class _Call:
    """A call to the host that is not answered yet.

    Attributes:
        number: 0 before it is sent.
        pending: numbers of the earlier calls without an answer.
        until: the end of its wait; None for never.
    """

    def __init__(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None) -> None:
        self.operation = operation
        self.arguments = arguments
        self.until = None if wait_s is None else time.monotonic() + wait_s
        self.number = 0
        self.pending: list[int] = []
        self.reply: Any = None
        self.answered = threading.Lock()  # held until the answer is there: faster than an Event
        self.answered.acquire()

    def frame(self) -> bytes:
        """The message, with the rest of its wait. Raises ``DataPlaneError`` if it can't be sent."""
        left = None if self.until is None else max(0.0, self.until - time.monotonic())
        try:
            return pack([self.number, self.pending, self.operation, self.arguments, left], MESSAGE_BYTES)
        except WireError as error:
            raise DataPlaneError(f"this call can't be sent: {error}", hint="use smaller batches") from error

    def wait(self) -> bool:
        """Wait for the answer; False if a claim's host is silent. A put that may have taken effect is waited for."""
        if self.operation != "claim" or self.until is None:
            return self.answered.acquire()
        return self.answered.acquire(timeout=max(0.0, self.until - time.monotonic()) + GRACE_S)


class SocketHost:
    """The ``Host`` of the plane in a folder. Any thread may call it; a background thread reads the answers."""

    durable = True

    def __init__(self, folder: Path, linger_s: float) -> None:
        self._folder, self._linger_s = folder, linger_s
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._last = 0
        self._closed = False
        self.name = uuid.uuid4().hex
        self._connection: Connection | None = self._reach()
        self._reader = self._start_reader()

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """See ``Host``."""
        call = _Call(operation, arguments, wait_s)
        with self._lock:
            if handle is not None:
                if handle.abandoned:
                    raise ClosedError("the call was given up")
                handle.call = call
            self._send(call)
        if not call.wait() and self._give_up(call):
            raise ClaimTimeoutError(
                f"the plane's host did not answer within {GRACE_S:g} s after the end of the wait",
                hint="it is stopped or overloaded; samples that the claim gets are given back",
            )
        if "error" in call.reply:
            raise as_error(call.reply)
        return call.reply["value"]

    def abandon(self, handle: Handle) -> bool:
        """See ``Host``."""
        with self._lock:
            handle.abandoned = True
            call: _Call | None = handle.call
            if call is None or not call.number:
                return False
            giving_up = self._send_give_up(call) if call.reply is None else None
        if giving_up is not None:
            giving_up.answered.acquire()
            return bool(giving_up.reply.get("value"))
        reply: Any = call.reply
        if "error" not in reply and call.operation == "claim":
            with contextlib.suppress(DataPlaneError):  # the partition is deleted, or the host is gone
                given = {"partition_id": call.arguments["partition_id"], "lease": reply["value"]["lease"]}
                self.call("end_lease", given)
        return "error" not in reply

    def _give_up(self, call: _Call) -> bool:
        """Stop waiting for a silent host; it gives the claim up when it wakes. False if the answer has arrived."""
        with self._lock:
            if call.reply is None:
                self._send_give_up(call)
            return call.reply is None

    def _send_give_up(self, call: _Call) -> _Call:
        """Sent while ``call`` is unanswered, so that the host still knows its result. The lock is held."""
        given = {"partition_id": call.arguments.get("partition_id"), "operation": call.operation, "number": call.number}
        giving_up = _Call("give_up", given, 0.0)
        self._send(giving_up)
        return giving_up

    def _send(self, call: _Call) -> None:
        """Number a call and send it; without a connection the reader sends it later. The lock is held."""
        if self._closed:
            raise ClosedError("the client is closed")
        call.number, call.pending = self._last + 1, list(self._calls)
        frame = call.frame()
        self._last = call.number
        self._calls[call.number] = call
        if self._reader is None:  # it could not reach the host, and told every caller
            self._reader = self._start_reader()
        if self._connection is None:
            return
        try:
            self._connection.send_frame(frame)
        except ConnectionClosedError:
            pass  # the reader sees it, too
        except BaseException:
            self._connection.hang_up()  # half a frame may be sent
            raise

    # the reader ---------------------------------------------------------------------------------------

    def _start_reader(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._read, name="tunegym-dataplane-reader", daemon=True)
        thread.start()
        return thread

    def _read(self) -> None:
        """Hand out answers, and reconnect when the connection breaks."""
        connection = self._connection
        try:
            while connection is not None or not self._closed:
                if connection is None:
                    connection = self._reconnect()
                with contextlib.suppress(ConnectionClosedError, WireError):
                    while True:
                        self._receive(connection)
                with self._lock:
                    self._connection = None
                connection.close()
                connection = None
        except Exception as error:  # the host can't be reached, or makes no sense: tell every caller
            with self._lock:
                self._answer_all(error if isinstance(error, DataPlaneError) else DataPlaneError(repr(error)))
                self._reader = None

    def _receive(self, connection: Connection) -> None:
        for number, reply in connection.receive_some() or ():
            with self._lock:
                call = self._calls.pop(number, None)
                if call is not None:
                    call.reply = reply
                    call.answered.release()

    def _reconnect(self) -> Connection:
        """Connect again, and repeat the calls that are not answered."""
        fresh = self._reach()
        with self._lock, contextlib.suppress(ConnectionClosedError):
            self._connection = fresh
            if self._closed:
                fresh.hang_up()
            for call in self._calls.values():
                fresh.send_frame(call.frame())
        return fresh

    def _reach(self) -> Connection:
        """A connection to a host that knows this client. Raises ``DataPlaneError``."""
        until = time.monotonic() + PATIENCE_S
        while True:
            connection: Connection | None = None
            try:
                connection = Connection(reach(self._folder, self._linger_s), limit=MESSAGE_BYTES)
                deadline = time.monotonic() + _GREET_S
                connection.send_frame(pack({"format": FORMAT, "client": _introduction(self.name)}), deadline)
                answer = connection.receive(deadline)
                if "error" in answer:
                    raise as_error(answer)
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if not isinstance(error, OSError | ConnectionClosedError | WireError):
                    raise
                if time.monotonic() > until or self._closed:
                    raise NoPlaneError(f"the plane's host can't be reached: {error}") from error
                time.sleep(_RETRY_S)
            else:
                return connection

    def _answer_all(self, error: DataPlaneError) -> None:
        for call in self._calls.values():
            call.reply = as_plain(error)
            call.answered.release()
        self._calls.clear()

    def close(self) -> None:
        """See ``Host``."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._connection is not None:
                with contextlib.suppress(ConnectionClosedError):
                    self._connection.send_frame(pack(["bye"]))
                self._connection.hang_up()
            self._answer_all(ClosedError("the client was closed while it waited"))
            reader = self._reader
        if reader is not None:
            reader.join(_CLOSE_S)  # it closes the connection


def _introduction(name: str) -> dict[str, Any]:
    """This process, for the host, which watches whether it is alive."""
    pid = os.getpid()
    return {"name": name, "pid": pid, "start": process_start_time(pid) or "", "boot": boot_id()}


def open_plane(address: str, *, make: bool, linger_s: float) -> Plane:
    """The backend of ``mmap:///folder``: see ``tunegym.dataplane.connect.Opener``."""
    folder = Path(address)
    if not folder.is_absolute() or "\0" in address:
        raise SpecError(f"mmap://{address!r:.200} names no absolute folder", hint="write mmap:///folder: three slashes")
    (bootstrap if make else check)(folder)
    host = SocketHost(folder, linger_s)
    try:
        return Plane(host, find("storages", "mmap")(folder / SEGMENTS), host.name)
    except BaseException:
        host.close()
        raise
