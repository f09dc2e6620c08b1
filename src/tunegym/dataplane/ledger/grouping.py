"""Groups: samples that are claimed whole or not at all."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tunegym.dataplane.errors import SampleError
from tunegym.dataplane.ledger.ids import Keep, read_texts, texts
from tunegym.dataplane.ledger.totals import between, counts, totals

Members: TypeAlias = "array[int]"
"""Rows of a group, of 32 bits each. Once a group is whole they are replaced, and never changed: queues share them."""

_NONE: Members = array("i")


def joined(some: Iterable[Members]) -> np.ndarray:
    """All rows of all of them, in their order."""
    return np.frombuffer(b"".join(some), dtype=np.int32)


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
    members: Members
    away: Members


_NOBODY = _Group("", 0, _NONE, _NONE)


class Groups:
    """Which rows make a group, and how many make it whole. Groups have numbers from 1 on, which are used again.

    Args:
        size: of a whole group; None if a group is what one put brought.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._numbers: dict[str, int] = {}
        self._groups = [_NOBODY]
        self._unused: list[int] = []

    def check(self, group_ids: Sequence[str]) -> None:
        """Refuse what would never be a whole group. Raises ``SampleError``; nothing is changed."""
        for name, count in Counter(group_ids).items():
            number = self._numbers.get(name)
            if number is None:
                there, most = 0, self._size
            else:
                there, most = len(self._groups[number].members), self._groups[number].expected
            if self._size is None and number is not None:
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
                number = self._numbers[name] = self._unused.pop() if self._unused else len(self._groups)
                self._groups[number : number + 1] = [_Group(name, self._size or 0, _NONE, _NONE)]
            group = self._groups[number]
            if group.members is _NONE:
                group.members = array("i")
            group.members.append(row)
            if self._size is None:
                group.expected += 1
            numbers[at] = number
        return numbers

    def whole(self, number: int) -> Members:
        """The rows of a group if all of it are there, else none."""
        group = self._groups[number]
        return group.members if len(group.members) == group.expected else _NONE

    def broken(self) -> list[int]:
        """The rows of groups of which some are missing."""
        return [row for one in self._groups if len(one.members) != one.expected for row in one.members]

    def name(self, number: int) -> str:
        """Its id."""
        return self._groups[number].name

    def clear(self, rows: Iterable[int], numbers: Iterable[int]) -> None:
        """Samples that are cleared: the rest of their groups goes on without them."""
        for number, some in _by_group(rows, numbers).items():
            group = self._groups[number]
            group.members, group.away = _without(group.members, some), group.away + array("i", some)
            group.expected -= len(some)

    def revive(self, rows: Iterable[int], numbers: Iterable[int]) -> None:
        """Cleared samples that are back."""
        for number, some in _by_group(rows, numbers).items():
            group = self._groups[number]
            group.members, group.away = group.members + array("i", some), _without(group.away, some)
            group.expected += len(some)

    def forget(self, rows: Iterable[int], numbers: Iterable[int]) -> None:
        """Cleared samples that never come back."""
        for number, some in _by_group(rows, numbers).items():
            group = self._groups[number]
            group.away = _without(group.away, some)
            if not group.members and not group.away and not group.expected:
                del self._numbers[group.name]
                self._groups[number] = _NOBODY
                self._unused.append(number)

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep) -> dict[str, Any]:
        """All of it as plain data and arrays."""
        numbers = list(self._numbers.values())
        groups = [self._groups[number] for number in numbers]
        sizes = [[one.expected, len(one.members), len(one.away)] for one in groups]
        rows = joined(some for one in groups for some in (one.members, one.away))
        return {
            "count": len(self._groups),
            "names": texts([one.name for one in groups], keep),
            "numbers": keep(np.array(numbers, dtype=np.int64)),
            "counts": keep(np.array(sizes, dtype=np.int64).reshape(-1, 3)),
            "rows": keep(rows),
        }

    def restore(self, state: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Take on a state."""
        self._groups = [_NOBODY] * state["count"]
        numbers, rows = arrays[state["numbers"]].tolist(), arrays[state["rows"]].astype(np.int32)
        at = 0
        for name, number, (expected, there, away) in zip(
            read_texts(state["names"], arrays), numbers, arrays[state["counts"]].tolist(), strict=True
        ):
            middle, end = at + there, at + there + away
            self._groups[number] = _Group(name, expected, _members(rows[at:middle]), _members(rows[middle:end]))
            self._numbers[name] = number
            at = end
        self._unused = [number for number, one in enumerate(self._groups) if number and one is _NOBODY]


def _members(rows: np.ndarray) -> Members:
    return array("i", rows.tobytes()) if len(rows) else _NONE


def _by_group(rows: Iterable[int], numbers: Iterable[int]) -> dict[int, list[int]]:
    """The rows of each group, in their order."""
    found: dict[int, list[int]] = {}
    for row, number in zip(rows, numbers, strict=True):
        found.setdefault(number, []).append(row)
    return found


def _without(members: Members, gone: Sequence[int]) -> Members:
    """The rows but for some of them, in their order."""
    if len(gone) == len(members):
        return _NONE
    lost = set(gone)
    return array("i", [row for row in members if row not in lost])


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
        self._ready: OrderedDict[int, Members] = OrderedDict()
        self._sizes: Counter[int] = Counter()

    def look_again(self, numbers: Sequence[int], ready: Mapping[int, Members], first: bool = False) -> None:
        """Groups of which something has changed; ``ready`` has the rows of those that can be claimed.

        Those that are to come first do so in the order in which they are given.
        """
        gone = []
        for number in reversed(numbers) if first else numbers:
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

    def of(self, numbers: Iterable[int]) -> dict[int, Members]:
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
        However large the numbers are, it costs no more than what is there.
        """
        most = min(most, self.count)
        if least > most or not totals(self._sizes, most)[-1] & between(max(least, 1), most):
            return []
        chosen: list[int] = []
        smallest = min(self._sizes)
        for rows in self._ready.values():
            if len(chosen) + smallest > most:
                break
            if len(chosen) + len(rows) <= most:
                chosen += rows
        if len(chosen) < least:
            missing = counts(Counter(map(len, self._ready.values())), least, most)
            chosen = []
            for rows in self._ready.values():
                if missing[len(rows)]:
                    missing[len(rows)] -= 1
                    chosen += rows
        return chosen

    def mark(self, marks: np.ndarray) -> None:
        """Set what is ready."""
        marks[joined(self._ready.values())] = True

    def order(self) -> list[int]:
        """The groups in their order."""
        return list(self._ready)
