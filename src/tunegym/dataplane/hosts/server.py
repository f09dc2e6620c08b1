"""The ledger host: one process, one thread, any number of local clients."""

from __future__ import annotations

import contextlib
import logging
import os
import reprlib
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tunegym.dataplane.errors import DataPlaneError, StorageError
from tunegym.dataplane.hosts.clients import Call
from tunegym.dataplane.hosts.frames import Inbox, pack
from tunegym.dataplane.hosts.keeper import Keeper
from tunegym.dataplane.hosts.operations import as_plain

logger = logging.getLogger(__name__)

FORMAT = 3
LOOK_S = 1.0
"""How often it looks whether clients that hung up are still alive."""
LOG_BYTES = 1 << 20
_CHUNK = 1 << 16
_CREDENTIALS = struct.Struct("3i")
_STRANGER = "only processes of the user who made it can connect: give a folder of your own"


@dataclass
class _Connection:
    """One client's connection.

    Attributes:
        name: whose; empty before it has introduced itself.
        seen: whether its process can be seen from here, and so also that it has ended.
        stranger: of another user, who is told so, and nothing else.
        out: what the socket has not taken yet.
        full: whether it takes no more just now.
    """

    socket: socket.socket
    inbox: Inbox = field(default_factory=Inbox)
    name: str = ""
    seen: bool = False
    stranger: bool = False
    out: bytearray = field(default_factory=bytearray)
    full: bool = False


