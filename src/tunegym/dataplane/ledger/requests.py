"""Requests to a ledger as plain values, and the queue of those that wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tunegym.dataplane.errors import DataPlaneError
from tunegym.dataplane.model import TagColumn
from tunegym.dataplane.predicate import Order, Predicate


@dataclass(frozen=True, slots=True)
class Put:
    """Fields of samples whose bytes are already written."""

    partition_id: str
    sample_ids: Sequence[str]
    shapes: Mapping[str, tuple[str, int]]  # dtype and rank by field
    location: Mapping[str, Any]  # where the storage has the bytes; if the put is refused, the caller frees them
    nbytes: int = 0
    lengths: Sequence[int] | None = None
    # one mapping per sample, or one mapping for all of them
    tags: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None
    group_ids: Sequence[str] | None = None
    epoch: int | None = None  # in which its rollout started; None for the one in which it arrives
    owner: str = ""  # the client that waits if there is no room; "" for none
    fresh: bool = False  # of a rollout: a sample that has one of these fields already is another's
    lengths_given: bool = False  # the producer named ``lengths`` itself: they replace the recorded ones


class Claim(NamedTuple):
    """A request for samples of a task."""

    partition_id: str
    task_name: str
    fields: Sequence[str]
    batch_size: int
    min_batch: int
    owner: str
    lease_s: float | None  # None: while the owner is there
    where: Predicate | None = None
    order: Order = "oldest"


class Grant(NamedTuple):
    """The samples of a claim, in the order of their ids. Hosts send it ``_asdict``.

    Attributes:
        lease: proves the claim; the same number for all its samples.
        lengths, groups: one value per sample, or None.
    """

    sample_ids: list[str]
    lease: int
    epoch: int
    lengths: list[int] | None
    tags: list[TagColumn]
    groups: list[str] | None


@dataclass(slots=True, eq=False)
class Waiter:
    """A put that waits for room, or a claim that waits for samples."""

    number: int
    request: Put | Claim
    deadline: float  # when it times out
    outcome: Grant | DataPlaneError | None = None  # its result, once ``settled``
    settled: bool = False


class Waiters:
    """The waiting requests of a partition.

    They stand in lines without overtaking: one line for puts, one for the claims of a task that require
    the same fields. A claim with a predicate has a line to itself: others may want the samples that it rejects.
    """

    def __init__(self) -> None:
        self._all: dict[int, Waiter] = {}

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self._all.values()))

    def count(self, kind: type) -> int:
        """The number of waiting requests of a kind."""
        return sum(isinstance(one.request, kind) for one in self._all.values())

    def add(self, waiter: Waiter) -> Waiter:
        """Join the line."""
        self._all[waiter.number] = waiter
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        """Leave the line. Returns whether the request was waiting."""
        return self._all.pop(waiter.number, None) is not None

    def behind(self, request: Put | Claim) -> bool:
        """Whether another request waits in the line of a new one."""
        return any(_line(one.request, one.number) == _line(request) for one in self._all.values())

    def next_deadline(self) -> float:
        """When the next request times out."""
        return min((one.deadline for one in self._all.values()), default=math.inf)

    def overdue(self, now: float) -> list[Waiter]:
        """Remove and return the requests that have timed out."""
        late = sorted((one for one in self if one.deadline <= now), key=lambda one: one.deadline)
        for waiter in late:
            self.remove(waiter)
        return late

    def serve(self, attempt: Callable[[Waiter], bool]) -> None:
        """Try all requests, puts first since claims may get their samples, then by arrival.

        ``attempt`` returns whether the request was settled; otherwise its line stays blocked.
        """
        blocked: set[Hashable] = set()
        for waiter in sorted(self._all.values(), key=lambda one: isinstance(one.request, Claim)):
            line = _line(waiter.request, waiter.number)
            if line in blocked:
                continue
            if attempt(waiter):
                self.remove(waiter)
            else:
                blocked.add(line)


def _line(request: Put | Claim, number: int = 0) -> Hashable:
    if isinstance(request, Put):
        return "puts"
    if request.where is not None:
        return number
    return request.task_name, frozenset(request.fields)
