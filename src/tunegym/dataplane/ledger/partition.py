"""One partition: its samples, and what each task has done with them. Pure: time is given to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunegym.dataplane.errors import SampleError
from tunegym.dataplane.ledger.blocks import Blocks
from tunegym.dataplane.ledger.grouping import Groups
from tunegym.dataplane.ledger.ids import Found, Keep
from tunegym.dataplane.ledger.leasing import Leases
from tunegym.dataplane.ledger.numbering import RETIRED, UNKNOWN
from tunegym.dataplane.ledger.queues import Queues
from tunegym.dataplane.ledger.rows import ACKED, FREE, LEASED, Rows
from tunegym.dataplane.ledger.spans import Span, array_of, every, pick, size_of, span_of
from tunegym.dataplane.model import PartitionSpec, few

Shape = tuple[str, int]
"""What must stay the same of a field: dtype and rank."""

CLEARED, CONSUMED, ORPHANED = "cleared", "consumed", "orphaned"
OTHER = "other"
"""Why samples are gone; whatever comes after so many reasons is another."""
_MOST_REASONS = 256


class Partition:
    """The samples of a partition.

    Attributes:
        epoch: counts rewinds; a put of an older one is refused.
        resident: how many samples take room: all that are alive, and those that were cleared and may come back.
        produced: how many samples were ever put.
        gone: how many left, by reason: the first few hundred of these, and ``OTHER``.
        acked, leased: how many of those alive are, by task.
        condemned: rows that were cleared, and are kept for a rewind, with the reason.
    """

    def __init__(self, spec: PartitionSpec) -> None:
        self.spec = spec
        self.blocks = Blocks()
        self.rows = Rows(len(spec.fields), len(spec.tasks), self.blocks)
        self.queues = Queues(self.rows, len(spec.tasks))
        if spec.group_size is not None:
            self.queues.groups = Groups(spec.group_size)
        self.leases = Leases()
        self.shapes: dict[str, Shape] = {}
        self.epoch = 0
        self.sealed = False
        self.resident = 0
        self.alive = 0
        self.produced = 0
        self.acked = [0] * len(spec.tasks)
        self.leased = [0] * len(spec.tasks)
        self.gone: Counter[str] = Counter()
        self.condemned: dict[int, str] = {}

    @property
    def groups(self) -> Groups | None:
        """The groups of the samples, if they have any."""
        return self.queues.groups

    def room(self, count: int) -> bool:
        """Whether so many new samples fit."""
        return self.spec.capacity is None or self.resident + count <= self.spec.capacity

    def free_for(self, task: int) -> int:
        """How many samples are still to be claimed for a task, ready or not."""
        return self.alive - self.acked[task] - self.leased[task]

    def find(self, sample_ids: Sequence[str]) -> Span:
        """The rows of samples that are there. Raises ``SampleError`` for any that isn't."""
        rows = self.rows.ids.find(sample_ids).rows
        if every(rows >= 0):
            span = span_of(rows)
            if every(self.rows.alive[span]):
                return span
        gone = [
            sample_ids[at]
            for at, row in enumerate(rows.tolist())
            if row == RETIRED or (row >= 0 and not self.rows.alive[row])
        ]
        if gone:
            raise SampleError(f"partition {self.spec.partition_id!r}: {few(gone)} was consumed or cleared")
        unknown = [sample_ids[at] for at, row in enumerate(rows.tolist()) if row == UNKNOWN]
        raise SampleError(f"partition {self.spec.partition_id!r} has no sample {few(unknown)}")

    # the beginning and the end of samples -------------------------------------------------------------

    def admit(self, sample_ids: Sequence[str], found: Found, group_ids: Sequence[str] | None, now: float) -> Span:
        """Rows for new samples, without any field as yet."""
        table = self.rows
        rows = table.take(len(sample_ids))
        table.arrivals.forget(rows)
        table.ids.put(sample_ids, rows, found)
        table.alive[rows] = True
        table.lengths[rows] = -1
        table.born[rows] = now
        for states in table.states:
            states[rows] = FREE
        if group_ids is not None:
            if self.groups is None:
                self.queues.groups = Groups(self.spec.group_size)
                self.queues.by_task = [{} for _ in self.spec.tasks]
            assert self.groups is not None
            table.have_groups()
            table.groups[rows] = self.groups.add(group_ids, array_of(rows))
        count = size_of(rows)
        self.resident += count
        self.alive += count
        self.produced += count
        return rows

    def give_back(self, task: int, rows: Span) -> None:
        """Rows that were claimed or acked are to be claimed again, before all others."""
        self.rows.states[task][rows] = FREE
        self.rows.leases[task][rows] = 0
        self.queues.back(task, rows)

    def clear(self, rows: Span, reason: str) -> None:
        """Samples that are alive go; the bytes of those that a checkpoint doesn't cover yet stay, for a rewind."""
        count = size_of(rows)
        if not count:
            return
        reason = self._counted(reason)
        table = self.rows
        uncovered = np.zeros(count, dtype=bool)
        for task, each in enumerate(table.states):
            states = each[rows]
            self.acked[task] -= int(np.count_nonzero(states >= ACKED))
            uncovered |= states == ACKED
            leased = states == LEASED
            if leased.any():
                self._end_leases(task, pick(rows, leased))
        table.alive[rows] = False
        self.alive -= count
        self.gone[reason] += count
        if self.groups is not None:
            self.groups.clear(array_of(rows).tolist(), table.groups[rows].tolist())
        self.queues.cleared(rows)
        if not uncovered.any():
            self.free(rows)
            return
        each = array_of(rows)
        self.condemned.update(dict.fromkeys(each[uncovered].tolist(), reason))
        self.free(each[~uncovered])

    def _counted(self, reason: str) -> str:
        """The reason by which it is counted: they are any texts, and there may be any number of them."""
        own = reason in self.gone or reason in (CLEARED, CONSUMED, ORPHANED)
        return reason if own or len(self.gone) < _MOST_REASONS else OTHER

    def _end_leases(self, task: int, rows: Span) -> None:
        table = self.rows
        self.leases.settle(table.leases[task][rows], size_of(rows))
        self.leased[task] -= size_of(rows)
        table.states[task][rows] = FREE
        table.leases[task][rows] = 0

    def condemn(self, rows: np.ndarray, reason: str) -> None:
        """Rows that were cleared, and are kept, are gone for this reason, whatever the first one was."""
        for row in rows.tolist():
            self.gone[self.condemned[row]] -= 1
            self.gone[reason] += 1
            self.condemned[row] = reason

    def revive(self, rows: Span) -> None:
        """Samples that were cleared, and whose bytes are still there, are back; in no queue as yet."""
        table = self.rows
        table.alive[rows] = True
        self.alive += size_of(rows)
        for row in array_of(rows).tolist():
            self.gone[self.condemned.pop(row)] -= 1
        if self.groups is not None:
            self.groups.revive(array_of(rows).tolist(), table.groups[rows].tolist())
        for task, states in enumerate(table.states):
            self.acked[task] += int(np.count_nonzero(states[rows] >= ACKED))

    def free(self, rows: Span) -> None:
        """Nothing of these samples, which were cleared, is wanted any more: bytes, ids and slots go."""
        if not size_of(rows):
            return
        table = self.rows
        if self.condemned:
            for row in array_of(rows).tolist():
                self.condemned.pop(row, None)
        table.places.free(rows)
        if self.groups is not None:
            self.groups.forget(array_of(rows).tolist(), table.groups[rows].tolist())
            table.groups[rows] = 0
        table.produced[rows] = 0
        table.tags.forget(rows)
        table.ids.retire(rows)
        table.give_back(rows)
        self.resident -= size_of(rows)

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep) -> dict[str, Any]:
        """All of it as plain data and arrays."""
        names = ("epoch", "sealed", "resident", "alive", "produced", "acked", "leased", "shapes", "gone")
        return {
            **{name: getattr(self, name) for name in names},
            "rows": self.rows.state(keep),
            "blocks": self.blocks.state(),
            "queues": self.queues.state(keep),
            "leases": self.leases.state(keep),
            "condemned": [keep(np.array(list(self.condemned), dtype=np.int32)), list(self.condemned.values())],
        }

    @classmethod
    def restored(cls, spec: PartitionSpec, state: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Partition:
        """The partition of a state."""
        partition = cls(spec)
        for name in ("epoch", "sealed", "resident", "alive", "produced"):
            setattr(partition, name, state[name])
        partition.acked, partition.leased = list(state["acked"]), list(state["leased"])
        partition.shapes = {name: (kind, rank) for name, (kind, rank) in state["shapes"].items()}
        partition.gone = Counter(state["gone"])
        partition.blocks.restore(state["blocks"])
        partition.rows = Rows.restored(len(spec.fields), len(spec.tasks), partition.blocks, state["rows"], arrays)
        partition.queues = Queues(partition.rows, len(spec.tasks))
        partition.queues.restore(state["queues"], arrays, spec.group_size)
        partition.leases.restore(state["leases"], arrays)
        rows, reasons = state["condemned"]
        partition.condemned = dict(zip(arrays[rows].tolist(), reasons, strict=True))
        return partition
