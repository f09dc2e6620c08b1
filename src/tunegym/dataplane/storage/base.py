"""What a client needs of whatever keeps the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import StorageError

Location: TypeAlias = Mapping[str, Any]
"""Where one write is: plain data that the ledger keeps, and only a storage understands."""


class BlockGoneError(StorageError):
    """The bytes were let go of: the samples were cleared, or their field was written again, since they were located.

    Locating the samples once more tells which.
    """


class Part(NamedTuple):
    """Rows of one write.

    Attributes:
        column: views of what was written; they can't be written to, and stay valid for as long as they are held.
        places: which of its rows, in the order that they are wanted in.
    """

    column: Column
    places: Sequence[int]


class Storage(Protocol):
    """Keeps what is written until it is freed. Any thread may call it.

    The ledger decides what is there: bytes that it doesn't know of are nobody's, and whoever dies while writing leaves
    nothing that is ever read. What was written never changes; a field that is written again is somewhere else.
    """

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """Keep columns of equal rows. Where they are, and how many bytes that takes.

        The bytes are the caller's until it has told the ledger, and says so with ``settle``, or with ``free`` if
        the ledger didn't take them.

        Raises:
            StorageError: they can't be written; nothing is.
        """
        ...

    def settle(self, location: Location) -> None:
        """The ledger has it: from now on only the ledger says when it may go."""
        ...

    def read(self, location: Location, field: str, places: Sequence[int]) -> Part:
        """Rows of one column.

        Raises:
            BlockGoneError: they have been let go of meanwhile.
            StorageError: they can't be read.
        """
        ...

    def free(self, locations: Iterable[Location]) -> None:
        """Nobody wants these any more. Telling it again is fine. Views that are held stay valid."""
        ...

    def trim(self) -> None:
        """Let go of what is kept only to be faster and isn't there any more, so that its space comes back."""
        ...

    def close(self) -> None:
        """Let go. What others read stays. Calling it twice is fine."""
        ...
