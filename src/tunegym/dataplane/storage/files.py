"""A segment as its producer has it: a file, and its lock.

A segment is locked (``flock``) by its producer for as long as a block may still be added to it, or one of its blocks
may be on the way to the ledger. The system itself ends the lock of a process that dies. Who hosts the ledger unlinks
a segment only if it gets that lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

from tunegym.core.interrupts import interrupts_deferred
from tunegym.dataplane.storage.freeing import later
from tunegym.dataplane.storage.segments import HEAD_BYTES, head

_segments: set[Segment] = set()
_making = threading.RLock()
"""Held while there is a segment that is not among them yet. Nobody forks then: the child could not close it."""


class Segment:
    """One file, and its lock.

    Attributes:
        used: where the next block begins.
        writing: how many of its blocks are being written.
        on_the_way: where those begin that the ledger may not know yet, the ones that are being written included.
        full: no block is added any more.
    """

    def __init__(self, path: Path, descriptor: int, capacity: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.capacity = capacity
        self.used = HEAD_BYTES
        self.writing = 0
        self.on_the_way: set[int] = set()
        self.full = False
        self._file = _file(descriptor)
        _segments.add(self)

    def close(self) -> None:
        """Give up the lock."""
        _segments.discard(self)
        os.close(self.descriptor)

    def finish(self, *, wait: bool) -> None:
        """Give up the lock, and then what it doesn't use, or all of it if nobody else has it any more."""
        with interrupts_deferred():
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            if wait:
                self._give_back()
            else:
                later(self.capacity, self.descriptor, self._give_back)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):
            if os.fstat(self.descriptor).st_nlink:
                os.ftruncate(self.descriptor, self.used)
        os.close(self.descriptor)
        _segments.discard(self)

    def forked(self) -> None:
        """In a child: close it, if that wasn't just done."""
        with contextlib.suppress(OSError):
            if _file(self.descriptor) == self._file:
                os.close(self.descriptor)


def _file(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def create(path: Path, capacity: int) -> Segment:
    """A new segment, locked. Raises ``OSError``."""
    while True:
        with _making:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            segment = Segment(path, descriptor, capacity)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:  # it was taken for a dead producer's before it was locked
                segment.close()
                continue
            os.ftruncate(descriptor, capacity)
            os.pwrite(descriptor, head(), 0)
        except OSError:
            segment.close()
            path.unlink(missing_ok=True)
            raise
        return segment


def _forked() -> None:
    """A lock lasts until the last descriptor is closed: a child must not have any."""
    _making.release()
    for segment in list(_segments):
        segment.forked()
    _segments.clear()


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_forked)
