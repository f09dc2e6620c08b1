"""Rewards as a policy sees them. The record keeps what was measured; this is only for learning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tunegym.tuning.model.values import Context, exact_key

LEAST_IN_CONTEXT = 8
"""A context with fewer measurements is scaled by all of them."""
LINEAR = 3.0
"""Up to about so many spreads from the median a reward counts in full; beyond, its logarithm does."""
LOWEST = -5.0
"""No measured reward is seen below this, and none that failed below this minus one."""
_REACH = 2.5631
"""How many standard deviations of a normal distribution lie between its 10 % and its 90 % quantile."""


@dataclass
class _Pool:
    """The measured rewards that share a scale."""

    rewards: list[float] = field(default_factory=list)
    worst: float = math.inf
    scale: tuple[float, float] | None = None

    def add(self, reward: float) -> None:
        self.rewards.append(reward)
        self.worst = min(self.worst, reward)
        self.scale = None

    @property
    def enough(self) -> bool:
        return len(self.rewards) >= LEAST_IN_CONTEXT

    def centre_and_spread(self) -> tuple[float, float]:
        if self.scale is None:
            # Quantiles, because one setting that is a thousand times slower must not make all others equal.
            low, centre, high = np.quantile(self.rewards, [0.1, 0.5, 0.9])
            spread = (high - low) / _REACH or float(np.std(self.rewards))
            self.scale = float(centre), float(spread) if spread > 0 else 1.0
        return self.scale


class RewardScale:
    """Brings rewards to a scale on which a network learns, whatever the metric's unit.

    Within its own context, because what is best there doesn't depend on how good things can be elsewhere: a reward is
    its distance from the context's median in units of the context's spread. Whatever has no measurement is one unit
    below the worst that was measured, whatever penalty is on record: bad enough, and no reason to unlearn the rest.
    """

    def __init__(self) -> None:
        self._everything = _Pool()
        self._contexts: dict[bytes, int] = {}
        self._pools: list[_Pool] = []
        self._places: list[int] = []
        self._rewards: list[float] = []

    def __len__(self) -> int:
        return len(self._rewards)

    def add(self, context: Context, reward: float, *, measured: bool, weighs: bool = True) -> None:
        """Take in a closed trial; one that doesn't weigh is scaled like the others, and moves no scale."""
        place = self._contexts.setdefault(exact_key(context), len(self._pools))
        if place == len(self._pools):
            self._pools.append(_Pool())
        self._places.append(place)
        self._rewards.append(reward if measured else np.nan)
        if measured and weighs:
            self._everything.add(reward)
            self._pools[place].add(reward)

    def scaled(self, last: int | None = None) -> np.ndarray:
        """The trials that were added, or the ``last`` of them, on the scale that all of them give."""
        first = 0 if last is None else max(len(self) - last, 0)
        rewards = np.array(self._rewards[first:], dtype=np.float64)
        if not self._everything.rewards:
            return np.where(np.isnan(rewards), -1.0, 0.0)
        everywhere = self._everything.centre_and_spread()
        scales = np.array([pool.centre_and_spread() if pool.enough else everywhere for pool in self._pools])
        centres, spreads = scales[np.array(self._places[first:], dtype=np.int64)].T
        away = (rewards - centres) / spreads / LINEAR
        seen = np.maximum(LINEAR * np.arcsinh(away), LOWEST)
        return np.where(np.isnan(rewards), self._failure(), seen)

    def _failure(self) -> float:
        """One below the worst of all contexts."""
        worst = 0.0
        for pool in [self._everything, *(pool for pool in self._pools if pool.enough)]:
            centre, spread = pool.centre_and_spread()
            worst = min(worst, LINEAR * math.asinh((pool.worst - centre) / spread / LINEAR))
        return max(worst, LOWEST) - 1.0
