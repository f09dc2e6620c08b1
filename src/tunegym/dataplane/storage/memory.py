"""Bytes in this very process, for its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import FieldError
from tunegym.dataplane.storage.base import BlockGoneError, Location, Part


class MemoryStorage:
    """A ``Storage`` that lives and dies with its process; clients of one plane share one.

    What is written is copied, so that a producer may use its arrays again; what is read is not.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Column]] = {}
        self._last = 0
        self._guard = threading.Lock()

    @property
    def nbytes(self) -> int:
        """How much is there."""
        with self._guard:
            return sum(column.nbytes for columns in self._blocks.values() for column in columns.values())

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        copies = {name: column.copied() for name, column in columns.items()}
        with self._guard:
            self._last += 1
            self._blocks[self._last] = copies
            return {"block": self._last}, sum(column.nbytes for column in copies.values())

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""

    def read(self, location: Location, field: str, places: Sequence[int]) -> Part:
        """See ``Storage.read``."""
        columns = self._blocks.get(location["block"])
        if columns is None:
            raise BlockGoneError("the bytes are gone", hint="the samples were cleared, or written again: locate them")
        if field not in columns:
            raise FieldError(f"{field!r} was not written here", hint=f"it has: {', '.join(columns)}")
        return Part(columns[field], places)

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``."""
        with self._guard:
            for location in locations:
                self._blocks.pop(location["block"], None)

    def trim(self) -> None:
        """See ``Storage.trim``."""

    def close(self) -> None:
        """See ``Storage.close``. Others may share it: what is there goes with the last who holds it."""
