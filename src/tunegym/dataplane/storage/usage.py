"""Which segments are in use, at the ledger's host: unused ones are unlinked, and mostly dead ones are emptied.

A put is one block, and one resident sample keeps all of it on the disk. So rows that are needed are copied out of a
mostly dead segment, and the ledger is told; then the segment has no live block, and is unlinked like any other. No byte
of it changes: views of it stay valid, and readers that know the old place locate again.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.storage import BlockGoneError, Location
from tunegym.dataplane.storage.mmap import MmapStorage
from tunegym.dataplane.storage.segments import RETIRED_AT, check_name, is_segment, make_folder

if TYPE_CHECKING:
    from tunegym.dataplane.ledger.ledger import Ledger
    from tunegym.dataplane.ledger.samples import Block

PIECE_BYTES, PIECE_ROWS = 4 << 20, 4096
"""At most so much is copied at once: calls wait for it."""
SPARE_BYTES = 16 << 20
"""Nothing is copied to give back less than this, unless a put lacks it."""


@dataclass
class _UsedSegment:
    """A segment with live blocks."""

    blocks: set[int] = field(default_factory=set)  # where they are
    live_bytes: int = 0  # of the live blocks
    end: int = 0  # where another block like the last one would end
    dead_bytes: Counter[str] = field(default_factory=Counter)  # by partition; not of blocks before this host started
    size: int = 0  # on the disk, once its producer has let go of it; 0 before
    sparse: bool = False  # less than half of it was needed at the last look


class SegmentUsage:
    """The live blocks of every segment in ``folder``, at the ledger's host. One thread calls it.

    ``keep`` a block when its put arrives; ``free`` it when the ledger does, after that is in the journal. Both may be
    repeated. A segment goes when it has no live block and its producer has let go of it, which ``sweep`` looks for.
    ``dead_bytes`` are those of freed blocks in segments that still have others, and that no producer holds.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder
        self._segments: dict[str, _UsedSegment] = {}
        self.dead_bytes: Counter[str] = Counter()

    def keep(self, location: Location) -> None:
        """A block is in use. Raises ``BlockGoneError`` if its producer died, and its segment went, before."""
        name = location["segment"]
        check_name(name)
        if name not in self._segments and not (self._folder / name).exists():
            raise BlockGoneError(f"{self._folder / name} is gone", hint="put the samples again")
        self._add(location)

    def _add(self, location: Location) -> None:
        segment = self._segments.setdefault(location["segment"], _UsedSegment())
        if location["at"] not in segment.blocks:
            segment.blocks.add(location["at"])
            segment.live_bytes += location["nbytes"]
            segment.end = max(segment.end, location["at"] + 2 * location["nbytes"])
            self._open(segment)

    def _open(self, segment: _UsedSegment) -> None:
        """A producer adds to it: it can't be unlinked soon, so a put must not wait for its dead bytes."""
        if segment.size:
            self.dead_bytes.subtract(segment.dead_bytes)
            segment.size = 0

    def free(self, locations: Iterable[Location]) -> None:
        """Blocks are not in use any more."""
        for location in locations:
            name, partition_id, nbytes = location["segment"], location["partition"], location["nbytes"]
            segment = self._segments.get(name)
            if segment is None or location["at"] not in segment.blocks:
                continue
            segment.blocks.remove(location["at"])
            segment.live_bytes -= nbytes
            if segment.blocks:
                segment.dead_bytes[partition_id] += nbytes
                self.dead_bytes[partition_id] += nbytes if segment.size else 0
            else:
                self._open(self._segments.pop(name))
                self._unlink(name, segment.end)

    def recover(self, locations: Iterable[Location]) -> list[str]:
        """Start with exactly these blocks; the names of missing segments."""
        self._segments.clear()
        self.dead_bytes.clear()
        for location in locations:
            self._add(location)
        missing = sorted(self._segments.keys() - self._names())
        self.sweep()
        return missing

    def sweep(self) -> None:
        """Look which segments producers are done with, or died with. Unlink those without live blocks."""
        for name in self._names():
            segment = self._segments.get(name)
            if segment is None:
                self._unlink(name)
            elif not segment.size:
                with contextlib.suppress(OSError), (self._folder / name).open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    found = os.fstat(file.fileno())
                    segment.size = min(found.st_size, 512 * found.st_blocks)
                    self.dead_bytes.update(segment.dead_bytes if segment.size else ())

    # moving -------------------------------------------------------------------------------------------

    def moves(self, ledger: Ledger) -> Iterator[Mapping[str, Any]]:
        """Copy rows that are needed out of segments of which most is not: arguments for ``Ledger.move``, one by one.

        Each is to be carried out before the next is asked for. Nothing is copied while more than half of what is on
        the disk is needed. A segment must be mostly dead at two looks: most that are will be gone at the second. If
        a put lacks bytes, neither counts, and rows leave segments of producers, too: put by put their bytes are dead.
        Raises ``StorageError`` if a copy can't be written; the moves so far are good.
        """
        urgent, parts = bool(ledger.short_of_bytes()), [one.samples.blocks for one in ledger.partitions.values()]
        done = {name: one for name, one in self._segments.items() if one.size or urgent}
        size = sum(one.size for one in done.values())
        unused = size - sum(one.live_bytes for one in done.values()) + sum(one.nbytes - one.live_bytes for one in parts)
        if not urgent and (2 * unused <= size or unused < SPARE_BYTES):
            return
        blocks: dict[str, list[tuple[str, int, Block]]] = {name: [] for name in done}
        for partition_id, partition in ledger.partitions.items():
            for number, block in partition.samples.blocks.known.items():
                blocks.get(block.location["segment"], []).append((partition_id, number, block))
        with contextlib.closing(MmapStorage(self._folder)) as storage:
            for name, segment in done.items():
                needed = sum(block.live_bytes for *_, block in blocks[name])
                before, segment.sparse = segment.sparse, 2 * needed < (segment.size or segment.live_bytes)
                if segment.sparse and (before or urgent):
                    for partition_id, number, _ in blocks[name]:
                        yield from self._copies(ledger, storage, partition_id, number)

    def _copies(self, ledger: Ledger, storage: MmapStorage, name: str, number: int) -> Iterator[Mapping[str, Any]]:
        """Copy the rows of a block that are needed, a piece at a time."""
        while (partition := ledger.partitions.get(name)) and (block := partition.samples.blocks.known.get(number)):
            _, places, fields = partition.samples.live(number)
            some = places[: min(PIECE_ROWS, max(1, PIECE_BYTES * len(places) // max(1, block.live_bytes)))].tolist()
            try:
                columns = storage.read(block.location)
                copies = {one: columns[one].take(some) for one in (partition.spec.fields[at] for at in fields)}
            except StorageError:  # damaged: it stays, and its readers are told
                return
            location, nbytes = storage.write(name, copies)
            self._add(location)
            storage.settle(location)
            storage.trim()
            yield {"partition_id": name, "number": number, "count": len(some), "location": location, "nbytes": nbytes}

    # files --------------------------------------------------------------------------------------------

    def _names(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {entry.name for entry in os.scandir(self._folder) if is_segment(entry.name)}
        return set()

    def _unlink(self, name: str, end: float = math.inf) -> None:
        """Unlink a segment, unless a block is on the way, or its producer may soon add one that ends there."""
        if not is_segment(name):
            return
        path = self._folder / name
        with contextlib.suppress(OSError):  # gone, or its producer still holds it
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_size < end:
                    with contextlib.suppress(OSError):
                        os.pwrite(descriptor, b"\1", RETIRED_AT)
                    path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
