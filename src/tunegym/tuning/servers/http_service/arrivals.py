"""When requests come, and which keys they ask for: two streams of one seed, whatever becomes of the requests."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from random import Random


class Arrivals:
    """Poisson arrivals of keys whose popularity follows Zipf's law.

    Args:
        seed: of both streams.
        keys: how many keys there are.
        rate: requests per second.
        skew: how much more popular the first keys are; with 0 all are alike.
    """

    def __init__(self, seed: int, keys: int, rate: float, skew: float) -> None:
        self._times = Random(f"times {seed}")
        self._choices = Random(f"keys {seed}")
        self._keys = keys
        self.rate = rate
        self._skew: float | None = None
        self.turn(rate, skew)

    def turn(self, rate: float, skew: float) -> None:
        """Go on with these."""
        self.rate = rate
        if skew != self._skew:
            self._skew = skew
            self._edges = list(accumulate((at + 1) ** -skew for at in range(self._keys)))

    def gap(self) -> float:
        """Seconds from one request to the next."""
        return self._times.expovariate(self.rate)

    def key(self) -> str:
        """What the next one asks for."""
        return f"k{bisect_left(self._edges, self._choices.random() * self._edges[-1])}"
