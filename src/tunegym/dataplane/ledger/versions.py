"""What was trained into which version: what a checkpoint covers, and what a rewind gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunegym.dataplane.errors import SpecError
from tunegym.dataplane.ledger.ids import Keep
from tunegym.dataplane.ledger.partition import CONSUMED, ORPHANED, Partition
from tunegym.dataplane.ledger.rows import ACKED, COVERED, DONE, FREE
from tunegym.dataplane.ledger.spans import Span, array_of, join, pick, size_of, span_of
from tunegym.dataplane.model import WEIGHT_VERSION


class Versions:
    """The versions of one partition.

    Attributes:
        committed: by task, the latest version that a checkpoint covers.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        tasks = len(partition.spec.tasks)
        self.committed: list[int | None] = [None] * tasks
        self._uncovered: list[dict[int, list[Span]]] = [{} for _ in range(tasks)]

    def add(self, task: int, version: int, rows: Span) -> None:
        """Rows were acked into a version."""
        self._uncovered[task].setdefault(version, []).append(rows)

    def commit(self, task: int, version: int) -> int:
        """A checkpoint covers all up to a version: what every task is done with goes. How many it covers newly."""
        partition, table = self._partition, self._partition.rows
        before = self.committed[task]
        self.committed[task] = version if before is None else max(before, version)
        waiting = self._uncovered[task]
        rows = join([some for one in sorted(waiting) if one <= version for some in waiting.pop(one)])
        count = size_of(rows)
        if not count:
            return 0
        table.states[task][rows] = COVERED
        finished, uncovered = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
        for states in table.states:
            here = states[rows]
            finished &= here >= DONE
            uncovered |= here == ACKED
        alive = table.alive[rows].copy()
        partition.clear(pick(rows, finished & alive), CONSUMED)
        if not alive.all():  # cleared before, and kept only for this
            partition.free(pick(rows, ~alive & ~uncovered))
        return count

    def check_rewind(self, task: int, to_version: int) -> None:
        """Raise ``SpecError`` if there is no way back to a version."""
        covered = self.committed[task]
        if covered is not None and to_version < covered:
            raise SpecError(
                f"version {covered} is committed, and what it covers may be gone",
                hint=f"rewind to {covered} or later",
            )

    def rewind(self, task: int, to_version: int) -> tuple[int, int]:
        """Back to a checkpoint: how many are given back, and how many orphaned. Nothing is leased for the task."""
        partition, table = self._partition, self._partition.rows
        waiting = self._uncovered[task]
        rows = array_of(join([some for one in sorted(waiting) if one > to_version for some in waiting.pop(one)]))
        rows = self._without_orphans(task, rows)
        revived = rows[~table.alive[rows]]  # cleared since, and kept for this
        partition.revive(revived)
        partition.acked[task] -= len(rows)
        table.states[task][rows] = FREE
        orphans = self._orphans(task, to_version)
        lost = np.zeros(table.size, dtype=bool)
        lost[orphans] = True
        back = rows[~lost[rows]]
        partition.give_back(task, span_of(back))
        revived = revived[~lost[revived]]
        for other, states in enumerate(table.states):
            if other != task:
                partition.queues.back(other, revived[states[revived] == FREE])
        partition.clear(span_of(orphans), ORPHANED)
        kept = np.fromiter(partition.condemned, dtype=np.int32, count=len(partition.condemned))
        partition.condemn(self._later(kept[table.states[task][kept] == FREE], to_version), ORPHANED)
        partition.epoch += 1
        return len(back), len(orphans)

    def _without_orphans(self, task: int, rows: np.ndarray) -> np.ndarray:
        """All but those that another task's rewind orphaned: their weights don't come back, and so neither do they."""
        partition, table = self._partition, self._partition.rows
        orphaned = np.array([partition.condemned.get(row) == ORPHANED for row in rows.tolist()], dtype=bool)
        if not orphaned.any():
            return rows
        lost = rows[orphaned]
        table.states[task][lost] = FREE
        wanted = np.zeros(len(lost), dtype=bool)
        for states in table.states:
            wanted |= states[lost] == ACKED
        partition.free(lost[~wanted])
        return rows[~orphaned]

    def _orphans(self, task: int, to_version: int) -> np.ndarray:
        """What weights after a version produced, and the task isn't done with."""
        table = self._partition.rows
        rows = np.flatnonzero(table.alive & (table.states[task] == FREE)).astype(np.int32)
        return self._later(rows, to_version)

    def _later(self, rows: np.ndarray, to_version: int) -> np.ndarray:
        """Those of the rows that weights after a version produced."""
        values, there = self._partition.rows.tags.column(WEIGHT_VERSION, rows)
        if values.dtype == object:
            later = [isinstance(one, int | float) and one > to_version for one in values]
            return rows[there & np.array(later, dtype=bool)]
        return rows[there & (values > to_version)]

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep) -> dict[str, Any]:
        """All of it as plain data and arrays."""
        uncovered = [[[one, keep(array_of(join(rows)))] for one, rows in by.items()] for by in self._uncovered]
        return {"committed": self.committed, "uncovered": uncovered}

    def restore(self, state: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Take on a state."""
        self.committed = list(state["committed"])
        self._uncovered = [{one: [span_of(arrays[at])] for one, at in by} for by in state["uncovered"]]
