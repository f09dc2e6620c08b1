"""Queues: which samples a task can claim, in which order.

A task has one queue for each set of fields that its claims require. Its units are samples or, in a partition with
groups, whole groups. A unit is ready as a pure function of the table: so after any change of some rows, ``update``
looks at just these again and moves their units in or out of the queues.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from tunegym.dataplane.errors import SampleError, TagError
from tunegym.dataplane.ledger.samples import FREE, LEASED, Samples, widened
from tunegym.dataplane.predicate import Order, Predicate, TagOrder, naming

NOTHING = np.zeros(0, dtype=np.int64)
_PIECE = 1024
_BATCH = 256
_SLACK = 4096


class ReadyQueue:
    """Units in the order in which they became ready; those that were given back come first.

    Units join in numbered entries, and a unit remembers the number of its entry. To leave, a unit forgets it: its place
    in the entry is then stale, and skipped.

    Attributes:
        count: the number of samples that are ready.
    """

    def __init__(self) -> None:
        self.count = 0
        self._entries: deque[tuple[int, np.ndarray]] = deque()
        self._joined = 0
        self._entry = np.zeros(_PIECE, dtype=np.int64)
        self._weight = np.zeros(_PIECE, dtype=np.int32)
        self._length = 0

    def update(self, units: np.ndarray, weights: np.ndarray, first: bool = False) -> None:
        """Set the number of ready samples of distinct units; with 0 a unit leaves.

        Units that join go to the back, or with ``first`` to the front. Those that are in the queue keep their place,
        or with ``first`` move.
        """
        if not len(units):
            return
        highest = int(units.max())
        if highest >= len(self._weight):
            size = max(2 * len(self._weight), highest + 1)
            self._entry, self._weight = widened(self._entry, size), widened(self._weight, size)
        before = self._weight[units]
        self._weight[units] = weights
        ready = weights > 0
        self.count += int(weights.sum()) - int(before.sum())
        self._entry[units[~ready]] = 0
        self._join(units[ready if first else ready & (before == 0)], first)
        if self._length > 2 * self.count + _SLACK or len(self._entries) > self.count // 64 + _SLACK:
            live = self.units()  # rewrite the entries without stale units
            self._entries.clear()
            self._length = 0
            self._join(live, first=False)

    def remove(self, units: np.ndarray) -> None:
        """Units leave, if they are in the queue."""
        known = units[units < len(self._weight)]
        self.count -= int(self._weight[known].sum())
        self._weight[known] = self._entry[known] = 0

    def _join(self, units: np.ndarray, first: bool) -> None:
        pieces = [units[at : at + _PIECE] for at in range(0, len(units), _PIECE)]
        for piece in reversed(pieces) if first else pieces:
            self._joined += 1
            self._entry[piece] = self._joined
            (self._entries.appendleft if first else self._entries.append)((self._joined, piece))
        self._length += len(units)

    def units(self) -> np.ndarray:
        """All units in their order."""
        return _concatenated([*self.batches()])

    def weight(self, units: np.ndarray) -> int:
        """The number of ready samples of these units."""
        return int(self._weight[units].sum())

    def choose(self, least: int, most: int, batches: Iterable[np.ndarray]) -> np.ndarray:
        """The first units with ``least`` to ``most`` samples together, or none. They stay in the queue.

        A unit that doesn't fit any more is passed over. If that makes too few, units of one size are chosen. Groups
        of different sizes are not packed as well as they could be: a combination may exist that this doesn't find.
        ``batches`` has the units to choose from, in order.
        """
        if least > self.count or not self.count:
            return NOTHING
        seen, chosen, total, most = [], [], 0, min(most, self.count)
        for units in batches:
            seen.append(units)
            places, weight = _first_fit(self._weight[units], most - total)
            chosen.append(units[places])
            total += weight
            if total == most or (total >= least and len(chosen[-1]) < len(units)):
                break
        if total >= least:
            return _concatenated(chosen)
        units = _concatenated(seen)
        weights = self._weight[units]
        for size in np.unique(weights).tolist():
            equal = units[weights == size][: most // size]
            if len(equal) * size >= least:
                return equal
        return NOTHING

    def batches(self) -> Iterator[np.ndarray]:
        """The units in their order, in batches that grow, so that a search may stop early."""
        while self._entries and not len(self._live(self._entries[0])):
            self._length -= len(self._entries.popleft()[1])
        batch, count, most = [], 0, _BATCH
        for entry in self._entries:
            batch.append(self._live(entry))
            count += len(batch[-1])
            if count >= most:
                yield _concatenated(batch)
                batch, count, most = [], 0, 2 * most
        if batch:
            yield _concatenated(batch)

    def _live(self, entry: tuple[int, np.ndarray]) -> np.ndarray:
        number, units = entry
        return units[self._entry[units] == number]


def _first_fit(weights: np.ndarray, most: int) -> tuple[Any, int]:
    """Places of the first weights that fit into ``most`` together, passing over those that don't, and their sum."""
    ends = weights.cumsum()
    fitting = int(ends.searchsorted(most, side="right"))
    total = int(ends[fitting - 1]) if fitting else 0
    if fitting == len(weights) or total == most:
        return slice(fitting), total
    chosen = list(range(fitting))
    for place, weight in enumerate(weights[fitting:].tolist(), fitting):
        if total + weight <= most:
            chosen.append(place)
            total += weight
            if total == most:
                break
    return np.array(chosen, dtype=np.int64), total


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate([NOTHING, *parts])


