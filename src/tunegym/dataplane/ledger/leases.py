"""Leases and versions: which owner has claimed which samples until when, and into which weights they were trained.

A claim is one lease with one number. An ack names the id of a sample and the number of its lease, and must match the
number that is recorded for it. A lease ends when all its samples are settled, with its owner, or when its time is over,
if it has one.

A sample that is acked into a version stays until a commit covers that version. Until then the trainer may crash and
restart from an older checkpoint: a rewind gives the samples back, even those that were cleared meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunegym.dataplane.errors import SpecError
from tunegym.dataplane.ledger.samples import ACKED, COVERED, DONE, FREE
from tunegym.dataplane.model import WEIGHT_VERSION

if TYPE_CHECKING:
    from tunegym.dataplane.ledger.partition import Partition

CONSUMED, ORPHANED, LOST = "consumed", "orphaned", "lost"


def ends(now: float, lease_s: float | None) -> float:
    """When a lease that is made or extended now is over."""
    return math.inf if lease_s is None else now + lease_s


@dataclass(slots=True, eq=False)
class Lease:
    """The samples that an owner has claimed for a task."""

    number: int
    task: int
    owner: str
    rows: np.ndarray  # all samples of the claim
    left: int  # the number that are not settled yet
    since: float  # when they were claimed


class Leases:
    """The open leases of a partition.

    Attributes:
        expires: when those end by themselves that have such a time.
    """

    def __init__(self) -> None:
        self.known: dict[int, Lease] = {}
        self.expires: dict[int, float] = {}

    def add(self, lease: Lease, expires: float) -> None:
        """Record a new lease."""
        self.known[lease.number] = lease
        self._set(lease.number, expires)

    def _set(self, number: int, expires: float) -> None:
        self.expires.pop(number, None)
        if expires < math.inf:
            self.expires[number] = expires

    def settle(self, numbers: np.ndarray) -> None:
        """One sample less for each of these numbers. A lease with no sample left ends."""
        for number, count in Counter(numbers.tolist()).items():
            lease = self.known[number]
            lease.left -= count
            if not lease.left:
                del self.known[number]
                self.expires.pop(number, None)

    def extend(self, numbers: Iterable[int], expires: float) -> None:
        """Move the ends of these leases to ``expires``, never to an earlier time."""
        for number in numbers:
            if self.expires.get(number, math.inf) < expires:
                self._set(number, expires)

    def next_end(self) -> float:
        """When the next lease is over."""
        return min(self.expires.values(), default=math.inf)

    def over(self, now: float) -> list[Lease]:
        """The leases whose time is over, the oldest first."""
        return [self.known[number] for number, end in sorted(self.expires.items()) if end <= now]


class Versions:
    """The versions of one partition.

    Attributes:
        committed: by task, the latest version that a checkpoint covers.
        uncovered: by task and version, the rows that were acked into it.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        tasks = len(partition.spec.tasks)
        self.committed: list[int | None] = [None] * tasks
        self.uncovered: list[dict[int, list[np.ndarray]]] = [{} for _ in range(tasks)]

    def add(self, task: int, version: int, rows: np.ndarray) -> None:
        """Rows are acked into a version. Raises ``SpecError`` if it is committed already."""
        covered = self.committed[task]
        if covered is not None and version <= covered:
            raise SpecError(
                f"version {version} is covered by the commit of {covered}, which was made without these samples",
                hint="ack into the version that they are trained into",
            )
        self.uncovered[task].setdefault(version, []).append(rows)

    def _take(self, task: int, versions: list[int]) -> np.ndarray:
        uncovered = self.uncovered[task]
        return np.concatenate([np.zeros(0, dtype=np.int64), *(rows for one in versions for rows in uncovered.pop(one))])

    def commit(self, task: int, version: int) -> int:
        """A checkpoint covers everything up to a version. Returns how many samples it newly covers.

        Samples that every task is done with are consumed.
        """
        partition, samples = self._partition, self._partition.samples
        before = self.committed[task]
        self.committed[task] = version if before is None else max(before, version)
        rows = self._take(task, sorted(one for one in self.uncovered[task] if one <= version))
        samples.states[task][rows] = COVERED
        states, alive = samples.states[:, rows], samples.alive[rows]
        partition.clear(rows[alive & (states >= DONE).all(axis=0)], CONSUMED)
        for row in rows[~alive & (states >= DONE).all(axis=0)].tolist():  # trained before its bytes were lost
            if partition.condemned.get(row) == LOST:
                partition.gone[LOST] -= 1
                partition.gone[CONSUMED] += 1
        partition.remove(rows[~alive & (states != ACKED).all(axis=0)])  # cleared before, and kept only for this
        return len(rows)

    def rewind(self, task: int, to_version: int) -> tuple[int, int]:
        """Go back to a checkpoint. Returns how many samples are given back, and how many are orphaned."""
        partition, samples = self._partition, self._partition.samples
        covered = self.committed[task]
        if covered is not None and to_version < covered:
            raise SpecError(
                f"version {covered} is committed, and what it covers may be gone",
                hint=f"rewind to {covered} or later",
            )
        partition.end([lease for lease in partition.leases.known.values() if lease.task == task], attempt=False)
        rows = self._take(task, sorted(one for one in self.uncovered[task] if one > to_version))
        samples.states[task][rows] = FREE
        lost = np.array([partition.condemned.get(row) in (ORPHANED, LOST) for row in rows.tolist()], dtype=bool)
        gone, rows = rows[lost], rows[~lost]  # what another task's rewind orphaned, or has no bytes, doesn't come back
        partition.remove(gone[(samples.states[:, gone] != ACKED).all(axis=0)])
        revived = rows[~samples.alive[rows]]
        partition.acked[task] -= len(rows) - len(revived)
        self._revive(revived)
        free = np.flatnonzero(samples.alive & (samples.states[task] == FREE))
        orphans = self._later(free, to_version)
        partition.clear(orphans, ORPHANED)
        back, revived = rows[~np.isin(rows, orphans)], revived[~np.isin(revived, orphans)]
        for other in range(len(samples.states)):
            partition.queues.update(back if other == task else revived, other, first=True)
        kept = np.fromiter(partition.condemned, dtype=np.int64)
        for row in self._later(kept[samples.states[task][kept] == FREE], to_version).tolist():
            partition.gone[partition.condemned[row]] -= 1
            partition.gone[ORPHANED] += 1
            partition.condemned[row] = ORPHANED
        partition.redelivered[task] += len(back)
        partition.epoch += 1
        return len(back), len(orphans)

    def _revive(self, rows: np.ndarray) -> None:
        """Bring back cleared samples, for all tasks."""
        partition, samples = self._partition, self._partition.samples
        samples.alive[rows] = True
        for row in rows.tolist():
            partition.gone[partition.condemned.pop(row)] -= 1
        if partition.groups.used:
            partition.groups.set_alive(rows, samples.group[rows], alive=True)
        for task, states in enumerate(samples.states):
            partition.acked[task] += int(np.count_nonzero(states[rows] >= ACKED))

    def _later(self, rows: np.ndarray, to_version: int) -> np.ndarray:
        """The rows that weights after a version produced."""
        values, there = self._partition.samples.tags.column(WEIGHT_VERSION, rows)
        if values.dtype == object:
            later = np.array([isinstance(one, int | float) and one > to_version for one in values], dtype=bool)
        else:
            later = values > to_version
        return rows[there & later]
