"""A producer's segments: written from their beginning to their end, block by block, and never again.

Blocks are written with ``pwritev`` and not through a map: filling fresh pages of a map costs a fault for each, several
times the copy itself, and a full disk would be a signal instead of an error. The next segment's pages are taken from
the system in a thread of their own while the present one is filled.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tunegym.dataplane.encoding import ALIGNED, Column, aligned
from tunegym.dataplane.errors import ClosedError
from tunegym.dataplane.storage.base import Location
from tunegym.dataplane.storage.files import Segment, create
from tunegym.dataplane.storage.segments import HEAD_BYTES, SUFFIX, block_head, failed

SMALLEST, LARGEST = 4 << 20, 256 << 20
"""How large segments are made: for several puts, such as they are."""
_PUTS = 4
_SPARE = 8
"""Pages are taken beforehand only where so many times as many are free."""
_PIECES = min(os.sysconf("SC_IOV_MAX"), 1024)
_GAP = bytes(ALIGNED)

_writers: weakref.WeakSet[SegmentWriter] = weakref.WeakSet()


class SegmentWriter:
    """Writes blocks into segments of its own, in ``folder``. Any thread may call it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start_anew()
        _writers.add(self)

    def _start_anew(self) -> None:
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._count = 0
        self._guard = threading.Lock()
        self._open: dict[str, Segment] = {}
        self._present: Segment | None = None
        self._next: _Preparation | None = None
        self._largest = 0
        self._closed = False

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        first, nbytes = block_head(partition_id, columns)
        with self._guard:
            if self._closed:
                raise ClosedError("the storage is closed")
            try:
                segment = self._room(nbytes)
            except OSError as error:
                raise failed("written", self._folder, error) from error
            at = segment.used
            segment.used = aligned(at + nbytes)
            segment.writing += 1
            segment.on_the_way.add(at)
        try:
            _write_all(segment.descriptor, at, first, columns)
        except BaseException as error:
            self._written(segment)
            with self._guard:
                if segment.used == aligned(at + nbytes):
                    segment.used = at
                self._arrived(segment, at)
            if isinstance(error, OSError):
                raise failed("written", segment.path, error) from error
            raise
        self._written(segment)
        return {"segment": segment.path.name, "at": at, "nbytes": nbytes}, nbytes

    def settle(self, location: Location) -> None:
        """The ledger knows of a block, or never will."""
        with self._guard:
            segment = self._open.get(location["segment"])
            if segment is not None:
                self._arrived(segment, location["at"])

    def close(self) -> None:
        """Give up every lock: what the ledger knows of stays."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            prepared = self._next.take() if self._next is not None else None
            self._next = None
            if prepared is not None:
                with contextlib.suppress(OSError):
                    prepared.path.unlink()
                prepared.close()
            for segment in list(self._open.values()):
                self._abandon(segment)

    # segments -----------------------------------------------------------------------------------------

    def _room(self, nbytes: int) -> Segment:
        """A segment with so many bytes left."""
        self._largest = max(self._largest, nbytes)
        segment = self._present
        if segment is None or segment.used + nbytes > segment.capacity:
            fresh = self._fresh(nbytes)
            self._largest = nbytes
            if segment is not None:
                self._finish(segment)
            self._present = segment = fresh
            self._open[fresh.path.name] = fresh
        elif self._next is None and segment.used > segment.capacity // _SPARE:
            self._count += 1
            self._next = _Preparation(self._path(), self._capacity())
        return segment

    def _fresh(self, nbytes: int) -> Segment:
        prepared = self._next.take() if self._next is not None else None
        self._next = None
        if prepared is not None and HEAD_BYTES + nbytes <= prepared.capacity:
            return prepared
        if prepared is not None:
            prepared.path.unlink(missing_ok=True)
            prepared.close()
        self._count += 1
        return create(self._path(), max(self._capacity(), aligned(HEAD_BYTES + nbytes)))

    def _capacity(self) -> int:
        return min(max(SMALLEST, 1 << (_PUTS * self._largest).bit_length()), LARGEST)

    def _path(self) -> Path:
        return self._folder / f"{self._name}-{self._count}{SUFFIX}"

    def _finish(self, segment: Segment) -> None:
        """No block is added any more: what it doesn't use goes back, once the ledger knows of all of them."""
        segment.full = True
        if not segment.on_the_way and self._open.pop(segment.path.name, None) is not None:
            segment.finish(wait=self._closed)  # nobody may be there later

    def _written(self, segment: Segment) -> None:
        with self._guard:
            segment.writing -= 1
            if self._closed:
                self._abandon(segment)

    def _abandon(self, segment: Segment) -> None:
        """The client closes: puts that are on their way fail with it. A descriptor in use is closed by its user."""
        if not segment.writing:
            segment.on_the_way.clear()
            self._finish(segment)

    def _arrived(self, segment: Segment, at: int) -> None:
        segment.on_the_way.discard(at)
        if segment.full:
            self._finish(segment)

    def forked(self) -> None:
        """In a child: the segments are its parent's."""
        closed = self._closed
        self._start_anew()
        self._closed = closed


class _Preparation:
    """A segment on its way: made, and its pages taken, in a thread of its own."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.segment: Segment | None = None
        self._path, self._capacity = path, capacity
        self._thread = threading.Thread(target=self._prepare, name="tunegym-segment", daemon=True)
        self._thread.start()

    def _prepare(self) -> None:
        with contextlib.suppress(OSError):  # whoever needs it makes it again, and is told
            self.segment = create(self._path, self._capacity)
            free = os.fstatvfs(self.segment.descriptor)
            if free.f_bavail * free.f_frsize > _SPARE * self._capacity:
                os.posix_fallocate(self.segment.descriptor, 0, self._capacity)

    def take(self) -> Segment | None:
        """The segment, as soon as it is there; None if it could not be made."""
        self._thread.join()
        return self.segment


def _write_all(descriptor: int, at: int, first: bytes, columns: Mapping[str, Column]) -> None:
    """A block, in as few calls as may be. Raises ``OSError``."""
    pieces: list[Any] = [first]
    for column in columns.values():
        for buffer, size in zip(column.buffers, column.sizes, strict=True):
            pieces += buffer
            if size % ALIGNED:
                pieces.append(_GAP[: -size % ALIGNED])
    for begin in range(0, len(pieces), _PIECES):
        some = pieces[begin : begin + _PIECES]
        size = sum([memory.nbytes if isinstance(memory, np.ndarray) else len(memory) for memory in some])
        written = os.pwritev(descriptor, some, at)
        if written < size:
            _write_rest(descriptor, at + written, some, written)
        at += size


def _write_rest(descriptor: int, at: int, pieces: list[Any], skip: int) -> None:
    """What one call did not take: it takes 2 GB at most, and less where the room ends."""
    for piece in pieces:
        left = memoryview(piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8))
        taken = min(skip, len(left))
        left, skip = left[taken:], skip - taken
        while left:
            written = os.pwrite(descriptor, left, at)
            at += written
            left = left[written:]


def _forked() -> None:
    for writer in list(_writers):
        writer.forked()


os.register_at_fork(after_in_child=_forked)
