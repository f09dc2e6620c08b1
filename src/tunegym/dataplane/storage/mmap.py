"""A storage in segment files of one folder, shared by the processes of one machine.

A producer appends blocks to its own segments. Blocks are written with ``pwritev`` and not through a map: filling fresh
pages of a map costs a fault for each, several times the copy itself, and a full disk would be a signal instead of an
error. The pages of the next segment are allocated in a thread while the current one fills. Consumers map segments and
read views of them without a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tunegym.dataplane.encoding import ALIGNED, Column, aligned
from tunegym.dataplane.errors import ClosedError, FieldError
from tunegym.dataplane.storage.base import BlockGoneError, Location
from tunegym.dataplane.storage.segments import (
    HEAD_BYTES,
    RETIRED_AT,
    SUFFIX,
    block_head,
    check_head,
    check_name,
    failed,
    head,
    make_folder,
    read_block,
)

SMALLEST, LARGEST = 4 << 20, 256 << 20
"""The size of a segment: room for several puts, within these bounds."""
_PUTS = 4
_SPARE = 8
"""Pages are allocated beforehand only where this many times as many are free."""
MOST_MAPS = 256
"""Mapped segments that stay mapped without views: mapping again costs more than reading. Each costs a descriptor."""
_MOST_BLOCKS = 256
_PIECES = min(os.sysconf("SC_IOV_MAX"), 1024)
_GAP = bytes(ALIGNED)


class MmapStorage:
    """A ``Storage`` of one client. Settled bytes outlive the client; ``SegmentUsage`` frees them.

    Args:
        folder: of the segments, made if missing. In /dev/shm it is memory; on a disk it is memory that the system also
            writes to the disk.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._writer = SegmentWriter(folder)
        self._reader = SegmentReader(folder)

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        return self._writer.write(partition_id, columns)

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""
        self._writer.settle(location)

    def read(self, location: Location, field: str) -> Column:
        """See ``Storage.read``."""
        columns = self._reader.columns(location)
        if field not in columns:
            raise FieldError(f"{field!r} was not written here", hint=f"it has: {', '.join(columns)}")
        return columns[field]

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``: blocks of this client that the ledger refused. It frees the others itself."""
        for location in locations:
            self._writer.settle(location)

    def trim(self) -> None:
        """See ``Storage.trim``."""
        self._reader.trim()

    def close(self) -> None:
        """See ``Storage.close``."""
        self._writer.close()
        self._reader.close()


# writing ----------------------------------------------------------------------------------------------


@dataclass
class _Segment:
    """A locked file that blocks are appended to.

    Attributes:
        used: where the next block starts.
        on_the_way: blocks that the ledger may not know yet.
        full: no block is added any more.
    """

    path: Path
    descriptor: int
    capacity: int
    used: int = HEAD_BYTES
    on_the_way: set[int] = field(default_factory=set)
    full: bool = False

    def unlock(self) -> None:
        """Let the ledger's host unlink it. Unlocking also counts for a forked child's copy of the descriptor."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, self.used)  # give back the pages that were allocated beforehand
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


class _Preparation:
    """The next segment: a thread makes it and allocates its pages, which takes longer than writing to them."""

    def __init__(self, path: Path, capacity: int) -> None:
        self._made: _Segment | None = None
        self._thread = threading.Thread(target=self._make, args=(path, capacity), name="tunegym-segment", daemon=True)
        self._thread.start()

    def _make(self, path: Path, capacity: int) -> None:
        with contextlib.suppress(OSError):  # the writer makes one itself, and reports the error
            self._made = _create(path, capacity)
            free = os.fstatvfs(self._made.descriptor)
            if free.f_bavail * free.f_frsize > _SPARE * capacity:
                os.posix_fallocate(self._made.descriptor, 0, capacity)

    def take(self, least: int) -> _Segment | None:
        """The segment, if it could be made and has this much room."""
        self._thread.join()
        made = self._made
        if made is not None and HEAD_BYTES + least > made.capacity:
            made.path.unlink(missing_ok=True)
            made.unlock()
            return None
        return made


