"""What is asked of a ledger, as plain values: they travel, and are written to a journal, as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from tunegym.dataplane.errors import DataPlaneError
from tunegym.dataplane.predicate import Predicate


@dataclass(frozen=True, slots=True)
class Put:
    """Fields of samples, whose bytes are written already.

    Attributes:
        shapes: dtype and rank by field.
        tags: of each sample, or one mapping for all of them.
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
    tags: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None
    group_ids: Sequence[str] | None = None
    epoch: int = 0
    owner: str = ""
    lengths_given: bool = False


class Claim(NamedTuple):
    """Samples that somebody wants."""

    partition_id: str
    task_name: str
    fields: Sequence[str]
    batch_size: int
    min_batch: int
    owner: str
    lease_s: float
    where: Predicate | None = None


class Grant(NamedTuple):
    """Samples that somebody has got, in the order of their ids.

    Attributes:
        leases: what proves it, one integer for each sample; ``ack``, ``release`` and ``extend`` take them.
        lengths, groups: a value for each; None where nobody has one.
        tags: of each, or one dict if all have the same; None where nobody has one.
    """

    sample_ids: list[str]
    leases: Sequence[int]
    epoch: int
    lengths: list[int] | None
    tags: list[dict[str, Any]] | dict[str, Any] | None
    groups: list[str] | None

    def plain(self) -> dict[str, Any]:
        """As plain data; its lists are not copied. ``tickets_of`` and ``tags_of`` read two of its values."""
        plain = self._asdict()
        plain["leases"] = plain_tickets(self.leases)
        return plain

    def each_tags(self) -> list[dict[str, Any]] | None:
        """The tags of each."""
        return tags_of(self.tags, len(self.sample_ids))


def plain_tickets(leases: Sequence[int]) -> Any:
    """What proves a claim, as plain data; those that follow one another, as most do, take no room."""
    if not isinstance(leases, range):
        first = leases[0] if leases else None
        if type(first) is not int or [*leases] != [*range(first, first + len(leases))]:
            return leases
        leases = range(first, first + len(leases))
    return {"from": leases.start, "to": leases.stop}


def tickets_of(plain: Any) -> Sequence[int]:
    """What ``plain_tickets`` was given."""
    return range(plain["from"], plain["to"]) if isinstance(plain, Mapping) else plain


def tags_of(plain: Any, count: int) -> list[dict[str, Any]] | None:
    """The tags of each of so many samples; every one its own dict."""
    return list(map(dict, repeat(plain, count))) if isinstance(plain, Mapping) else plain


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
