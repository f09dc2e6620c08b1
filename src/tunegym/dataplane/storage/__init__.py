"""Where the bytes are: in this process, in files that the processes of one machine map, or on nodes of a cluster.

The ledger decides which bytes exist: a process that dies while it writes leaves nothing that is ever read. Written
bytes never change; a field that is written again gets a new location.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import StorageError

if TYPE_CHECKING:
    from tunegym.dataplane.ledger.ledger import Ledger

Location: TypeAlias = Mapping[str, Any]
"""Where one write is: JSON data that the ledger stores and only the storage understands."""


class BlockGoneError(StorageError):
    """The bytes were freed since they were located: the samples were cleared, or the field was written again."""


class Storage(Protocol):
    """Keeps bytes. Any thread may call it."""

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """Keep columns; their location and the number of bytes.

        The caller owns the bytes until it calls ``settle`` (the ledger has them) or ``free`` (it refused them).

        Raises:
            StorageError: nothing was written.
        """
        ...

    def settle(self, location: Location) -> None:
        """The ledger has the location: from now on only the ledger frees it."""
        ...

    def read_many(self, wanted: Sequence[tuple[Location, Sequence[str]]]) -> list[Mapping[str, Column]]:
        """At least these fields of each write, as read-only views, which stay valid for as long as they are held.

        Raises:
            BlockGoneError: the bytes were freed meanwhile.
            StorageError: the bytes can't be read.
        """
        ...

    def free(self, locations: Iterable[Location]) -> None:
        """Forget locations; unknown ones are ignored. Views stay valid."""
        ...

    def trim(self) -> None:
        """Give back the memory of freed bytes that this process still has mapped."""
        ...

    def close(self) -> None:
        """Close. Calling it twice is fine."""
        ...


class BlockUsage(Protocol):
    """The bytes that are in use, at the ledger's host. One thread calls it."""

    @property
    def dead_bytes(self) -> Mapping[str, int]:
        """By partition, bytes that were freed and are not given back yet."""
        ...

    def keep(self, location: Location) -> None:
        """A put arrives: its bytes are in use. Raises ``StorageError`` if they are gone."""
        ...

    def free(self, locations: Iterable[Location]) -> None:
        """Bytes are not in use any more. May be repeated."""
        ...

    def recover(self, locations: Iterable[Location]) -> list[str]:
        """Start with exactly these; the names of what is missing."""
        ...

    def sweep(self) -> None:
        """Every second or so: free what dead producers left."""
        ...

    def moves(self, ledger: Ledger) -> Iterator[Mapping[str, Any]] | None:
        """Copies of rows that free the rest of their puts, each as arguments of ``Ledger.move``; None for none."""
        ...
