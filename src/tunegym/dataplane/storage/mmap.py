"""Bytes in files of one folder, for many processes of one host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import FieldError
from tunegym.dataplane.storage.base import Location, Part
from tunegym.dataplane.storage.reading import SegmentReader
from tunegym.dataplane.storage.segments import own_folder
from tunegym.dataplane.storage.writing import SegmentWriter


class MmapStorage:
    """A ``Storage`` of one client. What it wrote and the ledger took outlives it; ``LiveSegments`` lets it go.

    Args:
        folder: of the segments, made if it isn't there; only its owner can use it. In /dev/shm it is memory. On a disk
            it is memory, too, that the system also writes to the disk, sooner or later.
    """

    def __init__(self, folder: Path) -> None:
        own_folder(folder)
        self._writer = SegmentWriter(folder)
        self._reader = SegmentReader(folder)

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        return self._writer.write(partition_id, columns)

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""
        self._writer.settle(location)

    def read(self, location: Location, field: str, places: Sequence[int]) -> Part:
        """See ``Storage.read``."""
        columns = self._reader.columns(location)
        if field not in columns:
            raise FieldError(f"{field!r} was not written here", hint=f"it has: {', '.join(columns)}")
        return Part(columns[field], places)

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``: of one's own blocks that the ledger didn't take. It frees the others itself."""
        for location in locations:
            self._writer.settle(location)

    def trim(self) -> None:
        """See ``Storage.trim``."""
        self._reader.trim()

    def close(self) -> None:
        """See ``Storage.close``."""
        self._writer.close()
        self._reader.close()
