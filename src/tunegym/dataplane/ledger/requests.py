"""What is asked of a ledger, as plain values: they travel, and are written to a journal, as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunegym.dataplane.errors import DataPlaneError
from tunegym.dataplane.predicate import Predicate


@dataclass(frozen=True, slots=True)
class Put:
    """Fields of samples, whose bytes are written already.

    Attributes:
        shapes: dtype and rank by field.
        lengths_given: whether the producer named ``lengths`` itself: then they replace those that were recorded.
        location: where the storage has the bytes; if the put is refused, it stays the caller's to free.
        epoch: of the partition as the producer knows it.
        owner: who waits, if there is no room; "" for nobody that could be gone.
    """

    partition_id: str
    sample_ids: Sequence[str]
    shapes: Mapping[str, tuple[str, int]]
    location: Mapping[str, Any]
    nbytes: int = 0
    lengths: Sequence[int] | None = None
    tags: Sequence[Mapping[str, Any]] | None = None
    group_ids: Sequence[str] | None = None
    epoch: int = 0
    owner: str = ""
    lengths_given: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """Samples that somebody wants."""

    partition_id: str
    task_name: str
    fields: Sequence[str]
    batch_size: int
    min_batch: int
    owner: str
    lease_s: float
    where: Predicate | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Samples that somebody has got, in the order of their ids.

    Attributes:
        leases: what proves it, one integer for each sample; ``ack``, ``release`` and ``extend`` take them.
        lengths, tags, groups: a value for each; None where nobody has one.
    """

    sample_ids: list[str]
    leases: list[int]
    epoch: int
    lengths: list[int] | None
    tags: list[dict[str, Any]] | None
    groups: list[str] | None

    def plain(self) -> dict[str, Any]:
        """As plain data; its lists are not copied."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody who waits: for samples, or for room.

    Attributes:
        deadline: when that is over; None for never.
        outcome: what came of it, once it is settled.
    """

    number: int
    request: Put | Claim
    deadline: float | None
    outcome: Grant | DataPlaneError | None = field(default=None)
    settled: bool = False
