"""Where the bytes of a put are: how many cells of it are still wanted, and when it can go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST = 2**31 - 1


@dataclass(slots=True)
class Block:
    """What one put wrote.

    Attributes:
        number: names it in the ledger.
        location: where its columns are; only the storage knows what that means.
        nbytes: how much it takes.
        live: how many of its cells, a sample's field each, are still wanted.
    """

    number: int
    location: Mapping[str, Any]
    nbytes: int
    live: int


class Blocks:
    """All blocks of a partition. What nobody wants any more is handed out by ``take_freed``."""

    def __init__(self) -> None:
        self.known: dict[int, Block] = {}
        self.nbytes = 0
        self._last = 0
        self._freed: list[Mapping[str, Any]] = []

    def add(self, location: Mapping[str, Any], nbytes: int, cells: int) -> int:
        """Take in a put of so many cells; its number. Without any, nobody wants it."""
        if not cells:
            self._freed.append(location)
            return 0
        self._last = self._last % _MOST + 1
        while self._last in self.known:
            self._last = self._last % _MOST + 1
        self.known[self._last] = Block(self._last, location, nbytes, cells)
        self.nbytes += nbytes
        return self._last

    def forget(self, numbers: np.ndarray, cells: int = 1) -> None:
        """So many cells less of each of these blocks; 0 is none."""
        if not len(numbers) or not cells:
            return
        first = numbers[0]
        if first == numbers[-1] and (numbers == first).all():
            self._forget(int(first), len(numbers) * cells)
            return
        found, counts = np.unique(numbers, return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._forget(number, count * cells)

    def _forget(self, number: int, count: int) -> None:
        if not number:
            return
        block = self.known[number]
        block.live -= count
        if block.live == 0:
            del self.known[number]
            self.nbytes -= block.nbytes
            self._freed.append(block.location)

    def free_all(self) -> None:
        """The partition is gone."""
        self._freed += [block.location for block in self.known.values()]
        self.known.clear()
        self.nbytes = 0

    def take_freed(self) -> list[Mapping[str, Any]]:
        """The locations of what nobody wants any more, once."""
        freed, self._freed = self._freed, []
        return freed

    # snapshots ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All of it as plain data."""
        known = [[one.number, dict(one.location), one.nbytes, one.live] for one in self.known.values()]
        return {"last": self._last, "known": known, "freed": [dict(one) for one in self._freed]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state."""
        known: Sequence[Sequence[Any]] = state["known"]
        self.known = {number: Block(number, location, nbytes, live) for number, location, nbytes, live in known}
        self.nbytes = sum(one.nbytes for one in self.known.values())
        self._last = state["last"]
        self._freed = list(state["freed"])
