"""Asking a run to stop: the request, and a flag that waiting threads can poll."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable


class Stop:
    """A request to stop, and the functions to call when it is made.

    ``request`` may be called from a signal handler: it takes no lock, and subscribers must take none either.
    """

    def __init__(self) -> None:
        self.requested = False
        self._subscribers: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def request(self) -> None:
        """Request a stop. Subscribers hear of every request."""
        self.requested = True
        for subscriber, _ in list(self._subscribers):
            subscriber()

    def subscribe(self, subscriber: Callable[[], None], killer: Callable[[], None]) -> None:
        """Call ``subscriber`` when a stop is requested (now, if it already was), ``killer`` when it is forced."""
        self._subscribers.append((subscriber, killer))
        if self.requested:
            subscriber()

    def unsubscribe(self, subscriber: Callable[[], None], killer: Callable[[], None]) -> None:
        """Forget a subscriber."""
        self._subscribers.remove((subscriber, killer))

    def force(self) -> None:
        """Stopping in good order takes too long: call every killer."""
        for _, killer in list(self._subscribers):
            killer()


class StopFlag:
    """Set once by ``set``, and in a hurry when set twice; never unset.

    ``fd`` and ``hurry_fd`` are readable from then on, so that any number of threads can poll them. ``set``
    takes no lock and may be called from a signal handler, also after ``close``.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.fd, self._write_fd = os.pipe()
        self.hurry_fd, self._hurry_write_fd = os.pipe()

    def set(self) -> None:
        """Tell all threads to stop; the second time, to do so at once."""
        fd = self._hurry_write_fd if self.is_set else self._write_fd
        self.is_set = True
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.write(fd, b"!")

    def wait(self, timeout_s: float, *, hurry: bool = False) -> bool:
        """Wait until it is set, or set twice for ``hurry``; whether it was in time."""
        poll = select.poll()
        poll.register(self.hurry_fd if hurry else self.fd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        """Close the descriptors. No thread may wait any longer. Calling it twice is fine."""
        fds = self.fd, self._write_fd, self.hurry_fd, self._hurry_write_fd
        # Forgotten first: a signal handler must never write to a descriptor that was opened since.
        self.fd = self._write_fd = self.hurry_fd = self._hurry_write_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
