"""Groups: samples that are claimed whole or not at all."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunegym.dataplane.errors import SampleError
from tunegym.dataplane.ledger.ids import Keep, read_texts, texts


@dataclass(slots=True)
class _Group:
    """A group.

    Attributes:
        name: its id.
        expected: how many make it whole; of those that are cleared, none.
        members: the rows that are there.
        away: the rows that are cleared, and may come back.
    """

    name: str
    expected: int
    members: list[int] = field(default_factory=list)
    away: list[int] = field(default_factory=list)


class Groups:
    """Which rows make a group, and how many make it whole.

    Args:
        size: of a whole group; None if a group is what one put brought.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._numbers: dict[str, int] = {}
        self._groups: dict[int, _Group] = {}
        self._next = 1

    def check(self, group_ids: Sequence[str]) -> None:
        """Refuse what would never be a whole group. Raises ``SampleError``; nothing is changed."""
        for name, count in Counter(group_ids).items():
            group = self._groups.get(self._numbers.get(name, 0))
            if group is None:
                there, most = 0, self._size
            else:
                there, most = len(group.members), group.expected
            if self._size is None and group is not None:
                raise SampleError(
                    f"group {name!r} is there already, and came whole",
                    hint="put a group at once, or register the partition with a group_size",
                )
            if most is not None and there + count > most:
                raise SampleError(
                    f"group {name!r} would have {there + count} samples, and {most} make it whole",
                    hint="use another group id",
                )

    def add(self, group_ids: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Take new samples into their groups; the number of each one's."""
        numbers = np.zeros(len(rows), dtype=np.int32)
        for at, (name, row) in enumerate(zip(group_ids, rows.tolist(), strict=True)):
            number = self._numbers.get(name)
            if number is None:
                number = self._numbers[name] = self._next
                self._next += 1
                self._groups[number] = _Group(name, self._size or 0)
            group = self._groups[number]
            group.members.append(row)
            if self._size is None:
                group.expected += 1
            numbers[at] = number
        return numbers

    def whole(self, number: int) -> list[int]:
        """The rows of a group if all of it are there, else none."""
        group = self._groups.get(number)
        return group.members if group is not None and len(group.members) == group.expected else []

    def broken(self) -> list[int]:
        """The rows of groups of which some are missing."""
        return [row for one in self._groups.values() if len(one.members) != one.expected for row in one.members]

    def name(self, number: int) -> str:
        """Its id."""
        return self._groups[number].name

    def clear(self, rows: Iterable[int], numbers: Iterable[int]) -> None:
        """Samples that are cleared: the rest of their groups goes on without them."""
        for row, number in zip(rows, numbers, strict=True):
            group = self._groups[number]
            group.members.remove(row)
            group.away.append(row)
            group.expected -= 1

    def revive(self, rows: Iterable[int], numbers: Iterable[int]) -> None:
        """Cleared samples that are back."""
        for row, number in zip(rows, numbers, strict=True):
            group = self._groups[number]
            group.away.remove(row)
            group.members.append(row)
            group.expected += 1

    def forget(self, rows: Iterable[int], numbers: Iterable[int]) -> None:
        """Cleared samples that never come back."""
        for row, number in zip(rows, numbers, strict=True):
            group = self._groups[number]
            group.away.remove(row)
            if not group.members and not group.away and not group.expected:
                del self._groups[number], self._numbers[group.name]

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep) -> dict[str, Any]:
        """All of it as plain data and arrays."""
        groups = list(self._groups.values())
        counts = [[one.expected, len(one.members), len(one.away)] for one in groups]
        rows = [row for one in groups for row in (*one.members, *one.away)]
        return {
            "next": self._next,
            "names": texts([one.name for one in groups], keep),
            "numbers": keep(np.array(list(self._groups), dtype=np.int64)),
            "counts": keep(np.array(counts, dtype=np.int64).reshape(-1, 3)),
            "rows": keep(np.array(rows, dtype=np.int32)),
        }

    def restore(self, state: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Take on a state."""
        self._next = state["next"]
        numbers, rows = arrays[state["numbers"]].tolist(), arrays[state["rows"]].tolist()
        at = 0
        for name, number, (expected, there, away) in zip(
            read_texts(state["names"], arrays), numbers, arrays[state["counts"]].tolist(), strict=True
        ):
            middle, end = at + there, at + there + away
            self._groups[number] = _Group(name, expected, rows[at:middle], rows[middle:end])
            self._numbers[name] = number
            at = end


class GroupQueue:
    """The groups of a partition that a task can claim whole, in the order in which they became ready.

    Attributes:
        mask: the fields that its claims require, as bits.
        count: how many samples are in them.
        watchers: by name; they hear of every group that joins it, changes, or leaves it, afterwards.
    """

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.count = 0
        self.watchers: dict[str, Any] = {}
        self._ready: OrderedDict[int, list[int]] = OrderedDict()
        self._sizes: Counter[int] = Counter()

    def look_again(self, numbers: Iterable[int], ready: Mapping[int, list[int]], first: bool = False) -> None:
        """Groups of which something has changed; ``ready`` has the rows of those that can be claimed."""
        gone = []
        for number in numbers:
            rows, before = ready.get(number), self._ready.get(number)
            if rows is None:
                gone.append(number)
                continue
            if before is not None:
                self._count(len(before), -1)
            self._ready[number] = rows
            self._count(len(rows), 1)
            if first:
                self._ready.move_to_end(number, last=False)
        self.drop(gone)
        for one in self.watchers.values():
            one.joins(ready, first)

    def drop(self, numbers: Iterable[int]) -> None:
        """Groups that can't be claimed any more, if they could."""
        gone = [number for number in numbers if number in self._ready]
        for number in gone:
            self._count(len(self._ready.pop(number)), -1)
        if gone:
            for one in self.watchers.values():
                one.left(gone)

    def of(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """The rows of those of these groups that can be claimed."""
        ready = self._ready
        return {number: ready[number] for number in numbers if number in ready}

    def _count(self, size: int, change: int) -> None:
        self.count += size * change
        self._sizes[size] += change
        if not self._sizes[size]:
            del self._sizes[size]

    def choose(self, least: int, most: int) -> list[int]:
        """The rows of whole groups, ``least`` to ``most`` of them, none if that is impossible; they stay.

        The first that fit; where that makes too few, since one at the front is of an odd size, others besides it.
        """
        if not _totals(self._sizes, most) & _between(max(least, 1), most):
            return []
        chosen: list[int] = []
        smallest = min(self._sizes)
        for rows in self._ready.values():
            if len(chosen) + smallest > most:
                break
            if len(chosen) + len(rows) <= most:
                chosen += rows
        if len(chosen) < least:
            fitting = [rows for rows in self._ready.values() if len(rows) <= most]
            chosen = [row for at in _chosen(list(map(len, fitting)), least, most) for row in fitting[at]]
        return chosen

    def mark(self, marks: np.ndarray) -> None:
        """Set what is ready."""
        marks[[row for rows in self._ready.values() for row in rows]] = True

    def order(self) -> list[int]:
        """The groups in their order."""
        return list(self._ready)


def _between(least: int, most: int) -> int:
    """Totals from ``least`` to ``most``, as bits."""
    return (1 << most + 1) - (1 << least)


def _totals(sizes: Mapping[int, int], most: int) -> int:
    """What so many groups of these sizes can make together, up to ``most``, as bits."""
    totals, within = 1, (1 << most + 1) - 1
    for size, count in sizes.items():
        count, step = min(count, most // size), 1
        while count > 0:  # as many as one, two, four, ... of them: together, any number
            step = min(step, count)
            totals |= totals << size * step & within
            count -= step
            step *= 2
    return totals


def _chosen(sizes: Sequence[int], least: int, most: int) -> list[int]:
    """Which of the groups make ``least`` to ``most`` together, as much at the front as can be; some do."""
    wanted, totals = _between(least, most), [1]
    for size in sizes:
        totals.append((totals[-1] | totals[-1] << size) & (1 << most + 1) - 1)
        if totals[-1] & wanted:
            break
    total = (totals[-1] & wanted).bit_length() - 1
    chosen: list[int] = []
    for at in range(len(totals) - 2, -1, -1):
        if not totals[at] >> total & 1:
            chosen.append(at)
            total -= sizes[at]
    return chosen[::-1]
