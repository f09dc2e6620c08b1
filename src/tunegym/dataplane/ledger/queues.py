"""What each task can claim now, by the fields that its claims require."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.grouping import GroupQueue, Groups, Members, joined
from tunegym.dataplane.ledger.ids import Keep
from tunegym.dataplane.ledger.ready import ReadyQueue
from tunegym.dataplane.ledger.rows import FREE, LEASED, Rows
from tunegym.dataplane.ledger.spans import Span, array_of, pick, span_of


class Queues:
    """The queues of a partition. Who changes a row tells it afterwards.

    Attributes:
        groups: those of the samples, if they have any; set before there are samples.
        by_task: for each task its queues, by the fields that are required, as bits.
    """

    def __init__(self, rows: Rows, tasks: int) -> None:
        self._rows = rows
        self._size = rows.size
        self.groups: Groups | None = None
        self.by_task: list[dict[int, ReadyQueue | GroupQueue]] = [{} for _ in range(tasks)]

    def of(self, task: int, mask: int) -> ReadyQueue | GroupQueue:
        """The queue of a task for claims that require these fields; made when it is first asked for, by age."""
        found = self.by_task[task].get(mask)
        if found is not None:
            return found
        table = self._rows
        rows = np.flatnonzero(table.alive & (table.states[task] == FREE)).astype(np.int32)
        rows = rows[np.argsort(table.born[rows], kind="stable")]
        if self.groups is None:
            queue = self.by_task[task][mask] = ReadyQueue(mask, table.size)
            queue.append(span_of(rows[self._has(rows, mask)]))
            return queue
        queue = self.by_task[task][mask] = GroupQueue(mask)
        self._regroup(task, queue, rows)
        return queue

    def _has(self, rows: Span, mask: int) -> np.ndarray:
        bits = self._rows.produced.dtype.type(mask)
        return (self._rows.produced[rows] & bits) == bits

    # what changes -------------------------------------------------------------------------------------

    def arrived(self, rows: Span, mask: int) -> None:
        """New samples, all with these fields."""
        if self._size != self._rows.size:
            self._grow()
        for task, queues in enumerate(self.by_task):
            for queue in queues.values():
                if isinstance(queue, GroupQueue):
                    self._regroup(task, queue, rows)
                elif mask & queue.mask == queue.mask:
                    queue.append(rows)

    def became(self, rows: Span, before: np.ndarray, after: np.ndarray) -> None:
        """Fields were produced: some rows are ready from now on."""
        if self._size != self._rows.size:
            self._grow()
        for task, queues in enumerate(self.by_task):
            free = self._rows.states[task][rows] == FREE
            for queue in queues.values():
                if isinstance(queue, GroupQueue):
                    self._regroup(task, queue, rows)
                    continue
                bits = after.dtype.type(queue.mask)
                queue.append(pick(rows, free & ((after & bits) == bits) & ((before & bits) != bits)))

    def claimed(self, task: int, rows: Span, taken: int | None) -> None:
        """Rows were claimed; they have left the queue of the fields ``taken`` already."""
        for mask, queue in self.by_task[task].items():
            if isinstance(queue, GroupQueue):
                queue.drop(self._numbers(rows))
            elif mask != taken:
                queue.leave(rows)

    def settled(self, task: int, rows: Span) -> None:
        """Rows are claimed no more, and not free: what is left of their groups may be ready."""
        if self.groups is not None:
            self.regroup(rows, [task])

    def back(self, task: int, rows: Span) -> None:
        """Rows are free again: they come before all others."""
        for mask, queue in self.by_task[task].items():
            if isinstance(queue, GroupQueue):
                self._regroup(task, queue, rows, first=True)
            else:
                queue.append(pick(rows, self._has(rows, mask)), first=True)

    def cleared(self, rows: Span) -> None:
        """Samples are gone, and out of their groups."""
        for queues in self.by_task:
            for queue in queues.values():
                if isinstance(queue, ReadyQueue):
                    queue.leave(rows)
        if self.groups is not None:
            self.regroup(rows, range(len(self.by_task)))

    def regroup(self, rows: Span, tasks: Iterable[int]) -> None:
        """Something has changed about these rows' groups."""
        for task in tasks:
            for queue in self.by_task[task].values():
                if isinstance(queue, GroupQueue):
                    self._regroup(task, queue, rows)

    def retagged(self, rows: Span) -> None:
        """Tags of these rows have changed."""
        for queue in (one for queues in self.by_task for one in queues.values() if one.watchers):
            if isinstance(queue, GroupQueue):
                changed = queue.of(self._numbers(rows))
                for watcher in queue.watchers.values():
                    watcher.joins(changed, False)
                continue
            ready = array_of(pick(rows, queue.has(rows)))
            for watcher in queue.watchers.values():
                watcher.retagged(ready)

    def _numbers(self, rows: Span) -> list[int]:
        return list(dict.fromkeys(self._rows.groups[rows].tolist()))

    def _regroup(self, task: int, queue: GroupQueue, rows: Span, first: bool = False) -> None:
        """A group can be claimed if it is whole, nobody has claimed some of it, and nothing is lacking.

        What the task is done with already, since it was acked or given back in parts, is not claimed again.
        """
        groups = self.groups
        assert groups is not None
        numbers = self._numbers(rows)
        members = {number: whole for number in numbers if (whole := groups.whole(number))}
        ready: dict[int, Members] = {}
        if members:
            each = joined(members.values())
            states = self._rows.states[task][each]
            free = states == FREE
            stopped = (states == LEASED) | (free & ~self._has(each, queue.mask))
            starts = np.cumsum([0, *map(len, members.values())])[:-1]
            counts = np.add.reduceat(free, starts, dtype=np.int64).tolist()
            for number, start, count, stop in zip(
                members, starts.tolist(), counts, np.logical_or.reduceat(stopped, starts).tolist(), strict=True
            ):
                if count and not stop:
                    whole = members[number]
                    some = slice(start, start + len(whole))
                    ready[number] = whole if count == len(whole) else array("i", each[some][free[some]].tobytes())
        queue.look_again(numbers, ready, first)

    def stranded(self, task: int) -> int:
        """How many free samples are of groups of which some are missing."""
        if self.groups is None:
            return 0
        broken = np.array(self.groups.broken(), dtype=np.int32)
        return int((self._rows.states[task][broken] == FREE).sum())

    def _grow(self) -> None:
        self._size = self._rows.size
        for queues in self.by_task:
            for queue in queues.values():
                if isinstance(queue, ReadyQueue):
                    queue.grow(self._size)

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep) -> dict[str, Any]:
        """All of it as plain data and arrays."""
        return {
            "groups": None if self.groups is None else self.groups.state(keep),
            "tasks": [
                [[mask, keep(np.array(queue.order(), dtype=np.int32))] for mask, queue in queues.items()]
                for queues in self.by_task
            ],
        }

    def restore(self, state: Mapping[str, Any], arrays: Sequence[np.ndarray], group_size: int | None) -> None:
        """Take on a state."""
        if state["groups"] is not None:
            self.groups = Groups(group_size)
            self.groups.restore(state["groups"], arrays)
        for task, queues in enumerate(state["tasks"]):
            for mask, at in queues:
                order = arrays[at].astype(np.int32)
                if self.groups is None:
                    queue = self.by_task[task][mask] = ReadyQueue(mask, self._size)
                    queue.append(span_of(order))
                    continue
                queue = self.by_task[task][mask] = GroupQueue(mask)
                firsts = [self.groups.whole(number)[0] for number in order.tolist()]
                self._regroup(task, queue, np.array(firsts, dtype=np.int32))
