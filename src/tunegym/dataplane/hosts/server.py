"""The process of a ledger host: one thread, any number of local clients.

``main`` serves the plane in a folder until no client has needed it for a while. It reports to a descriptor that it
listens, or the error for which it can't.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import reprlib
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tunegym.core.wire import Decoder, WireError, pack
from tunegym.dataplane.errors import DataPlaneError, StorageError
from tunegym.dataplane.hosts.folder import FORMAT, LOG_BYTES, SEGMENTS, SOCKET, open_file, socket_path, stranger
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.operations import MESSAGE_BYTES, as_plain
from tunegym.dataplane.hosts.service import Call, LedgerService
from tunegym.dataplane.storage.segments import SegmentUsage

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the host looks for dead clients and unused segments."""
HAND_OVER_S = 10.0
"""How long a new host waits for the lock of one that is ending."""
_CHUNK = 1 << 16
_RETRY_S = 0.01


@dataclass
class _Peer:
    """One client's connection.

    Attributes:
        name: of the client; empty before it has introduced itself.
        visible: whether its process can be seen from here, so that its end can be, too.
        stranger: of another user, who gets an error and nothing else.
        out: bytes that the socket has not accepted yet.
        full: whether the socket accepts no more for now.
    """

    socket: socket.socket
    stranger: bool
    decoder: Decoder = field(default_factory=lambda: Decoder(MESSAGE_BYTES))
    name: str = ""
    visible: bool = False
    out: bytearray = field(default_factory=bytearray)
    full: bool = False


class Server:
    """Serves a ledger on a local socket until no client has needed it for a while.

    Args:
        listener: the socket; it need not listen yet.
        build: makes a recovered service; again after a failed write, when the ledger is ahead of its journal.
        linger_s: how long the server stays without clients.
        present: whether the plane still exists. Removing its folder ends the plane and its host.
        log: the descriptor of the log, which is emptied when it is too large; None for no limit.
    """

    def __init__(
        self,
        listener: socket.socket,
        build: Callable[[], LedgerService],
        linger_s: float,
        present: Callable[[], bool] = lambda: True,
        log: int | None = None,
    ) -> None:
        self._listener = listener
        self._build = build
        self._service = build()
        self._linger_s = linger_s
        self._present = present
        self._log = log
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._buffer = memoryview(bytearray(_CHUNK))
        self._peers: set[int] = set()
        self._by_name: dict[str, _Peer] = {}
        self._idle_since = time.monotonic()
        self._looked = 0.0

    def run(self) -> None:
        """Serve."""
        while self._look():
            pause = max(0.0, min(self._service.pass_time(), LOOK_S))
            self._deliver()  # all that was heard is in the journal now
            if self._peers:
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

    def _look(self) -> bool:
        """Every now and then: end the claims of dead clients, and free segments. False if the plane is gone."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return True
        if not self._present():
            logger.warning("the plane was removed: its host ends")
            return False
        self._looked = now
        if self._log is not None and os.fstat(self._log).st_size > LOG_BYTES:
            os.ftruncate(self._log, 0)
        for name, caller in list(self._service.callers.items()):
            peer = self._by_name.get(name)
            if (peer is None or peer.visible) and not caller.alive():
                if peer is not None:
                    self._hang_up(peer)
                    self._looked = now
                self._service.leave(name)
        self._service.sweep()
        return True

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
        accepted.setblocking(False)
        self._selector.register(accepted, selectors.EVENT_READ, _Peer(accepted, stranger(accepted) is not None))
        self._peers.add(accepted.fileno())

    def _read(self, peer: _Peer) -> None:
        try:
            content = self._buffer[: peer.socket.recv_into(self._buffer)]
        except BlockingIOError:
            return
        except OSError:
            content = self._buffer[:0]
        if content and peer.stranger:
            hint = "only processes of the user who made it can connect: give your own folder"
            self._queue(peer, as_plain(StorageError("the plane belongs to another user", hint=hint)))
        if not content or peer.stranger:
            self._hang_up(peer)
            return
        try:
            messages = peer.decoder.feed(content)
        except WireError as error:
            self._reject(peer, error)
            return
        for message in messages:
            try:
                self._handle(peer, message)
            except Exception as error:  # a client must not end the host, and with it all other clients
                if peer.name:
                    self._fail(peer, message, error)
                else:
                    self._reject(peer, error)
                return

    def _handle(self, peer: _Peer, message: Any) -> None:
        if not peer.name:
            self._greet(peer, message)
        elif message[0] == "bye":
            self._service.leave(peer.name)
            self._hang_up(peer)
        else:
            number, pending, operation, arguments, wait_s = message
            self._service.call(Call(peer.name, number, pending, operation, arguments), wait_s)

    def _greet(self, peer: _Peer, message: Any) -> None:
        if message.get("format") != FORMAT:
            found = message.get("format")
            error = DataPlaneError(f"the plane has format {FORMAT}, this client {found!r}", hint="use one version")
            self._queue(peer, as_plain(error))
            return
        try:
            caller = self._service.join(message["client"])
        except StorageError as error:  # the disk is full
            self._queue(peer, as_plain(error))
            return
        before = self._by_name.get(caller.name)
        if before is not None:  # calls in it are repeated on this connection, and must not come after that
            self._hang_up(before)
        peer.name, peer.visible = caller.name, caller.alive()
        self._by_name[caller.name] = peer
        self._queue(peer, {"format": FORMAT})

    def _reject(self, peer: _Peer, error: Exception) -> None:
        logger.warning("a client was disconnected: %s: %s", type(error).__name__, error)
        self._hang_up(peer)

    def _hang_up(self, peer: _Peer) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
        self._peers.discard(peer.socket.fileno())
        peer.socket.close()
        if self._by_name.get(peer.name) is peer:
            del self._by_name[peer.name]
        self._looked = 0.0

    # answers ------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        sent = False
        while not sent:
            try:
                replies = self._service.take_replies()
            except StorageError as error:
                self._start_over(error)
                return
            unsent = [call for call, reply in replies if not self._reply(call, reply)]
            sent = not unsent

    def _reply(self, call: Call, reply: Any) -> bool:
        """Send an answer; False if it was too large, and a short one takes its place."""
        peer = self._by_name.get(call.name)
        if peer is None:
            return True
        try:
            self._queue(peer, [call.number, reply])
        except WireError as error:
            what = f"the answer to this {call.operation} is too large: {error}"
            logger.warning("%s", what)
            self._service.unsent(call, reply, DataPlaneError(what, hint="use smaller batches"))
            return False
        return True

    def _start_over(self, error: StorageError) -> None:
        """A change that is not in the journal did not happen: tell the callers, and restore the ledger."""
        logger.error("%s", error)
        for name, number in self._service.unanswered():
            peer = self._by_name.get(name)
            if peer is not None:
                self._queue(peer, [number, as_plain(error)])
        self._service.close()
        self._service = self._build()
        for peer in list(self._by_name.values()):
            if peer.name not in self._service.callers:
                self._hang_up(peer)

    def _fail(self, peer: _Peer, message: Any, error: Exception) -> None:
        """A call failed in the ledger: tell the caller, restore the ledger, and let all others ask again."""
        logger.error("a call failed: %s", reprlib.repr(message), exc_info=error)
        if isinstance(message, list) and message:
            what = f"the plane's host failed at this call: {type(error).__name__}: {error}"
            self._queue(peer, [message[0], as_plain(DataPlaneError(what, hint="see host.log in its folder"))])
        self._service.close()
        self._service = self._build()
        for one in list(self._by_name.values()):
            self._hang_up(one)

    def _queue(self, peer: _Peer, message: Any) -> None:
        peer.out += pack(message, MESSAGE_BYTES)
        self._send(peer)

    def _send(self, peer: _Peer) -> None:
        try:
            while peer.out:
                sent = peer.socket.send(peer.out)
                del peer.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up(peer)
            return
        full = bool(peer.out)
        if peer.full != full:
            peer.full = full
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
            self._selector.modify(peer.socket, events, peer)


# the process ------------------------------------------------------------------------------------------


def main(place: str, linger_s: str, descriptor: str) -> None:
    """The process of a host, as ``core.processes`` calls it: folder, seconds to linger, descriptor for the report."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    lock = open_file(Path(place) / "host.lock", os.O_RDWR)
    if _locked(lock):  # else another host is alive
        _serve(Path(place), float(linger_s), int(descriptor))


