"""How many numbers are reserved ahead: as many as are used in a moment, so that a crash leaves few unused."""

from __future__ import annotations

from time import perf_counter

from tunegym.tuning.stores.live import LiveStore

AHEAD_S = 0.4
MOST = 100_000
SHARE = 100
"""No block is more than such a part of the budget: a crash must not use it up."""


class Reserving:
    """Reserves blocks of numbers in the store, as large as the pace of steps makes sense of.

    A slow system's numbers are reserved one by one, right before they are used; a quick one's in blocks of less than
    half a second.

    Args:
        store: where they are written down.
        limit: the last number that there may be; None if there is none.
    """

    def __init__(self, store: LiveStore, limit: int | None) -> None:
        self._store = store
        self._limit = limit
        self._most = MOST if limit is None else min(MOST, max(1, limit // SHARE))
        self._size = 0
        self._at = 0.0

    def upto(self, needed: int) -> int:
        """The last number that may be used now; ``needed`` at least."""
        if needed <= self._store.reserved:
            return self._store.reserved
        now = perf_counter()
        took = now - self._at
        fits = int(self._size * AHEAD_S / took) if took > 0 else MOST
        self._at = now
        self._size = max(1, min(fits, 2 * self._size + 1, self._most))
        last = max(needed, self._store.reserved + self._size)
        if self._limit is not None:
            last = max(needed, min(last, self._limit))
        self._store.reserve(last)
        return last
