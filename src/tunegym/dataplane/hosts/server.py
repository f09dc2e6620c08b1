"""The process of a ledger host: one thread, any number of local clients.

``main`` serves the plane in a folder until no client has needed it for a while. It reports to a descriptor that it
listens, or the error for which it can't.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import reprlib
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tunegym.core.wire import Connection, ConnectionClosedError, WireError, pack
from tunegym.dataplane.errors import DataPlaneError, StorageError
from tunegym.dataplane.hosts.folder import FORMAT, SEGMENTS, SOCKET, open_file, socket_path, take_lock
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.operations import BYE, MESSAGE_BYTES, as_plain
from tunegym.dataplane.hosts.service import LOOK_S, Call, LedgerService
from tunegym.dataplane.storage.usage import SegmentUsage

logger = logging.getLogger(__name__)

LOG_BYTES = 1 << 20
"""The log is emptied when it is larger."""
HAND_OVER_S = 10.0
"""How long a new host waits for the lock of one that is ending."""
_CHUNK = 1 << 16
_RETRY_S = 0.01


@dataclass
class _Peer:
    """One client's connection."""

    connection: Connection
    name: str = ""  # of the client; empty before it has introduced itself


class Server:
    """Serves the ledger of a folder on its socket, until no client has needed it for a while.

    Args:
        linger_s: how long the server stays without clients.

    Raises:
        StorageError: the ledger can't be recovered, or the socket can't be used.
    """

    def __init__(self, folder: Path, linger_s: float) -> None:
        self._folder = folder
        self._linger_s = linger_s
        self._service = self._recover()
        self._listener = self._listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._buffer = memoryview(bytearray(_CHUNK))
        self._by_name: dict[str, _Peer] = {}
        self._idle_since = time.monotonic()
        self._looked = 0.0

    def _recover(self) -> LedgerService:
        service = LedgerService(LedgerJournal(self._folder), SegmentUsage(self._folder / SEGMENTS))
        logger.info("the ledger is recovered: %d changes were replayed", service.recover())
        return service

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = self._folder / SOCKET
        try:
            with socket_path(self._folder) as place:
                path.unlink(missing_ok=True)  # of a dead host
                listener.bind(place)
            path.chmod(0o600)
            listener.listen(128)
            listener.setblocking(False)
            made = path.stat()
        except OSError as error:
            raise StorageError(f"{path} can't be used: {error.strerror}", hint="is the folder yours?") from error
        self._place = made.st_dev, made.st_ino
        return listener

    def _present(self) -> bool:
        """Whether the folder still has the socket of this host: removing the folder ends the plane and its host."""
        try:
            found = (self._folder / SOCKET).stat()
        except FileNotFoundError:
            return False
        except OSError:
            return True  # unknown
        return (found.st_dev, found.st_ino) == self._place

    def close(self) -> None:
        """Remove the socket, unless another plane has taken its place."""
        if self._present():
            with contextlib.suppress(OSError):
                (self._folder / SOCKET).unlink(missing_ok=True)
        self._listener.close()

    def run(self) -> None:
        """Serve."""
        while self._look():
            pause = max(0.0, self._service.pass_time())
            if self._service.move():
                pause = 0.0
            self._deliver()  # all that was heard is in the journal now
            if self._in_use():
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > self._linger_s:
                return
            if not self._looked:  # a client hung up: look at once whether it is dead
                pause = 0.0
            for key, events in self._selector.select(pause):
                if key.fileobj is self._listener:
                    self._welcome()
                elif events & selectors.EVENT_WRITE:
                    self._send(key.data)
                else:
                    self._read(key.data)

    def _in_use(self) -> bool:
        return len(self._selector.get_map()) > 1  # not only the listener

    def _look(self) -> bool:
        """Every now and then: end the claims of dead clients, and free segments. False if the plane is gone."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return True
        if not self._present():
            logger.warning("the plane was removed: its host ends")
            return False
        self._looked = now
        self._tidy()
        for name, caller in list(self._service.callers.items()):
            if not caller.alive():
                peer = self._by_name.get(name)
                if peer is not None:
                    self._hang_up(peer)
                    self._looked = now
                self._service.leave(name)
        self._service.sweep()
        return True

    def _tidy(self) -> None:
        log = sys.stderr.fileno()
        if os.fstat(log).st_size > LOG_BYTES:
            os.ftruncate(log, 0)

    # connections --------------------------------------------------------------------------------------

    def _welcome(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # mostly too many open files: the client waits for its turn
            logger.warning("a client has to wait for its connection: %s", error)
            time.sleep(_RETRY_S)
            return
        peer = _Peer(Connection(accepted, limit=MESSAGE_BYTES))
        self._selector.register(accepted, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> None:
        try:
            content = self._buffer[: peer.connection.socket.recv_into(self._buffer)]
        except BlockingIOError:
            return
        except OSError:
            content = self._buffer[:0]
        if not content:
            if self._by_name.get(peer.name) is peer and peer.name in self._service.callers:
                self._service.callers[peer.name].left = time.monotonic()
            self._hang_up(peer)
            return
        try:
            messages = peer.connection.decoder.feed(content)
        except WireError as error:
            self._reject(peer, error)
            return
        for message in messages:
            try:
                self._handle(peer, message)
            except Exception as error:  # a client must not end the host, and with it all other clients
                if not peer.name:
                    self._reject(peer, error)
                    return
                logger.exception("a call failed: %s", reprlib.repr(message))
                what = f"the plane's host failed at this call: {type(error).__name__}: {error}"
                told = DataPlaneError(what, hint="see host.log in its folder")
                self._start_over(told, [(peer.name, message[0])] if isinstance(message, list) and message else [])
                return

    def _handle(self, peer: _Peer, message: Any) -> None:
        if not peer.name:
            self._greet(peer, message)
            return
        number, pending, operation, arguments, wait_s = message
        if operation == BYE:
            self._service.leave(peer.name)
            self._queue(peer, [number, {"value": None}])
        else:
            self._service.call(Call(peer.name, number, pending, operation, arguments), wait_s)

    def _greet(self, peer: _Peer, message: Any) -> None:
        try:
            found = message.get("format")
            if found != FORMAT:
                raise DataPlaneError(f"the plane has format {FORMAT}, this client {found!r}", hint="use one version")
            caller = self._service.join(message["client"])
        except DataPlaneError as error:  # or the disk is full
            self._queue(peer, as_plain(error))
            return
        before = self._by_name.get(caller.name)
        if before is not None:  # calls in it are repeated on this connection, and must not come after that
            self._hang_up(before)
        peer.name, caller.left = caller.name, math.inf
        self._by_name[caller.name] = peer
        self._queue(peer, {"format": FORMAT})

    def _reject(self, peer: _Peer, error: Exception) -> None:
        logger.warning("a client was disconnected: %s: %s", type(error).__name__, error)
        self._hang_up(peer)

    def _hang_up(self, peer: _Peer) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.connection.socket)
        peer.connection.close()
        if self._by_name.get(peer.name) is peer:
            del self._by_name[peer.name]
        self._looked = 0.0

    # answers ------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        try:
            replies = self._service.take_replies()
        except StorageError as error:
            logger.error("%s", error)  # noqa: TRY400 - the message is complete
            self._start_over(error, self._service.unanswered())
            return
        for call, reply in replies:
            try:
                self._reply(call.name, call.number, reply)
            except WireError as error:
                what = f"the answer to this {call.operation} is too large: {error}"
                self._reply(call.name, call.number, as_plain(DataPlaneError(what, hint="use smaller batches")))

    def _reply(self, name: str, number: int, reply: Any) -> None:
        peer = self._by_name.get(name)
        if peer is not None:
            self._queue(peer, [number, reply])

    def _start_over(self, error: DataPlaneError, calls: Sequence[tuple[str, int]]) -> None:
        """Restore the ledger from the journal: a change that is not in it did not happen.

        The callers of failed calls are told. All clients connect again, and repeat their other calls.
        """
        for name, number in calls:
            self._reply(name, number, as_plain(error))
        self._service.close()
        self._service = self._recover()
        for peer in list(self._by_name.values()):
            self._hang_up(peer)

    def _queue(self, peer: _Peer, message: Any) -> None:
        self._send(peer, pack(message, MESSAGE_BYTES))

    def _send(self, peer: _Peer, frame: bytes = b"") -> None:
        try:
            is_sent = peer.connection.post(frame)
        except ConnectionClosedError:
            self._hang_up(peer)
            return
        events = selectors.EVENT_READ | (0 if is_sent else selectors.EVENT_WRITE)
        if self._selector.get_key(peer.connection.socket).events != events:
            self._selector.modify(peer.connection.socket, events, peer)


# the process ------------------------------------------------------------------------------------------


def main(place: str, linger_s: str, descriptor: str) -> None:
    """The process of a host, as ``core.processes`` calls it: folder, seconds to linger, descriptor for the report."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    folder, report = Path(place), int(descriptor)
    lock = open_file(folder / "host.lock", os.O_RDWR)
    until = time.monotonic() + HAND_OVER_S  # a host that is ending holds it a moment longer than its socket
    if not take_lock(lock, lambda: time.monotonic() > until):
        return  # another host is alive
    try:
        server = Server(folder, float(linger_s))
    except DataPlaneError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message is complete
        _report(report, error)
        return
    _report(report, None)
    try:
        server.run()
    except DataPlaneError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message is complete
    finally:
        server.close()
    logger.info("the host ends: no client for %s s, or the plane is gone", linger_s)


def _report(descriptor: int, error: DataPlaneError | None) -> None:
    """Tell the starter, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(descriptor, orjson.dumps(None if error is None else as_plain(error)))
    os.close(descriptor)
