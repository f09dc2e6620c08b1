"""A ledger host in another process, as a client sees it.

Calls are numbered. A caller reads its answer from the connection itself; of several callers one reads for all, and
hands over when it leaves. When the connection breaks, a thread connects again, starting the host if it is gone, and
sends every unanswered call again under its number: the host knows which ones took effect.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tunegym.core.processes import boot_id, process_start_time
from tunegym.core.wire import Connection, ConnectionClosedError, WireError, pack
from tunegym.dataplane.connect import Plane, find
from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    ClosedError,
    DataPlaneError,
    HostTimeoutError,
    NoPlaneError,
    SpecError,
    StorageError,
)
from tunegym.dataplane.hosts.folder import FORMAT, SEGMENTS, Stop, bootstrap, check, reach
from tunegym.dataplane.hosts.operations import (
    BYE,
    GIVE_UP,
    MESSAGE_BYTES,
    WAITING,
    Handle,
    as_error,
    as_plain,
    new_owner,
)

GRACE_S = 0.7
"""How long after the end of a put's or claim's wait the client waits for the host's answer."""
ABANDON_S = 0.5
"""How long the client waits until the host has given up an abandoned call, or released its claims."""
_RETRY_S = 0.05
_LOOK_S = 1.0
_TRANSIENT = (ConnectionError, BlockingIOError, TimeoutError, ConnectionClosedError, WireError)
"""Errors that another attempt may not meet."""


class _Call:
    """A call to the host that is not answered yet.

    Args:
        wait_s: how long the host may wait before it answers; None for ever.
        answer_s: how long the caller waits for the answer.

    Attributes:
        number: 0 before it is sent.
        pending: numbers of the earlier calls without an answer.
        waiting: whether a thread waits for the answer.
        given_up: whether the host is told, or will be, that the answer is not wanted.
    """

    def __init__(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None, answer_s: float) -> None:
        now = time.monotonic()
        self.operation = operation
        self.arguments = arguments
        self.until = None if wait_s is None else now + wait_s
        self.deadline = now + answer_s
        self.number = 0
        self.pending: list[int] = []
        self.reply: Any = None
        self.waiting = self.given_up = False
        self._woken = threading.Lock()  # held until there is something to do: faster than an Event
        self._woken.acquire()

    def frame(self) -> bytes:
        """The message, with the rest of its wait. Raises ``DataPlaneError`` if it can't be sent."""
        left = None if self.until is None else max(0.0, self.until - time.monotonic())
        try:
            return pack([self.number, self.pending, self.operation, self.arguments, left], MESSAGE_BYTES)
        except WireError as error:
            raise DataPlaneError(f"this call can't be sent: {error}", hint="use smaller batches") from error

    @property
    def over(self) -> bool:
        """Whether it is answered, or its caller has waited long enough."""
        return self.reply is not None or time.monotonic() >= self.deadline

    def next_look(self) -> float:
        """The deadline, or in a second: a Ctrl-C just before a wait does not end it."""
        return min(self.deadline, time.monotonic() + _LOOK_S)

    def sleep(self) -> None:
        """Wait for ``wake``, or the next look."""
        self._woken.acquire(timeout=max(0.0, self.next_look() - time.monotonic()))

    def wake(self, reply: Any = None) -> None:
        """Let the caller look, with an answer or without. The lock of the host is held."""
        self.reply = self.reply if reply is None else reply
        if self._woken.locked():
            self._woken.release()


Reach: TypeAlias = Callable[[Stop], tuple[socket.socket, dict[str, Any]]]
"""Connects to the host, which is started if there is none: the connection, and what to add to the introduction."""


