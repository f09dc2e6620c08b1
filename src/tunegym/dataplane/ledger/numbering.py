"""Ids that are numbered: what they have in common, their numbers, many at once, and their rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from tunegym.dataplane.ledger.spans import every

UNKNOWN = -1
RETIRED = -2
"""In place of a row: an id that was never there, and one that was, and is used up."""

_CHUNK_BITS = 10
CHUNK = 1 << _CHUNK_BITS
_MOST_DIGITS = 15
_FEW = 24
"""So many ids are read one by one faster than at once."""

Form: TypeAlias = tuple[str, int]
"""What numbered ids have in common: what comes before the digits, and how many of those there are."""


def form_of(sample_id: str) -> tuple[Form, int] | None:
    """Form and number of an id; None if it doesn't end with digits, or with too many."""
    head = sample_id.rstrip("0123456789")
    digits = len(sample_id) - len(head)
    if not 0 < digits <= _MOST_DIGITS:
        return None
    return (head, digits), int(sample_id[len(head) :])


def numbers_of(ids: Sequence[str]) -> tuple[Form, np.ndarray] | None:
    """The form of the ids and their numbers; None unless all are of one."""
    parsed = form_of(ids[0]) if ids else None
    if parsed is None:
        return None
    form, number = parsed
    if len(ids) == 1:
        return form, np.array([number], dtype=np.int64)
    head, width = form
    if len(ids[-1]) != len(ids[0]) or not ids[-1].startswith(head) or not ids[1].startswith(head):
        return None
    numbers = _one_by_one(ids, head, width) if len(ids) < _FEW else _at_once(ids, head, width)
    return None if numbers is None else (form, numbers)


def _one_by_one(ids: Sequence[str], head: str, width: int) -> np.ndarray | None:
    length, start = len(head) + width, len(head)
    numbers = []
    for one in ids:
        digits = one[start:]
        if len(one) != length or not one.startswith(head) or not digits.isdecimal() or not digits.isascii():
            return None
        numbers.append(int(digits))
    return np.array(numbers, dtype=np.int64)


def _at_once(ids: Sequence[str], head: str, width: int) -> np.ndarray | None:
    length, start = len(head) + width, len(head)
    if set(map(len, ids)) != {length}:
        return None
    text = "".join(ids)
    if not text.isascii():
        return _one_by_one(ids, head, width)
    letters = np.frombuffer(text.encode("ascii"), dtype=np.uint8).reshape(len(ids), length)
    if not (letters[:, :start] == letters[0, :start]).all():
        return None
    digits = letters[:, start:] - np.uint8(48)  # whatever is below "0" wraps around, far above 9
    if (digits > 9).any():
        return None
    return digits @ _POWERS[-width:]


def spelled(form: Form, numbers: np.ndarray) -> list[str]:
    """The ids of numbers. What comes before the last three digits is the same for many of them."""
    head, width = form
    low, high = int(numbers[0]), int(numbers[-1])
    if high - low == len(numbers) - 1 and every(numbers[1:] > numbers[:-1]):
        return _run(form, low, high + 1)
    if width < 3:
        return [f"{head}{number:0{width}d}" for number in numbers.tolist()]
    before = numbers // 1000
    each, after = before.tolist(), (numbers - before * 1000).tolist()
    starts = {one: _start(form, one) for one in set(each)}
    return [starts[one] + _LAST_DIGITS[digits] for one, digits in zip(each, after, strict=True)]