class SegmentWriter:
    """Appends blocks to its segments in ``folder``. Any thread may call it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._count = 0
        self._lock = threading.Lock()
        self._open: dict[str, _Segment] = {}
        self._current: _Segment | None = None
        self._next: _Preparation | None = None
        self._closed = False

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        first, nbytes = block_head(partition_id, columns)
        with self._lock:
            if self._closed:
                raise ClosedError("the storage is closed")
            try:
                segment = self._room(nbytes)
                at = segment.used
                _write_block(segment.descriptor, at, first, columns)
            except OSError as error:
                raise failed("written", self._folder, error) from error
            segment.used = aligned(at + nbytes)
            segment.on_the_way.add(at)
        return {"segment": segment.path.name, "at": at, "nbytes": nbytes}, nbytes

    def settle(self, location: Location) -> None:
        """The ledger has a block, or refused it."""
        with self._lock:
            segment = self._open.get(location["segment"])
            if segment is not None:
                segment.on_the_way.discard(location["at"])
                self._finish(segment)

    def close(self) -> None:
        """Unlock every segment: settled blocks stay."""
        with self._lock:
            self._closed = True
            for segment in self._open.values():
                segment.unlock()
            self._open.clear()
            if self._next is not None:
                self._next.take(LARGEST)
                self._next = None

    def _room(self, nbytes: int) -> _Segment:
        """A segment with this much room. Raises ``OSError``."""
        segment = self._current
        capacity = min(max(SMALLEST, 1 << (_PUTS * nbytes).bit_length()), LARGEST)
        if segment is None or segment.used + nbytes > segment.capacity:
            fresh = None if self._next is None else self._next.take(nbytes)
            self._next = None
            fresh = fresh or _create(self._path(), max(capacity, aligned(HEAD_BYTES + nbytes)))
            if segment is not None:
                segment.full = True
                self._finish(segment)
            self._current = self._open[fresh.path.name] = segment = fresh
        elif self._next is None and segment.used > segment.capacity // _SPARE:
            self._next = _Preparation(self._path(), capacity)
        return segment

    def _path(self) -> Path:
        self._count += 1
        return self._folder / f"{self._name}-{self._count}{SUFFIX}"

    def _finish(self, segment: _Segment) -> None:
        if segment.full and not segment.on_the_way and self._open.pop(segment.path.name, None) is not None:
            segment.unlock()


def _create(path: Path, capacity: int) -> _Segment:
    """A new, locked segment. Raises ``OSError``."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:  # else it was taken for a dead producer's before it was locked
                os.ftruncate(descriptor, capacity)  # sparse: readers can map all of it now
                os.pwrite(descriptor, head(), 0)
                return _Segment(path, descriptor, capacity)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)


def _write_block(descriptor: int, at: int, first: bytes, columns: Mapping[str, Column]) -> None:
    """Write a block in few system calls. Raises ``OSError``."""
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
    """Write what one call did not: it writes at most 2 GB, and less where the room ends."""
    for piece in pieces:
        left = memoryview(piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8))
        taken = min(skip, len(left))
        left, skip = left[taken:], skip - taken
        while left:
            written = os.pwrite(descriptor, left, at)
            at += written
            left = left[written:]


# reading ----------------------------------------------------------------------------------------------


class _Map:
    """One mapped segment. Views of it keep the memory alive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            check_head(os.pread(descriptor, HEAD_BYTES, 0), path)
            self._mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)  # the map has its own
        self._memory = np.frombuffer(self._mapped, dtype=np.uint8)
        self._blocks: dict[int, dict[str, Column]] = {}

    def block(self, at: int, nbytes: int) -> dict[str, Column]:
        """See ``read_block``."""
        found = self._blocks.get(at)
        if found is None:
            # Reading a map beyond the end of its file is a fatal signal, so look at the length first.
            end = min(self._mapped.size(), len(self._memory))
            found = read_block(self._memory[:end], at, nbytes, self._path)
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.clear()
            self._blocks[at] = found
        return found

    @property
    def retired(self) -> bool:
        """Whether the segment is unlinked, so that only its maps keep the memory."""
        return bool(self._memory[RETIRED_AT])


class SegmentReader:
    """Maps segments of ``folder`` when they are needed, and keeps some mapped. Any thread may call it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._maps: OrderedDict[str, _Map] = OrderedDict()
        self._closed = False

    def columns(self, location: Location) -> dict[str, Column]:
        """The columns of a block. Raises ``BlockGoneError`` and ``StorageError``."""
        with self._lock:
            if self._closed:
                raise ClosedError("the storage is closed")
            return self._map(location["segment"]).block(location["at"], location["nbytes"])

    def trim(self) -> None:
        """Unmap retired segments."""
        with self._lock:
            gone = [self._maps.pop(name) for name in [name for name, one in self._maps.items() if one.retired]]
        del gone  # unmapping takes long: without the lock

    def close(self) -> None:
        """Unmap all segments that have no views."""
        with self._lock:
            self._closed = True
            self._maps.clear()

    def _map(self, name: str) -> _Map:
        known = self._maps.get(name)
        if known is not None:
            self._maps.move_to_end(name)
            return known
        check_name(name)
        path = self._folder / name
        try:
            self._maps[name] = known = _Map(path)
        except FileNotFoundError:
            raise BlockGoneError(f"{path} is gone", hint="the samples were cleared or written again") from None
        except OSError as error:
            raise failed("read", path, error) from error
        while len(self._maps) > MOST_MAPS:
            self._maps.popitem(last=False)
        return known
