"""Ids that are numbered: what they have in common, their numbers, many at once, and their rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
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


_ENDLESS = 1 << 62
_POWERS = 10 ** np.arange(_MOST_DIGITS - 1, -1, -1, dtype=np.int64)


@dataclass
class Numbered:
    """Rows by number, in chunks; a chunk whose ids are all retired is remembered as such and costs nothing."""

    place: int
    form: Form
    chunks: dict[int, np.ndarray] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    used_up: list[list[int]] = field(default_factory=list)
    """First and last of runs of chunks, in order."""

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The row of each number, ``UNKNOWN`` or ``RETIRED``."""
        found = np.full(len(numbers), UNKNOWN, dtype=np.int32)
        for chunk, places, inside in _by_chunk(numbers):
            rows = self.chunks.get(chunk)
            if rows is not None:
                found[places] = rows[inside]
            elif self._is_used_up(chunk):
                found[places] = RETIRED
        return found

    def put(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Give new numbers their rows."""
        for chunk, places, inside in _by_chunk(numbers):
            kept = self.chunks.get(chunk)
            if kept is None:
                kept = self.chunks[chunk] = np.full(CHUNK, UNKNOWN, dtype=np.int32)
                self.left[chunk] = CHUNK
            kept[inside] = rows[places]

    def retire(self, numbers: np.ndarray) -> None:
        """These are used up."""
        for chunk, places, inside in _by_chunk(numbers):
            self.chunks[chunk][inside] = RETIRED
            self.left[chunk] -= len(numbers[places])
            if self.left[chunk] == 0:
                del self.chunks[chunk], self.left[chunk]
                self._use_up(chunk)

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


def _by_chunk(numbers: np.ndarray) -> list[tuple[int, slice | np.ndarray, slice | np.ndarray]]:
    """Chunks, with the places of the numbers that are in them, and where these are there."""
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
        ]
    chunks, inside = numbers >> _CHUNK_BITS, numbers & (CHUNK - 1)
    if (chunks == chunks[0]).all():
        return [(int(chunks[0]), slice(None), inside)]
    return [(int(one), places := np.flatnonzero(chunks == one), inside[places]) for one in np.unique(chunks)]
