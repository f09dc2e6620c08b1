"""Trial numbers: 1, 2, 3, ..., each used once."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush


class Numbers:
    """Hands out the lowest number that is neither used nor held.

    ``used`` are the numbers of earlier sessions; whatever is missing below the highest of them is free.
    """

    def __init__(self, used: Iterable[int] = ()) -> None:
        taken = set(used)
        self.highest = max(taken, default=0)
        self._frontier = self.highest
        self._free = [number for number in range(1, self.highest) if number not in taken]
        heapify(self._free)
        self._held: dict[int, int] = {}

    def hold(self, lane: int) -> int:
        """The lane's number; asking again keeps it."""
        number = self._held.get(lane)
        if number is None:
            if self._free:
                number = heappop(self._free)
            else:
                number = self._frontier = self._frontier + 1
            self._held[lane] = number
        return number

    def release(self, lane: int) -> None:
        """The lane's number, if it holds one, is free again."""
        number = self._held.pop(lane, None)
        if number is not None:
            heappush(self._free, number)

    def use(self, lane: int) -> int:
        """The lane's number is used from here on; the lane holds none."""
        number = self.hold(lane)
        del self._held[lane]
        if number > self.highest:
            self.highest = number
        return number

    def take_unused(self) -> list[int]:
        """Use up every number below the highest used one that nobody used, and return them in order."""
        free = {*self._free, *self._held.values()}
        unused = sorted(number for number in free if number < self.highest)
        self._free.clear()
        self._held.clear()
        self._frontier = self.highest
        return unused