@dataclass(slots=True)
class Group:
    """A group of samples."""

    name: str
    expected: int  # how many samples make it whole; cleared ones don't count
    members: dict[int, None] = field(default_factory=dict)  # the rows that are alive, in order of arrival
    away: int = 0  # the number of cleared rows that a rewind may bring back


class Groups:
    """The groups of a partition: samples that are claimed whole or not at all. Numbers start at 1, and are reused.

    Args:
        size: the size of a whole group; None if a group is what one put brought.
    """

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.used = size is not None
        self.known: dict[int, Group] = {}
        self.numbers: dict[str, int] = {}
        self._unused: list[int] = []

    def check(self, group_ids: Iterable[str]) -> None:
        """Refuse new samples of a group that would never be whole. Raises ``SampleError``; nothing is changed."""
        for name, count in Counter(group_ids).items():
            number = self.numbers.get(name)
            if number is None:
                there, most = 0, self.size
            else:
                there, most = len(self.known[number].members), self.known[number].expected
                if self.size is None:
                    raise SampleError(
                        f"group {name!r} is already there, and came whole",
                        hint="put a group at once, or register the partition with a group_size",
                    )
            if most is not None and there + count > most:
                raise SampleError(
                    f"group {name!r} would have {there + count} samples, and {most} make it whole",
                    hint="use another group id",
                )

    def add(self, group_ids: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Add new samples to their groups. Returns the number of each one's group."""
        self.used = True
        numbers: list[int] = []
        for name, row in zip(group_ids, rows.tolist(), strict=True):
            number = self.numbers.get(name)
            if number is None:
                number = self._unused.pop() if self._unused else len(self.known) + 1
                self.numbers[name] = number
                self.known[number] = Group(name, self.size or 0)
            group = self.known[number]
            group.members[row] = None
            group.expected += self.size is None
            numbers.append(number)
        return np.array(numbers, dtype=np.int32)

    def members(self, number: int) -> dict[int, None]:
        """The rows of a group if it is whole, else none."""
        group = self.known.get(number)
        return group.members if group is not None and len(group.members) == group.expected else {}

    def set_alive(self, rows: np.ndarray, numbers: np.ndarray, *, alive: bool) -> None:
        """Samples are cleared, and no longer count for their groups; or they are back."""
        change = 1 if alive else -1
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            group = self.known[number]
            if alive:
                group.members[row] = None
            else:
                del group.members[row]
            group.expected += change
            group.away -= change

    def remove(self, numbers: np.ndarray) -> None:
        """Cleared samples are gone for good; a group without samples goes with them."""
        for number in numbers.tolist():
            group = self.known[number]
            group.away -= 1
            if not group.members and not group.away and not group.expected:
                del self.known[number], self.numbers[group.name]
                self._unused.append(number)

    def restore(self, known: dict[int, Group], used: bool) -> None:
        """Take on these groups."""
        self.known, self.used = known, used
        self.numbers = {group.name: number for number, group in known.items()}
        self._unused = sorted(set(range(1, max(known, default=0) + 1)) - known.keys(), reverse=True)


class Queues:
    """The queues of a partition. Call ``update`` with the rows after every change of rows.

    Attributes:
        by_task: for each task its queues, by the required fields as bits.
    """

    def __init__(self, samples: Samples, groups: Groups, tasks: int) -> None:
        self._samples, self._groups = samples, groups
        self.by_task: list[dict[int, ReadyQueue]] = [{} for _ in range(tasks)]

    def of(self, task: int, mask: int) -> ReadyQueue:
        """The queue of claims that require these fields; created on first use, by age."""
        found = self.by_task[task].get(mask)
        if found is None:
            found = self.by_task[task][mask] = ReadyQueue()
            rows = np.flatnonzero(self._samples.alive & (self._samples.states[task] == FREE))
            self._update(task, mask, found, rows[np.argsort(self._samples.arrival[rows])], first=False)
        return found

    def update(self, rows: np.ndarray, task: int | None = None, *, first: bool = False) -> None:
        """These rows have changed, for one task or for all. With ``first``, those that are ready come first."""
        for one in range(len(self.by_task)) if task is None else (task,):
            for mask, queue in self.by_task[one].items():
                self._update(one, mask, queue, rows, first)

    def remove(self, rows: np.ndarray, task: int) -> None:
        """These rows, and their groups as a whole, were claimed for a task."""
        units = self._units(rows)
        for queue in self.by_task[task].values():
            queue.remove(units)

    def _update(self, task: int, mask: int, queue: ReadyQueue, rows: np.ndarray, first: bool) -> None:
        units = self._units(rows)
        queue.update(units, self._weights(task, mask, units), first)

    def _units(self, rows: np.ndarray) -> np.ndarray:
        if not self._groups.used:
            return rows
        return np.array(list(dict.fromkeys(self._samples.group[rows].tolist())), dtype=np.int64)

    def _weights(self, task: int, mask: int, units: np.ndarray) -> np.ndarray:
        """The number of samples of each unit that can be claimed."""
        samples = self._samples
        if not self._groups.used:
            ready = samples.alive[units] & (samples.states[task][units] == FREE) & samples.have(units, mask)
            return ready.astype(np.int32)
        members, owner = self._members(units)
        states = samples.states[task][members]
        free = states == FREE
        weights = np.bincount(owner[free], minlength=len(units)).astype(np.int32)
        weights[owner[(states == LEASED) | (free & ~samples.have(members, mask))]] = 0
        return weights

    def restore(self, task: int, mask: int, units: np.ndarray) -> None:
        """Create a queue with units in this order."""
        queue = self.by_task[task][mask] = ReadyQueue()
        queue.update(units, self._weights(task, mask, units))

    def _members(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the groups that are whole, and for each row the place of its group in ``units``."""
        each = [self._groups.members(number) for number in units.tolist()]
        rows = np.fromiter(chain.from_iterable(each), dtype=np.int64)
        return rows, np.repeat(np.arange(len(each)), [len(one) for one in each])

    def _free_members(self, task: int, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self._groups.used:
            return units, np.arange(len(units))
        rows, owner = self._members(units)
        free = self._samples.states[task][rows] == FREE
        return rows[free], owner[free]

    def rows_of(self, task: int, units: np.ndarray) -> np.ndarray:
        """The samples of ready units, in their order."""
        return self._free_members(task, units)[0] if self._groups.used else units

    def _matching(self, task: int, where: Predicate, units: np.ndarray) -> np.ndarray:
        """The units that match a predicate: a group does if every sample does that would be claimed."""
        samples, (rows, owner) = self._samples, self._free_members(task, units)
        with naming(lambda places: samples.names[rows[places]].tolist()):
            wanted = where.mask(lambda name: samples.tags.column(name, rows))
        matches = np.ones(len(units), dtype=bool)
        matches[owner[~wanted]] = False
        return units[matches]

    def _ordered(self, task: int, order: Order, units: np.ndarray) -> np.ndarray:
        """The units by a tag, or the newest first: a group by that of its samples that comes first."""
        samples, (rows, owner) = self._samples, self._free_members(task, units)
        with naming(lambda places: samples.names[rows[places]].tolist()):
            tagged = isinstance(order, TagOrder)
            ranks = order.ranks(samples.tags.column(order.tag, rows)) if tagged else -samples.arrival[rows]
        best = np.full(len(units), len(rows))
        np.minimum.at(best, owner, ranks)
        return units[np.argsort(best, kind="stable")]

    def any_match(self, where: Predicate, sample_ids: Sequence[str]) -> bool:
        """Whether a predicate matches one of these samples, or can't be evaluated."""
        rows = self._samples.find(sample_ids)
        try:
            return bool(where.mask(lambda name: self._samples.tags.column(name, rows)).any())
        except TagError:
            return True

    def choose(self, task: int, mask: int, least: int, most: int, where: Predicate | None, order: Order) -> np.ndarray:
        """The rows of a claim, or none. Raises ``TagError``."""
        queue = self.of(task, mask)
        batches = queue.batches()
        if where is not None:
            batches = (self._matching(task, where, one) for one in batches)
        if order != "oldest":
            batches = (self._ordered(task, order, _concatenated([*every])) for every in (batches,))
        return self.rows_of(task, queue.choose(least, most, batches))

    def ready(self, task: int, mask: int, where: Predicate | None = None) -> int:
        """The number of samples that could be claimed. Raises ``TagError``."""
        queue = self.of(task, mask)
        return queue.count if where is None else queue.weight(self._matching(task, where, queue.units()))

    def stranded(self, task: int) -> int:
        """The number of free samples in groups that are not whole."""
        broken = (one.members for one in self._groups.known.values() if len(one.members) != one.expected)
        rows = np.fromiter(chain.from_iterable(broken), dtype=np.int64)
        return int(np.count_nonzero(self._samples.states[task][rows] == FREE))
