"""A storage in segment files of one folder, shared by the processes of one machine.

A producer appends blocks to its own segments. Blocks are written with ``pwritev`` and not through a map: filling fresh
pages of a map costs a fault for each, several times the copy itself, and a full disk would be a signal instead of an
error. Consumers map segments and read views of them without a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tunegym.dataplane.encoding import Column, aligned
from tunegym.dataplane.errors import ClosedError
from tunegym.dataplane.storage import BlockGoneError, Location
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
MOST_MAPS = 256
"""Mapped segments that stay mapped without views: mapping again costs more than reading. Each costs a descriptor."""
_PIECES = min(os.sysconf("SC_IOV_MAX"), 1024)


class MmapStorage:
    """A ``Storage`` of one client. Settled bytes outlive the client; ``SegmentUsage`` frees them.

    Args:
        folder: of the segments, made if missing. In /dev/shm it is memory; on a disk it is memory that the system also
            writes to the disk.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._count = 0
        self._lock = threading.Lock()
        self._open: dict[str, _Segment] = {}
        self._current: _Segment | None = None
        self._closed = False
        self._maps = _Maps(folder)

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        first, nbytes = block_head(partition_id, columns)
        with self._lock:
            if self._closed:
                raise ClosedError("the storage is closed")
            try:
                segment = self._room(nbytes)
                at = segment.used
                segment.on_the_way.add(at)
                try:
                    _write_block(segment.descriptor, at, first, columns)
                except BaseException:
                    self._settle(segment, at)
                    raise
            except OSError as error:
                raise failed("written", self._folder, error) from error
            segment.used = aligned(at + nbytes)
        return {"segment": segment.path.name, "at": at, "nbytes": nbytes, "partition": partition_id}, nbytes

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""
        with self._lock:
            segment = self._open.get(location["segment"])
            if segment is not None:
                self._settle(segment, location["at"])

    def read(self, location: Location) -> Mapping[str, Column]:
        """All columns of one write."""
        return self._maps.find(location["segment"]).block(location["at"], location["nbytes"])

    def read_many(self, wanted: Sequence[tuple[Location, Sequence[str]]]) -> list[Mapping[str, Column]]:
        """See ``Storage.read_many``."""
        return [self.read(location) for location, _ in wanted]

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``: blocks of this client that the ledger refused. It frees the others itself."""
        for location in locations:
            self.settle(location)

    def trim(self) -> None:
        """See ``Storage.trim``."""
        self._maps.trim()

    def close(self) -> None:
        """See ``Storage.close``: unlock every segment, unmap those without views. Settled blocks stay."""
        with self._lock:
            self._closed = True
            for segment in self._open.values():
                segment.let_go()
            self._open.clear()
        self._maps.clear()

    def _room(self, nbytes: int) -> _Segment:
        """A segment with this much room. Raises ``OSError``."""
        segment = self._current
        if segment is None or segment.used + nbytes > segment.capacity or not segment.hold():
            capacity = min(max(SMALLEST, 1 << (_PUTS * nbytes).bit_length()), LARGEST)
            self._count += 1
            path = self._folder / f"{self._name}-{self._count}{SUFFIX}"
            self._current = segment = _create(path, max(capacity, aligned(HEAD_BYTES + nbytes)))
        self._open[segment.path.name] = segment
        return segment

    def _settle(self, segment: _Segment, at: int) -> None:
        segment.on_the_way.discard(at)
        if not segment.on_the_way and self._open.pop(segment.path.name, None) is not None:
            segment.let_go()


# writing ----------------------------------------------------------------------------------------------


@dataclass
class _Segment:
    """A file that blocks are appended to, locked while the ledger may not know some of them yet."""

    path: Path
    descriptor: int  # -1 while it is let go
    capacity: int
    used: int = HEAD_BYTES  # where the next block starts
    on_the_way: set[int] = field(default_factory=set)  # blocks that the ledger may not know yet

    def hold(self) -> bool:
        """Open and lock it; False if it was unlinked meanwhile. Raises ``OSError``."""
        if self.descriptor < 0:
            with contextlib.suppress(FileNotFoundError):
                self.descriptor = _lock(self.path, os.O_RDWR)
        return self.descriptor >= 0

    def let_go(self) -> None:
        """Let the ledger's host unlink it. Unlocking also counts for a forked child's copy of the descriptor."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)
        self.descriptor = -1


def _lock(path: Path, flags: int) -> int:
    """The descriptor of a locked segment; -1 if it was unlinked before it was locked. Raises ``OSError``."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.fstat(descriptor).st_nlink:
        return descriptor
    os.close(descriptor)
    return -1


def _create(path: Path, capacity: int) -> _Segment:
    """A new, locked segment. Raises ``OSError``."""
    while (descriptor := _lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)) < 0:
        pass  # it was taken for a dead producer's
    try:
        os.ftruncate(descriptor, capacity)  # sparse: readers can map all of it now
        os.pwrite(descriptor, head(), 0)
    except OSError:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return _Segment(path, descriptor, capacity)


def _write_block(descriptor: int, at: int, first: bytes, columns: Mapping[str, Column]) -> None:
    """Write a block in few system calls. Raises ``OSError``."""
    pieces: list[Any] = [first]
    for column in columns.values():
        pieces += column.pieces()
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

    def block(self, at: int, nbytes: int) -> dict[str, Column]:
        """See ``read_block``."""
        # Reading a map beyond the end of its file is a fatal signal, so look at the length first.
        end = min(self._mapped.size(), len(self._memory))
        return read_block(self._memory[:end], at, nbytes, self._path)

    @property
    def retired(self) -> bool:
        """Whether the segment is unlinked, so that only its maps keep the memory."""
        return bool(self._memory[RETIRED_AT])


class _Maps:
    """Maps segments of ``folder`` when they are needed, and keeps some mapped. Any thread may call it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._maps: OrderedDict[str, _Map] = OrderedDict()

    def find(self, name: str) -> _Map:
        """The map of a segment. Raises ``BlockGoneError`` and ``StorageError``."""
        with self._lock:
            if name not in self._maps:
                self._maps[name] = self._mapped(name)
                if len(self._maps) > MOST_MAPS:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(name)
            return self._maps[name]

    def trim(self) -> None:
        """Unmap retired segments."""
        with self._lock:
            gone = [self._maps.pop(name) for name in [name for name, one in self._maps.items() if one.retired]]
        del gone  # unmapping takes long: without the lock

    def clear(self) -> None:
        """Unmap all segments that have no views."""
        with self._lock:
            self._maps.clear()

    def _mapped(self, name: str) -> _Map:
        check_name(name)
        path = self._folder / name
        try:
            return _Map(path)
        except FileNotFoundError:
            raise BlockGoneError(f"{path} is gone", hint="the samples were cleared or written again") from None
        except OSError as error:
            raise failed("read", path, error) from error