class Server:
    """Serves a keeper on a listening local socket until nobody has needed it for a while.

    Args:
        listener: only processes of ``uid`` are heard on it. It need not listen yet.
        build: makes a keeper that has recovered; again after a write that failed, since what it knows is then more
            than what is written down.
        uid: whose clients may connect.
        linger_s: how long it stays without any client.
        log: the file that it logs to, if that is to be kept small: it is emptied when it is too large.
        here: whether its plane is still there. Who removes the folder ends the plane, and its host.
    """

    def __init__(
        self,
        listener: socket.socket,
        build: Callable[[], Keeper],
        uid: int,
        linger_s: float,
        log: int | None = None,
        here: Callable[[], bool] = lambda: True,
    ) -> None:
        self._listener = listener
        self._build = build
        self._keeper = build()
        self._uid = uid
        self._linger_s = linger_s
        self._log = log
        self._here = here
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._accepting = False
        self._accept_more(True)
        self._buffer = memoryview(bytearray(_CHUNK))
        self._connections: dict[str, _Connection] = {}
        self._open: set[int] = set()
        self._idle_since = time.monotonic()
        self._looked = 0.0

    def run(self) -> None:
        """Serve."""
        while self._look():
            pause = max(0.0, min(self._keeper.pass_time(), LOOK_S))
            self._deliver()  # and with it all is written down that was heard: from here on it may end
            if self._open:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > self._linger_s:
                return
            if not self._looked:  # somebody hung up, and what they had is wanted at once
                pause = 0.0
            for key, events in self._selector.select(pause):
                if key.fileobj is self._listener:
                    self._accept()
                elif events & selectors.EVENT_WRITE:
                    self._send(key.data)
                else:
                    self._read(key.data)

    # connections --------------------------------------------------------------------------------------

    def _accept(self) -> None:
        accepted: socket.socket | None = None
        try:
            accepted, _ = self._listener.accept()
            data = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(data)
            accepted.setblocking(False)
            connection = _Connection(accepted, stranger=uid not in (self._uid, 0))
            self._selector.register(accepted, selectors.EVENT_READ, connection)
            self._open.add(accepted.fileno())
        except BlockingIOError:
            return
        except OSError as error:  # mostly that too many files are open
            logger.warning("a client has to wait for its connection: %s", error)
            if accepted is not None:
                accepted.close()
            self._accept_more(False)

    def _accept_more(self, more: bool) -> None:
        """Whether connections are accepted: if one can't be, not until another one ends, or some time has passed."""
        if more and not self._accepting:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._accepting and not more:
            self._selector.unregister(self._listener)
        self._accepting = more

    def _read(self, connection: _Connection) -> None:
        try:
            content = self._buffer[: connection.socket.recv_into(self._buffer)]
            if content and connection.stranger:
                self._queue(connection, as_plain(StorageError("the plane is somebody else's", hint=_STRANGER)))
            messages = connection.inbox.add(content) if content and not connection.stranger else None
        except BlockingIOError:
            return
        except OSError:
            messages = None
        except Exception as error:  # whatever it is, it is this client's
            self._another_language(connection, error)
            return
        if messages is None:
            self._hang_up(connection)
            return
        for message in messages:
            try:
                self._heard(connection, message)
            except Exception as error:  # or it would end the host, and the next one, for ever
                if connection.name:
                    self._fail(connection, message, error)
                else:
                    self._another_language(connection, error)
                return

    def _another_language(self, connection: _Connection, error: Exception) -> None:
        logger.warning("a client was hung up on: %s: %s", type(error).__name__, error)
        self._hang_up(connection)

    def _heard(self, connection: _Connection, message: Any) -> None:
        if not connection.name:
            self._greet(connection, message)
            return
        if message[0] == "bye":
            self._keeper.leave(connection.name)
            self._hang_up(connection)
            return
        number, pending, operation, arguments, wait_s = message
        self._keeper.call(Call(connection.name, number, pending, operation, arguments), wait_s)

    def _greet(self, connection: _Connection, message: Any) -> None:
        if message.get("format") != FORMAT:
            found = message.get("format")
            error = DataPlaneError(f"the plane speaks format {FORMAT}, this client {found!r}", hint="use one version")
            self._queue(connection, as_plain(error))
            return
        try:
            caller = self._keeper.join(message["client"])
        except StorageError as error:  # the disk is full
            self._queue(connection, as_plain(error))
            return
        before = self._connections.get(caller.name)
        if before is not None:  # what is left in it is asked again on this one, and must not come after that
            self._hang_up(before)
        connection.name, connection.seen = caller.name, caller.alive()
        self._connections[caller.name] = connection
        self._queue(connection, {"format": FORMAT})

    def _hang_up(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        self._open.discard(connection.socket.fileno())
        connection.socket.close()
        if self._connections.get(connection.name) is connection:
            del self._connections[connection.name]
        self._looked = 0.0  # whoever hung up may be dead
        self._accept_more(True)

    def _look(self) -> bool:
        """Clients whose process has ended are gone, whoever has their connection; and what else is due now and then.

        False if the plane is gone.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return True
        if not self._here():
            logger.warning("the plane was removed, and so its host ends")
            return False
        self._looked = now
        self._accept_more(True)
        if self._log is not None and os.fstat(self._log).st_size > LOG_BYTES:
            os.ftruncate(self._log, 0)
        gone = []
        for name, caller in self._keeper.callers.items():
            connection = self._connections.get(name)
            if (connection is None or connection.seen) and not caller.alive():
                gone.append(name)
        for name in gone:
            if name in self._connections:
                self._hang_up(self._connections[name])
            self._keeper.leave(name)
        if gone:
            self._keeper.sweep()
        return True

    # replies ------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        sent = False
        while not sent:
            try:
                replies = self._keeper.take_replies()
            except StorageError as error:
                self._start_over(error)
                return
            sent = all(tuple(self._reply(call, reply) for call, reply in replies))

    def _reply(self, call: Call, reply: Any) -> bool:
        """Whether it is on its way, or nobody waits for it; otherwise there is another one now, which is short."""
        connection = self._connections.get(call.name)
        if connection is None:
            return True
        try:
            self._queue(connection, [call.number, reply])
        except DataPlaneError as error:
            what = f"the answer to this {call.operation} is too large: {error.message}"
            logger.warning("%s", what)
            self._keeper.unsent(call, DataPlaneError(what, hint="use smaller batches"))
            return False
        return True

    def _start_over(self, error: StorageError) -> None:
        """What can't be written down has not happened: everybody is told so, and the ledger is as it was."""
        logger.error("%s", error)
        for name, number in self._keeper.unanswered():
            connection = self._connections.get(name)
            if connection is not None:
                self._queue(connection, [number, as_plain(error)])
        self._keeper.close()
        self._keeper = self._build()
        for connection in list(self._connections.values()):
            if connection.name not in self._keeper.callers:
                self._hang_up(connection)

    def _fail(self, connection: _Connection, message: Any, error: Exception) -> None:
        """A call makes no sense, or is more than the ledger can bear: whoever called is told, or would ask for ever.

        What it did until then is undone: the ledger is as it is written down, and all others ask again.
        """
        logger.error("a call failed: %s", reprlib.repr(message), exc_info=error)
        if isinstance(message, list) and message:
            what = f"the plane's host failed at this call: {type(error).__name__}: {error}"
            self._queue(connection, [message[0], as_plain(DataPlaneError(what, hint="see host.log in its folder"))])
        self._keeper.close()
        self._keeper = self._build()
        for one in list(self._connections.values()):
            self._hang_up(one)

    def _queue(self, connection: _Connection, message: Any) -> None:
        connection.out += pack(message)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        try:
            while connection.out:
                sent = connection.socket.send(connection.out)
                del connection.out[:sent]
        except BlockingIOError:
            self._watch(connection, full=True)
        except OSError:
            self._hang_up(connection)
        else:
            self._watch(connection, full=False)

    def _watch(self, connection: _Connection, *, full: bool) -> None:
        """Hear when a socket that was full has room again; asked for only when that changes."""
        if connection.full != full:
            connection.full = full
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
            self._selector.modify(connection.socket, events, connection)
