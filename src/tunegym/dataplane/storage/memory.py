"""A storage in the memory of this process, shared by its threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.storage import BlockGoneError, Location


class MemoryStorage:
    """A ``Storage`` that ends with its process. Writes copy, so producers may reuse their arrays; reads don't."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Column]] = {}
        self._numbers = itertools.count(1)

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        copies = {name: column.copied() for name, column in columns.items()}
        number = next(self._numbers)
        self._blocks[number] = copies
        return {"block": number}, sum(column.nbytes for column in copies.values())

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""

    def read(self, location: Location) -> Mapping[str, Column]:
        """All columns of one write."""
        try:
            return self._blocks[location["block"]]
        except KeyError:
            raise BlockGoneError(
                "the bytes are gone", hint="the samples were cleared or written again: locate them"
            ) from None

    def read_many(self, wanted: Sequence[tuple[Location, Sequence[str]]]) -> list[Mapping[str, Column]]:
        """See ``Storage.read_many``."""
        return [self.read(location) for location, _ in wanted]

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``."""
        for location in locations:
            self._blocks.pop(location["block"], None)

    def trim(self) -> None:
        """See ``Storage.trim``."""

    def close(self) -> None:
        """See ``Storage.close``. Other clients may share it."""
