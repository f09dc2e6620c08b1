"""A storage in the memory of this process, shared by its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import FieldError
from tunegym.dataplane.storage.base import BlockGoneError, Location


class MemoryStorage:
    """A ``Storage`` that ends with its process. Writes copy, so producers may reuse their arrays; reads don't."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Column]] = {}
        self._last = 0
        self._lock = threading.Lock()

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        copies = {name: column.copied() for name, column in columns.items()}
        with self._lock:
            self._last += 1
            self._blocks[self._last] = copies
            return {"block": self._last}, sum(column.nbytes for column in copies.values())

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""

    def read(self, location: Location, field: str) -> Column:
        """See ``Storage.read``."""
        columns = self._blocks.get(location["block"])
        if columns is None:
            raise BlockGoneError("the bytes are gone", hint="the samples were cleared or written again: locate them")
        if field not in columns:
            raise FieldError(f"{field!r} was not written here", hint=f"it has: {', '.join(columns)}")
        return columns[field]

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``."""
        with self._lock:
            for location in locations:
                self._blocks.pop(location["block"], None)

    def trim(self) -> None:
        """See ``Storage.trim``."""

    def close(self) -> None:
        """See ``Storage.close``. Other clients may share it."""