def _serve(folder: Path, linger_s: float, report: int) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def build() -> LedgerService:
        service = LedgerService(LedgerJournal(folder), SegmentUsage(folder / SEGMENTS))
        logger.info("the ledger is recovered: %d changes were replayed", service.recover())
        return service

    place: tuple[int, int] | None = None
    try:
        try:
            present = lambda: place is None or _is_at(folder, place)  # noqa: E731
            server = Server(listener, build, linger_s, present, sys.stderr.fileno())
            place = _listen(listener, folder)
        except DataPlaneError as error:
            _report(report, error)
            raise
        _report(report, None)
        server.run()
    except DataPlaneError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message is complete
        return
    finally:
        if place is None or _is_at(folder, place):  # not the socket of another plane in its place
            with contextlib.suppress(OSError):
                (folder / SOCKET).unlink(missing_ok=True)
        listener.close()
    logger.info("the host ends: no client for %g s, or the plane is gone", linger_s)


def _is_at(folder: Path, place: tuple[int, int]) -> bool:
    """Whether the folder still has the socket of this host."""
    try:
        found = (folder / SOCKET).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # unknown
    return (found.st_dev, found.st_ino) == place


def _listen(listener: socket.socket, folder: Path) -> tuple[int, int]:
    """Listen; device and inode of the socket."""
    try:
        with socket_path(folder) as place:
            (folder / SOCKET).unlink(missing_ok=True)  # of a dead host
            listener.bind(place)
        (folder / SOCKET).chmod(0o600)
        listener.listen(128)
        made = (folder / SOCKET).stat()
    except OSError as error:
        raise StorageError(f"{folder / SOCKET} can't be used: {error.strerror}", hint="is the folder yours?") from error
    return made.st_dev, made.st_ino


def _report(descriptor: int, error: DataPlaneError | None) -> None:
    """Tell the starter, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(descriptor, orjson.dumps(None if error is None else as_plain(error)))
    os.close(descriptor)


def _locked(lock: int) -> bool:
    """Take the host's lock: a host that is ending holds it a moment longer than its socket."""
    until = time.monotonic() + HAND_OVER_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        else:
            return True
