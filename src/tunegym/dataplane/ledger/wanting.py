"""What claims with a predicate want of what is ready: looked at once, and then only what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import accumulate, islice
from typing import Any

import numpy as np

from tunegym.dataplane.errors import TagError
from tunegym.dataplane.ledger.grouping import GroupQueue, Members, joined
from tunegym.dataplane.ledger.ready import ReadyQueue
from tunegym.dataplane.ledger.spans import NOTHING, Span, array_of, join, size_of, span_of
from tunegym.dataplane.ledger.tagging import TagColumns
from tunegym.dataplane.predicate import Predicate

_MOST_PARTS = 4096
_MOST_IDLE = 4
_NEAR = 256
_FEW = 4
"""So many rows are looked at one by one faster than at once."""


@lru_cache(maxsize=4096)
def key_of(where: Predicate) -> str:
    """Equal for predicates that want the same."""
    return repr(where.plain())


class Wish:
    """A predicate on the tags of a partition. Raises ``TagError`` for values that can't be compared."""

    def __init__(self, where: Predicate, tags: TagColumns) -> None:
        self._where, self._tags = where, tags

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Which rows are wanted."""
        return self._where.mask(lambda name: self._tags.column(name, rows))

    def one(self, row: int) -> bool:
        """Whether a row is wanted."""
        return self._where.wants(partial(self._tags.value, row))


class WantedRows:
    """Of a queue, the rows that a predicate wants, in the same order.

    What becomes ready is looked at when it might make a claim come true, all of it at once: up to then it is only
    counted. So a put costs a claim that waits next to nothing.

    Args:
        queue: tells of every row that joins or leaves it.
        wish: says which rows are wanted.
        rows: of those that are ready now, the wanted ones.
    """

    def __init__(self, queue: ReadyQueue, wish: Wish, rows: np.ndarray) -> None:
        self._queue, self._wish = queue, wish
        self._own = ReadyQueue(queue.mask, queue.size)
        self._own.append(span_of(rows))
        self._unseen: list[Span] = []
        self._unseen_count = 0
        self._left_since = False
        self._error: TagError | None = None

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        self._own.grow(rows)

    def joins(self, rows: Span, first: bool) -> None:
        """Rows are about to become ready."""
        if first:
            self._look()
            self._own.append(self._wanted(array_of(rows)), first=True)
            return
        self._unseen.append(rows)
        self._unseen_count += size_of(rows)
        if len(self._unseen) > _MOST_PARTS:
            self._look()

    def left(self, rows: Span) -> None:
        """Rows are not ready any more."""
        self._own.leave(rows)
        self._left_since = bool(self._unseen)

    def retagged(self, rows: np.ndarray) -> None:
        """Tags of rows that are ready have changed."""
        self._look()
        there = self._own.has(rows)
        wanted = np.zeros(len(rows), dtype=bool)
        wanted[np.isin(rows, array_of(self._wanted(rows)), assume_unique=True)] = True
        self._own.leave(rows[there & ~wanted])
        self._own.append(span_of(rows[wanted & ~there]))

    def count(self) -> int:
        """How many are wanted. Raises ``TagError``."""
        self._look()
        self._check()
        return self._own.count

    def choose(self, least: int, most: int) -> Span | None:
        """The first rows, which leave; None if there are fewer than ``least``. Raises ``TagError``."""
        if self._own.count + self._unseen_count < least and self._error is None:
            return None
        return self._own.take(most) if self.count() >= max(least, 1) else None

    def _look(self) -> None:
        """At what was not looked at yet."""
        if not self._unseen:
            return
        rows = array_of(join(self._unseen))
        self._unseen, self._unseen_count = [], 0
        if self._left_since:  # some may have come back since, or their slots: where they came last counts
            rows = rows[self._queue.has(rows)]
            _, last = np.unique(rows[::-1], return_index=True)
            rows = rows[np.sort(len(rows) - 1 - last)]
            self._left_since = False
        self._own.append(self._wanted(rows))

    def _wanted(self, rows: np.ndarray) -> Span:
        try:
            if len(rows) > _FEW:
                wanted = self._wish.of(rows)
                return span_of(rows[wanted]) if wanted.any() else NOTHING
            each = [row for row in rows.tolist() if self._wish.one(row)]
            return span_of(np.array(each, dtype=np.int32)) if each else NOTHING
        except TagError as error:  # for who claims by it, not for who puts
            self._error = error
            return NOTHING

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


class WantedGroups:
    """Of a queue of groups, those of which a predicate wants every sample; otherwise like ``WantedRows``.

    No more of them is looked at than a claim needs.
    """

    def __init__(self, queue: GroupQueue, wish: Wish) -> None:
        self._wish = wish
        self._own = GroupQueue(queue.mask)
        self._unseen = queue.of(queue.order())
        self._unseen_count = queue.count
        self._error: TagError | None = None

    def joins(self, groups: Mapping[int, Members], first: bool) -> None:
        """Groups have become ready, or are ready with other samples, or other tags, than before."""
        known = groups if first else self._own.of(groups)
        if known:
            self._forget(known)
            self._see(known if first else {number: groups[number] for number in known}, first)
        fresh = {number: rows for number, rows in groups.items() if number not in known} if known else groups
        self._forget(one for one in fresh if one in self._unseen)
        self._unseen.update(fresh)
        self._unseen_count += sum(map(len, fresh.values()))

    def left(self, numbers: Iterable[int]) -> None:
        """Groups are not ready any more."""
        self._own.drop(numbers)
        self._forget(numbers)

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._unseen_count -= len(self._unseen.pop(number, ()))

    def count(self) -> int:
        """How many samples are wanted. Raises ``TagError``."""
        self._look(len(self._unseen))
        self._check()
        return self._own.count

    def choose(self, least: int, most: int) -> Span | None:
        """The rows of whole groups, which stay; None if there are fewer than ``least``. Raises ``TagError``."""
        if self._own.count + self._unseen_count < least and self._error is None:
            return None
        near = _NEAR
        while self._unseen and self._own.count < most:
            self._look(near)
            near *= 2
        self._check()
        found = self._own.choose(least, most)
        if not found and self._unseen and self.count() >= least:
            found = self._own.choose(least, most)
        return span_of(np.array(found, dtype=np.int32)) if found else None

    def _look(self, most: int) -> None:
        groups = {number: self._unseen[number] for number in islice(self._unseen, most)}
        self._forget(groups)
        self._see(groups, False)

    def _see(self, groups: Mapping[int, Members], first: bool) -> None:
        if not groups:
            return
        try:
            wanted = self._wish.of(joined(groups.values()))
        except TagError as error:  # for who claims by it, not for who puts
            self._error = error
            return
        if not wanted.any():
            self._own.drop(groups)
            return
        starts = np.fromiter(accumulate(map(len, groups.values()), initial=0), dtype=np.int64)[:-1]
        whole = np.logical_and.reduceat(wanted, starts).tolist()
        good = {number: rows for (number, rows), wholly in zip(groups.items(), whole, strict=True) if wholly}
        self._own.look_again(list(groups), good, first)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


class Watches:
    """The watchers of a partition's queues, one for each predicate that somebody waits by.

    Of those that nobody waits by any more, the last few stay: who claimed by a predicate will do so again.

    Args:
        tags: of the partition.
    """

    def __init__(self, tags: TagColumns) -> None:
        self._tags = tags
        self._users: Counter[tuple[int, int, str]] = Counter()

    def hold(self, task: int, mask: int, where: Predicate) -> None:
        """Somebody waits by it."""
        self._users[task, mask, key_of(where)] += 1

    def let_go(self, task: int, mask: int, where: Predicate) -> None:
        """Somebody waits no more by it."""
        key = task, mask, key_of(where)
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]

    def count(self, task: int, queue: ReadyQueue | GroupQueue, where: Predicate) -> int:
        """How many ready samples are wanted. Raises ``TagError``."""
        watcher, wish = queue.watchers.get(key_of(where)), Wish(where, self._tags)
        if watcher is None:
            if isinstance(queue, ReadyQueue):
                return len(queue.look(queue.count, wish.of))
            watcher = self._add(task, queue, where, WantedGroups(queue, wish))
        return self._tried(queue, where, watcher.count)

    def choose(self, task: int, queue: ReadyQueue | GroupQueue, where: Predicate, least: int, most: int) -> Span | None:
        """The first rows that are wanted; None if there are fewer than ``least``. Raises ``TagError``."""
        watcher = queue.watchers.get(key_of(where))
        if watcher is None:
            wish = Wish(where, self._tags)
            if isinstance(queue, GroupQueue):
                watcher = self._add(task, queue, where, WantedGroups(queue, wish))
            else:
                rows = queue.look(most, wish.of)
                if len(rows) >= max(least, 1):
                    return span_of(rows)
                self._add(task, queue, where, WantedRows(queue, wish, rows))
                return None
        return self._tried(queue, where, lambda: watcher.choose(least, most))

    def _add(self, task: int, queue: ReadyQueue | GroupQueue, where: Predicate, watcher: Any) -> Any:
        idle = [key for key in queue.watchers if (task, queue.mask, key) not in self._users]
        for key in idle[: max(0, len(idle) - _MOST_IDLE)]:
            del queue.watchers[key]
        queue.watchers[key_of(where)] = watcher
        return watcher

    def _tried(self, queue: ReadyQueue | GroupQueue, where: Predicate, attempt: Callable[[], Any]) -> Any:
        try:
            return attempt()
        except TagError:
            queue.watchers.pop(key_of(where), None)
            raise
