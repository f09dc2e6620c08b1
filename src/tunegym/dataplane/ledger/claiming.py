"""Claims are leases: who gets which samples, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunegym.dataplane.errors import LeaseLostError, SampleError, SpecError
from tunegym.dataplane.ledger.grouping import GroupQueue
from tunegym.dataplane.ledger.leasing import Lease, Numbers, read_tickets
from tunegym.dataplane.ledger.measures import Histogram
from tunegym.dataplane.ledger.partition import CONSUMED, Partition
from tunegym.dataplane.ledger.rows import ACKED, DONE, FREE, LEASED
from tunegym.dataplane.ledger.spans import NOTHING, Span, array_of, every, pick, size_of, span_of
from tunegym.dataplane.ledger.versions import Versions
from tunegym.dataplane.ledger.wanting import Watches
from tunegym.dataplane.model import few
from tunegym.dataplane.predicate import Predicate


class Claiming:
    """The claims of one partition.

    Attributes:
        versions: what was acked into which.
        watches: what claims with a predicate want.
        claimed, redelivered: by task, how many samples were claimed, and how many were given back.
        lags: by task, how long after the put samples were claimed.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        tasks = len(partition.spec.tasks)
        self.versions = Versions(partition)
        self.watches = Watches(partition.rows.tags)
        self.claimed = [0] * tasks
        self.redelivered = [0] * tasks
        self.lags = [Histogram() for _ in range(tasks)]

    # claims -------------------------------------------------------------------------------------------

    def ready(self, task: int, mask: int, where: Predicate | None = None) -> int:
        """How many samples could be claimed. Raises ``TagError`` for tags that the predicate can't compare."""
        queue = self._partition.queues.of(task, mask)
        if where is None:
            return queue.count
        return self.watches.count(task, queue, where)

    def claim(self, task: int, mask: int, most: int, least: int, where: Predicate | None, now: float) -> Span | None:
        """The rows of a claim, at least ``least`` and up to ``most``, which are to be leased; None if too few."""
        queue = self._partition.queues.of(task, mask)
        if queue.count < least or not queue.count:
            return None
        taken = None
        if where is not None:
            rows = self.watches.choose(task, queue, where, least, most)
        elif isinstance(queue, GroupQueue):
            rows = span_of(np.array(queue.choose(least, most), dtype=np.int32))
        else:
            rows, taken = queue.take(most), mask
        if rows is None or not size_of(rows):
            return None
        self._claimed(task, rows, taken, now)
        return rows

    def claim_these(self, task: int, mask: int, rows: Span, now: float) -> None:
        """Just these rows are to be leased. Raises ``LeaseLostError`` unless all of them can be claimed."""
        table = self._partition.rows
        bits = table.produced.dtype.type(mask)
        good = table.alive[rows] & (table.states[task][rows] == FREE) & ((table.produced[rows] & bits) == bits)
        if not every(good):
            raise LeaseLostError(f"{int((~good).sum())} samples of a claim can't be claimed again")
        self._claimed(task, rows, None, now)

    def _claimed(self, task: int, rows: Span, taken: int | None, now: float) -> None:
        self._partition.queues.claimed(task, rows, taken)
        self.claimed[task] += size_of(rows)
        table = self._partition.rows
        known = table.arrivals.of(rows)
        if known is None:
            self.lags[task].add(now - table.born[rows])
        else:
            self.lags[task].add_one(now - known.born, size_of(rows))

    def lease(self, number: int, task: int, rows: Span, owner: str, expires: float) -> None:
        """Give rows that were claimed to an owner."""
        partition = self._partition
        partition.rows.states[task][rows] = LEASED
        partition.rows.leases[task][rows] = number
        count = size_of(rows)
        partition.leased[task] += count
        partition.leases.add(Lease(number, task, owner, expires, rows, count))

    # what becomes of them -----------------------------------------------------------------------------

    def held(self, task: int, sample_ids: Sequence[str], leases: Sequence[int]) -> tuple[Span, Numbers]:
        """Rows and leases of claimed samples. Raises ``LeaseLostError`` unless all of them are still as claimed."""
        if len(leases) != len(sample_ids):
            raise SampleError(f"{len(leases)} leases for {len(sample_ids)} samples")
        if not len(leases):
            return NOTHING, np.zeros(0, dtype=np.int64)
        numbers, rows = read_tickets(leases)
        if not isinstance(rows, slice) and len(set(leases)) < len(leases):
            raise SampleError("a sample is there twice in one call")
        table = self._partition.rows
        if isinstance(rows, slice) and isinstance(numbers, int) and rows.stop <= table.size:
            good = table.leases[task][rows] == numbers
        else:
            each = array_of(rows)
            known = each < table.size
            good = known & (table.leases[task][np.where(known, each, 0)] == numbers) & (np.asarray(numbers) > 0)
        if not every(good):
            lost = [sample_ids[at] for at in np.flatnonzero(~good).tolist()]
            raise LeaseLostError(
                f"the claim of {few(lost)} is lost: it ended, or was settled before",
                hint="others may have them by now; claim again, and extend() what takes long",
                sample_ids=lost,
            )
        return rows, numbers

    def ack(self, task: int, rows: Span, numbers: Numbers, version: int | None) -> None:
        """Held rows are consumed; with a version, until a rewind to before it."""
        versions, table = self.versions, self._partition.rows
        covered = versions.committed[task]
        if version is not None and covered is not None and version <= covered:
            raise SpecError(
                f"version {version} is covered by the commit of {covered}, which was made without these samples",
                hint="ack into the version that they are trained into",
            )
        table.states[task][rows] = DONE if version is None else ACKED
        self._settled(task, rows, numbers)
        self._partition.acked[task] += size_of(rows)
        self._partition.queues.settled(task, rows)
        if version is not None:
            versions.add(task, version, rows)
        else:
            self._consume(rows)

    def _consume(self, rows: Span) -> None:
        """Of samples that one more task is done with for good, those go that all tasks are done with."""
        finished = np.ones(size_of(rows), dtype=bool)
        for states in self._partition.rows.states:
            finished &= states[rows] >= DONE
        self._partition.clear(pick(rows, finished), CONSUMED)

    def release(self, task: int, rows: Span, numbers: Numbers) -> None:
        """Held rows are given back."""
        self._settled(task, rows, numbers)
        self._partition.give_back(task, rows)
        self.redelivered[task] += size_of(rows)

    def _settled(self, task: int, rows: Span, numbers: Numbers) -> None:
        count = size_of(rows)
        if not count:
            return
        self._partition.leased[task] -= count
        self._partition.rows.leases[task][rows] = 0
        self._partition.leases.settle(numbers, count)

    def end(self, leases: Sequence[Lease]) -> int:
        """Leases are over, by time or because their owner is gone; how many samples are given back."""
        partition = self._partition
        back = 0
        for lease in reversed(leases):  # the oldest is given back last, and so is first in the queue
            rows = pick(lease.rows, partition.rows.leases[lease.task][lease.rows] == lease.number)
            partition.leases.forget(lease)
            partition.leased[lease.task] -= size_of(rows)
            partition.give_back(lease.task, rows)
            self.redelivered[lease.task] += size_of(rows)
            back += size_of(rows)
        return back