class SocketHost:
    """The ``Host`` at the other end of a socket. Any thread may call it.

    Args:
        place: of the plane, for messages.
        reach: connects to the host.
        timeout_s: the time limit of a call that names none, and of the search for a host that is gone.
        durable: see ``Host``.
    """

    def __init__(self, place: object, reach: Reach, timeout_s: float, *, durable: bool) -> None:
        self._place, self._connect_to, self._timeout_s, self.durable = place, reach, timeout_s, durable
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._last = 0
        self._closed = False  # no more calls
        self._ended = False  # no more connections
        self.name = new_owner()
        self._connection: Connection | None = None
        self._connecting = False
        self._failure = ""  # why the host could not be reached
        self._reader: _Call | None = None  # whose caller reads the connection; only that one may close it

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """See ``Host``."""
        answer_s = wait_s + GRACE_S if operation in WAITING and wait_s is not None else self._timeout_s
        call = _Call(operation, arguments, wait_s, answer_s)
        with self._lock:
            if handle is not None:
                if handle.abandoned:
                    raise ClosedError("the call was given up")
                handle.call = call
            self._send(call)
        self._wait(call)
        while wait_s is None and call.reply is None and not (handle is not None and handle.abandoned):
            self._ask_again(call)
        with self._lock:
            if call.reply is None:
                if operation in WAITING and not (handle is not None and handle.abandoned):
                    self._send_give_up(call)
                raise self._unanswered(call)
        if "error" in call.reply:
            raise as_error(call.reply)
        return call.reply["value"]

    def _ask_again(self, call: _Call) -> None:
        """Wait for ever, but not for a host that answers nothing at all. Raises ``DataPlaneError``."""
        try:
            self.call("specs", {})
        except DataPlaneError:
            with self._lock:
                if call.reply is None and not self._closed:
                    self._send_give_up(call)
            raise
        call.deadline = time.monotonic() + self._timeout_s
        self._wait(call)

    def abandon(self, handle: Handle) -> bool:
        """See ``Host``. A host that does not answer gives the call up when it does; a put may have taken effect."""
        with self._lock:
            handle.abandoned = True
            call: _Call | None = handle.call
            if call is None or not call.number:
                return False
            giving_up = self._send_give_up(call) if call.reply is None else None
            if giving_up is not None:
                call.deadline = 0.0
                call.wake()
        if giving_up is not None:
            self._wait(giving_up)
            return giving_up.reply is None or bool(giving_up.reply.get("value"))
        reply: Any = call.reply
        if "error" not in reply and call.operation == "claim":
            with contextlib.suppress(DataPlaneError):  # the partition is deleted, or the host is gone
                given = {"partition_id": call.arguments["partition_id"], "lease": reply["value"]["lease"]}
                self.call("end_lease", given)
        return "error" not in reply

    def _send_give_up(self, call: _Call) -> _Call:
        """Sent while ``call`` is unanswered, so that the host still knows its result. The lock is held."""
        giving_up = self._giving_up(call)
        self._send(giving_up)
        return giving_up

    @staticmethod
    def _giving_up(call: _Call) -> _Call:
        call.given_up = True
        given = {"partition_id": call.arguments.get("partition_id"), "operation": call.operation, "number": call.number}
        return _Call(GIVE_UP, given, 0.0, ABANDON_S)

    def _unanswered(self, call: _Call) -> DataPlaneError:
        what = f"the plane's host did not answer in time ({call.operation})"
        what += f": {self._failure}" if self._failure else ""
        if call.operation == "claim":
            return ClaimTimeoutError(what, hint="is it stopped or overloaded? Samples of this claim are given back")
        return HostTimeoutError(what, hint="is it stopped or overloaded? The call may still take effect")

    # sending and receiving ----------------------------------------------------------------------------

    def _send(self, call: _Call) -> None:
        """Number a call and send it; without a connection it is sent later. The lock is held."""
        if self._closed and call.operation != BYE:
            raise ClosedError("the client is closed")
        frame = self._register(call)
        if self._connection is None:
            self._connect_later()
            return
        try:
            self._connection.post(frame)
        except ConnectionClosedError:
            pass  # the reader sees it, too
        except BaseException:
            self._connection.hang_up()  # half a frame may be sent
            raise

    def _register(self, call: _Call) -> bytes:
        """Number a call; its message. The lock is held."""
        call.number, call.pending = self._last + 1, list(self._calls)
        frame = call.frame()
        self._last = call.number
        self._calls[call.number] = call
        return frame

    def _wait(self, call: _Call) -> None:
        """Wait for the answer, or the deadline. Reads the connection, unless another caller does."""
        call.waiting = True
        try:
            while not call.over:
                with self._lock:
                    connection, sent, reads = self._connection, True, False
                    if connection is not None:
                        with contextlib.suppress(ConnectionClosedError):  # the reader sees it, too
                            sent = connection.post()
                        reads = sent and self._reader is None
                        self._reader = call if reads else self._reader
                if connection is None or (sent and not reads):
                    call.sleep()
                elif reads:
                    self._read(connection, call)
                else:
                    connection.wait_writable(call.next_look())
        finally:
            with self._lock:
                call.waiting = False
                if self._reader is call or (self._ended and self._reader is None):
                    self._drop()  # interrupted, a part of a message may be lost; or closed
                self._hand_over()

    def _read(self, connection: Connection, call: _Call) -> None:
        """Hand out answers until ``call`` is over, or the connection breaks."""
        try:
            while not call.over:
                answers = connection.receive_some(call.next_look())
                with self._lock:
                    for number, reply in answers or ():
                        if number in self._calls:
                            self._calls[number].wake(reply)
                            del self._calls[number]
        except (ConnectionClosedError, WireError):
            with self._lock:
                self._drop()
        else:
            with self._lock:
                self._reader = None

    def _drop(self) -> None:
        """The reader closes the connection; unanswered calls are sent again on the next one. The lock is held."""
        self._reader = None
        if self._connection is not None:
            self._connection.hang_up()
            self._connection.close()
            self._connection = None
        if any(one.waiting for one in self._calls.values()):
            self._connect_later()

    def _hand_over(self) -> None:
        """Let another caller read. The lock is held."""
        if self._reader is None and self._connection is not None:
            following = next((one for one in self._calls.values() if one.waiting), None)
            if following is not None:
                following.wake()

    # connecting ---------------------------------------------------------------------------------------

    def _connect_later(self) -> None:
        """Connect in a thread, unless one does already. The lock is held."""
        if not self._connecting and not self._ended:
            self._connecting = True
            threading.Thread(target=self._connect, name="tunegym-dataplane-connect", daemon=True).start()

    def _connect(self) -> None:
        """Connect, and send the calls that are not answered. If that fails, tell every caller."""
        fresh, failure = None, None
        try:
            fresh = self._reach()
        except DataPlaneError as error:
            failure = error
        except Exception as error:
            failure = DataPlaneError(f"the plane's host can't be reached: {error!r}")
        with self._lock:
            self._connecting, self._failure = False, ""
            if failure is not None:
                self._fail(failure)
            elif fresh is not None and self._ended:
                fresh.close()
            elif fresh is not None:
                self._connection = fresh
                with contextlib.suppress(ConnectionClosedError):  # the reader sees it, too
                    for call in self._calls.values():
                        fresh.post(call.frame())
                self._hand_over()

    def _reach(self) -> Connection | None:
        """A connection to a host that knows this client; None if it isn't needed. Raises ``DataPlaneError``."""
        until = time.monotonic() + self._timeout_s
        while not self._ended:
            connection: Connection | None = None
            try:
                reached, more = self._connect_to(lambda: self._ended or time.monotonic() > until)
                connection = Connection(reached, limit=MESSAGE_BYTES)
                hello = {"format": FORMAT, "client": {**_introduction(self.name), **more}}
                connection.send_frame(pack(hello), until)
                answer = connection.receive(until)
                if "error" in answer:
                    raise as_error(answer)
            except BaseException as error:
                if connection is not None:
                    connection.close()
                self._failure = str(error) or type(error).__name__
                if isinstance(error, OSError) and not isinstance(error, _TRANSIENT):
                    raise StorageError(f"{self._place} can't be used: {self._failure}", hint="is it yours?") from error
                if not isinstance(error, _TRANSIENT):
                    raise
                if time.monotonic() > until:
                    raise NoPlaneError(f"the plane's host can't be reached: {self._failure}") from error
                time.sleep(_RETRY_S)
            else:
                return connection
        return None

    def _fail(self, error: DataPlaneError) -> None:
        """Tell every caller. A put or claim may have taken effect: the next host gives it up. The lock is held."""
        for call in [one for one in self._calls.values() if one.operation in WAITING and not one.given_up]:
            self._register(self._giving_up(call))
        for call in list(self._calls.values()):
            call.wake(as_plain(error))
            if call.operation != GIVE_UP:
                del self._calls[call.number]

    def stay_connected(self) -> None:
        """For a thread: connect again, also without calls, where the host can't see whether this process lives."""
        while not self._closed:
            with contextlib.suppress(DataPlaneError):
                self.call("specs", {})
            time.sleep(2 * _LOOK_S)

    def close(self) -> None:
        """See ``Host``. A host that does not answer gives the claims back when it sees the end of the connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for call in self._calls.values():
                call.wake(as_plain(ClosedError("the client was closed while it waited")))
            self._calls.clear()
            farewell = _Call(BYE, {}, 0.0, ABANDON_S)
            self._send(farewell)
        self._wait(farewell)
        with self._lock:
            self._ended = True
            if self._connection is not None:
                self._connection.hang_up()
                if self._reader is None:
                    self._connection.close()
                    self._connection = None


def _introduction(name: str) -> dict[str, Any]:
    """This process, for the host, which watches whether it is alive."""
    pid = os.getpid()
    return {"name": name, "pid": pid, "start": process_start_time(pid) or "", "boot": boot_id()}


def open_plane(address: str, *, make: bool, linger_s: float, timeout_s: float) -> Plane:
    """The backend of ``mmap:///folder``: see ``tunegym.dataplane.connect.Opener``."""
    folder = Path(address)
    if not folder.is_absolute() or "\0" in address:
        raise SpecError(f"mmap://{address!r:.200} names no absolute folder", hint="write mmap:///folder: three slashes")
    if make:
        bootstrap(folder, timeout_s)
    else:
        check(folder)
    host = SocketHost(folder, lambda stop: (reach(folder, linger_s, stop), {}), timeout_s, durable=True)
    return Plane(host, find("storages", "mmap")(folder / SEGMENTS), host.name)
