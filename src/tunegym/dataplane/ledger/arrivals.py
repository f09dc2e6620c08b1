"""What is known by heart of samples that came together, so that a claim of them needs no look at any column."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tunegym.dataplane.ledger.spans import Span, size_of

_MOST, _MOST_SAMPLES = 64, 1 << 14
"""How many arrivals, and samples of them, are known: the newest. All others are looked up."""


class Arrival(NamedTuple):
    """New samples of one put, in rows that follow one another.

    Attributes:
        born: when they came.
        lengths: of each; None if none has one.
        tags: the same for all; None if there are none.
    """

    rows: slice
    born: float
    sample_ids: Sequence[str]
    lengths: Sequence[int] | None
    tags: Mapping[str, Any] | None

    def part(self, rows: slice) -> Arrival:
        """Of some of them."""
        some = slice(rows.start - self.rows.start, rows.stop - self.rows.start)
        lengths = None if self.lengths is None else self.lengths[some]
        return Arrival(rows, self.born, self.sample_ids[some], lengths, self.tags)


class Arrivals:
    """The newest arrivals of a partition. Whoever changes rows, or uses them anew, says so."""

    def __init__(self) -> None:
        self._known: deque[Arrival] = deque()
        self._samples = 0

    def add(self, arrival: Arrival) -> None:
        """New samples, in rows of which nothing is known any more."""
        count = size_of(arrival.rows)
        if not count or count > _MOST_SAMPLES:
            return
        while len(self._known) >= _MOST or self._samples + count > _MOST_SAMPLES:
            self._samples -= size_of(self._known.popleft().rows)
        self._known.append(arrival)
        self._samples += count

    def forget(self, rows: Span) -> None:
        """These rows are not as they came any more."""
        if not self._known or not size_of(rows):
            return
        first, end = (rows.start, rows.stop) if isinstance(rows, slice) else (int(rows.min()), int(rows.max()) + 1)
        kept = [one for one in self._known if one.rows.stop <= first or one.rows.start >= end]
        if len(kept) < len(self._known):
            self._known = deque(kept)
            self._samples = sum(size_of(one.rows) for one in kept)

    def of(self, rows: Span) -> Arrival | None:
        """What is known of these rows; None if they did not come together, or are not known any more."""
        if isinstance(rows, slice):
            for one in self._known:
                if one.rows.start <= rows.start and rows.stop <= one.rows.stop:
                    return one.part(rows)
        return None
