"""A connection on which messages travel, one at a time, with a bound on how long each may take."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from tunegym.tuning.runners.children import milliseconds
from tunegym.tuning.servers.frames import HEADER, MESSAGE_LIMIT, size_of
from tunegym.tuning.servers.wire import decode, encode

_CHUNK = 1 << 18
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))


class ChannelClosedError(Exception):
    """The other side hung up, or is gone."""


class Inbox:
    """Bytes as they arrive, until they are a message.

    Args:
        limit: bytes of the largest message that is taken; may be changed between two messages.
    """

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self.limit = limit
        self._received = bytearray()
        self._size: int | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing of a further message is there."""
        return not self._received

    def add(self, content: bytes | bytearray) -> None:
        """More bytes. Raises ``WireError`` as soon as they can't become a message."""
        self._received += content
        if self._size is None and len(self._received) >= HEADER.size:
            self._size = size_of(self._received[: HEADER.size], self.limit)

    def take(self) -> tuple[Any] | None:
        """The next message, alone in a tuple, or None if it isn't there yet. Raises ``WireError``."""
        if self._size is None or len(self._received) < self._size:
            return None
        frame, rest = self._received, bytearray()
        if len(frame) > self._size:
            frame, rest = frame[: self._size], frame[self._size :]
        self._received, self._size = bytearray(), None
        self.add(rest)
        return (decode(frame, self.limit),)


class Channel:
    """Sends and receives values on a connected socket. Used by one thread, except ``hang_up``.

    Args:
        connected: is made non-blocking, and closed by ``close``.
        watched: a file descriptor that is readable when the other side is gone, though something may hold its end
            of the connection open; -1 for none.
        inbox: what was received already.
        idle: called every ``idle_s`` seconds at most, while a message is waited for.
    """

    def __init__(
        self,
        connected: socket.socket,
        *,
        watched: int = -1,
        inbox: Inbox | None = None,
        idle: Callable[[], None] | None = None,
        idle_s: float = 2.0,
    ) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._inbox = inbox or Inbox()
        self._idle = idle
        self._idle_s = idle_s
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._watched = watched
        if watched >= 0:
            self._poll.register(watched, select.POLLIN)

    @property
    def limit(self) -> int:
        """Bytes of the largest message that is taken."""
        return self._inbox.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._inbox.limit = limit

    def send(self, value: Any, deadline: float | None = None) -> None:
        """Send one value; returns when the system has taken all of it.

        Raises:
            WireError: it can't be sent. Nothing of it was.
            ChannelClosedError: nobody is there any more.
            TimeoutError: the (monotonic) deadline is over.
        """
        self.send_frame(encode(value), deadline)

    def send_frame(self, frame: bytes, deadline: float | None = None) -> None:
        """As ``send``, for a value that was encoded already."""
        left = memoryview(frame)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._wait_to_send(deadline)
            except OSError as error:
                raise ChannelClosedError(_told(error)) from None

    def receive(self, deadline: float | None = None, silence_s: float | None = None) -> Any:
        """The next value. What is there already is taken, however late it is.

        Args:
            deadline: (monotonic) when something of it must be there; None for never.
            silence_s: how long it may take from one part of it to the next; None if all must be there by the deadline.

        Raises:
            WireError: what arrives is none.
            ChannelClosedError: nobody is there any more.
            TimeoutError: it took too long.
        """
        while (found := self._inbox.take()) is None:
            gone = self._wait_to_receive(deadline)
            try:
                content = self._socket.recv(_CHUNK)
            except BlockingIOError:
                if gone:
                    raise ChannelClosedError("it is gone") from None
                continue
            except OSError as error:
                raise ChannelClosedError(_told(error)) from None
            if not content:
                raise ChannelClosedError("it hung up")
            self._inbox.add(content)
            if deadline is not None and silence_s is not None:
                deadline = max(deadline, time.monotonic() + silence_s)
        return found[0]

    def hang_up(self) -> None:
        """Whoever waits here or at the other side is told that it is over. No locks."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket. Calling it twice is fine."""
        self._socket.close()

    def _wait_to_receive(self, deadline: float | None) -> bool:
        """Wait for something to read; whether the other side is gone."""
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            pause = self._idle_s if self._idle is not None and (left is None or left > self._idle_s) else left
            ready = self._poll.poll(milliseconds(pause))
            if ready:
                return any(fd == self._watched for fd, _ in ready)
            if left is not None and left <= 0:
                raise TimeoutError
            if self._idle is not None:
                self._idle()

    def _wait_to_send(self, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if self._watched >= 0:
            poll.register(self._watched, select.POLLIN)
        left = None if deadline is None else deadline - time.monotonic()
        ready = poll.poll(milliseconds(left))
        if any(fd == self._watched for fd, _ in ready):
            raise ChannelClosedError("it is gone")
        if not ready and left is not None and left <= 0:
            raise TimeoutError


def _told(error: OSError) -> str:
    return error.strerror or type(error).__name__


def keep_alive(connected: socket.socket) -> None:
    """Small messages go at once, and a machine that vanished is noticed."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