def _run(form: Form, first: int, end: int) -> list[str]:
    """The ids of the numbers from ``first`` to before ``end``."""
    head, width = form
    if width < 3:
        return [f"{head}{number:0{width}d}" for number in range(first, end)]
    names: list[str] = []
    for low in range(first - first % 1000, end, 1000):
        start = _start(form, low // 1000)
        names += [start + digits for digits in _LAST_DIGITS[max(0, first - low) : end - low]]
    return names


def _start(form: Form, thousands: int) -> str:
    head, width = form
    return f"{head}{thousands:0{width - 3}d}" if width > 3 else head


_LAST_DIGITS = [f"{number:03d}" for number in range(1000)]
_ENDLESS = 1 << 62
_POWERS = 10 ** np.arange(_MOST_DIGITS - 1, -1, -1, dtype=np.int64)
_FEW_CHUNKS, _DENSE = 16, 64
"""So many chunks a form may have anyway, and one more for each so many of its ids that are there."""


@dataclass
class Spent:
    """Chunks with retired ids, none that is there, and some that never were: by place and chunk, the oldest first.

    Attributes:
        idle: as they were.
        packed: as bits.
    """

    idle: dict[tuple[int, int], None] = field(default_factory=dict)
    packed: dict[tuple[int, int], None] = field(default_factory=dict)


@dataclass
class Numbered:
    """Rows by number, in chunks; a chunk whose ids are all retired is remembered as such and costs nothing.

    Attributes:
        left, live: by chunk, how many of its ids are not retired, and how many are there.
        alive: how many ids are there.
        packed: by chunk, which ids are retired, of chunks of which none is there, as bits.
        used_up: first and last of runs of chunks, in order.
    """

    place: int
    form: Form
    spent: Spent
    chunks: dict[int, np.ndarray] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    live: dict[int, int] = field(default_factory=dict)
    alive: int = 0
    packed: dict[int, bytes] = field(default_factory=dict)
    used_up: list[list[int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether it knows of any id."""
        return bool(self.chunks or self.packed or self.used_up)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The row of each number, ``UNKNOWN`` or ``RETIRED``."""
        found = np.full(len(numbers), UNKNOWN, dtype=np.int32)
        for chunk, places, inside in _by_chunk(numbers, self._knows):
            rows = self.chunks.get(chunk)
            if rows is not None:
                found[places] = rows[inside]
            elif chunk in self.packed:
                found[places] = _unpacked(self.packed[chunk])[inside]
            else:
                found[places] = RETIRED
        return found

    def fits(self, numbers: np.ndarray) -> bool:
        """Whether these, which are new, are dense enough: a chunk for every few of them takes too much room."""
        chunks = numbers >> _CHUNK_BITS
        touched = [int(chunks[0])] if every(chunks == chunks[0]) else np.unique(chunks).tolist()
        fresh = sum(one not in self.chunks for one in touched)
        return not fresh or len(self.chunks) + fresh <= _FEW_CHUNKS + (self.alive + len(numbers)) // _DENSE

    def put(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Give new numbers their rows."""
        for chunk, places, inside in _by_chunk(numbers):
            kept = self.chunks.get(chunk)
            if kept is None:
                kept = self._opened(chunk)
            elif not self.live[chunk]:
                del self.spent.idle[self.place, chunk]
            kept[inside] = rows[places]
            self.live[chunk] += len(numbers[places])
        self.alive += len(numbers)

    def _opened(self, chunk: int) -> np.ndarray:
        packed = self.packed.pop(chunk, None)
        if packed is None:
            self.take(chunk, np.full(CHUNK, UNKNOWN, dtype=np.int32))
        else:
            del self.spent.packed[self.place, chunk]
            self.take(chunk, _unpacked(packed))
        return self.chunks[chunk]

    def take(self, chunk: int, rows: np.ndarray) -> None:
        """Have a chunk with these rows."""
        self.chunks[chunk] = rows
        self.left[chunk] = int(np.count_nonzero(rows != RETIRED))
        self.live[chunk] = int(np.count_nonzero(rows >= 0))
        self.alive += self.live[chunk]

    def retire(self, numbers: np.ndarray) -> None:
        """These are used up."""
        self.alive -= len(numbers)
        for chunk, places, inside in _by_chunk(numbers):
            count = len(numbers[places])
            self.chunks[chunk][inside] = RETIRED
            self.left[chunk] -= count
            self.live[chunk] -= count
            if self.left[chunk] == 0:
                self._close(chunk)
                self._use_up(chunk)
            elif self.live[chunk] == 0:
                self.spent.idle[self.place, chunk] = None

    def _close(self, chunk: int) -> np.ndarray:
        del self.left[chunk], self.live[chunk]
        return self.chunks.pop(chunk)

    def pack(self, chunk: int) -> None:
        """Keep an idle chunk as bits."""
        del self.spent.idle[self.place, chunk]
        self.packed[chunk] = np.packbits(self._close(chunk) == RETIRED).tobytes()
        self.spent.packed[self.place, chunk] = None

    def forget(self, chunk: int) -> np.ndarray:
        """Forget a packed chunk; its retired numbers."""
        del self.spent.packed[self.place, chunk]
        return np.flatnonzero(_unpacked(self.packed.pop(chunk)) == RETIRED) + (chunk << _CHUNK_BITS)

    def _knows(self, chunk: int) -> bool:
        return chunk in self.chunks or chunk in self.packed or self._is_used_up(chunk)

    def _is_used_up(self, chunk: int) -> bool:
        at = bisect_right(self.used_up, [chunk, _ENDLESS]) - 1
        return at >= 0 and chunk <= self.used_up[at][1]

    def _use_up(self, chunk: int) -> None:
        runs = self.used_up
        at = bisect_right(runs, [chunk, _ENDLESS])
        runs.insert(at, [chunk, chunk])
        if at + 1 < len(runs) and runs[at + 1][0] == chunk + 1:
            runs[at][1] = runs.pop(at + 1)[1]
        if at and runs[at - 1][1] == chunk - 1:
            runs[at - 1][1] = runs.pop(at)[1]


def _unpacked(bits: bytes) -> np.ndarray:
    retired = np.unpackbits(np.frombuffer(bits, dtype=np.uint8)).astype(bool)
    return np.where(retired, np.int32(RETIRED), np.int32(UNKNOWN))


def _any(_chunk: int) -> bool:
    return True


def _by_chunk(
    numbers: np.ndarray, wanted: Callable[[int], bool] = _any
) -> list[tuple[int, slice | np.ndarray, slice | np.ndarray]]:
    """The chunks that are wanted, with the places of the numbers that are in them, and where these are there."""
    count = len(numbers)
    if not count:
        return []
    first, last = int(numbers[0]), int(numbers[-1])
    if last - first == count - 1 and every(numbers[1:] > numbers[:-1]):  # the most common by far: they are in order
        edges = [first, *range((first | (CHUNK - 1)) + 1, last + 1, CHUNK), last + 1]
        return [
            (
                low >> _CHUNK_BITS,
                slice(low - first, high - first),
                slice(low & (CHUNK - 1), ((high - 1) & (CHUNK - 1)) + 1),
            )
            for low, high in pairwise(edges)
            if wanted(low >> _CHUNK_BITS)
        ]
    chunks, inside = numbers >> _CHUNK_BITS, numbers & (CHUNK - 1)
    if (chunks == chunks[0]).all():
        return [(int(chunks[0]), slice(None), inside)] if wanted(int(chunks[0])) else []
    order = np.argsort(chunks, kind="stable")
    sorted_chunks = chunks[order]
    starts = np.flatnonzero(np.diff(sorted_chunks, prepend=-1))
    edges = [*starts.tolist(), count]
    return [
        (chunk, places := order[start:end], inside[places])
        for chunk, (start, end) in zip(sorted_chunks[starts].tolist(), pairwise(edges), strict=True)
        if wanted(chunk)
    ]
