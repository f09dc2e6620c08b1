"""Rewards on a scale for learning, whatever the metric's unit. The record keeps what was measured."""

from __future__ import annotations

from array import array

import numpy as np

from tunegym.tuning.model.values import Context, exact_key

LEAST_IN_CONTEXT = 8
"""A context with fewer measurements is scaled by the measurements of all contexts."""
LINEAR = 3.0
"""Up to about this many spreads from the median a reward counts in full; beyond, its logarithm does."""
LOWEST = -5.0
"""The lowest scaled reward of a measured trial; a failed one is at most 1 below."""
FRESH = 50
"""A scale is computed again when its number of rewards has grown by one in this many, at least by one."""
WIDEST = 4.0
"""A distribution counts as at most this many times as wide as its upper half, or its middle if that is equal."""
TINY = 1e-9
"""A smaller relative difference is rounding."""
LARGEST = 1e300
"""Larger rewards, and distances in spreads, count as this one: their differences are still numbers."""
_REACH, _MIDDLE = 2.5631, 1.349
"""Standard deviations of a normal distribution between its 10 % and 90 % quantiles; 25 % and 75 %."""
_MEASURED, _PRUNED, _FAILED = range(3)


class _Scale:
    """Centre and spread of the rewards that share a scale."""

    def __init__(self) -> None:
        self.trials = 0
        self.rewards: list[float] = []
        self.worst = np.inf
        self._measured = 0
        self._due = 1
        self._shape: tuple[float, float] | None = None

    def add(self, reward: float) -> None:
        self.rewards.append(reward)
        self.worst = min(self.worst, reward)
        count = len(self.rewards)
        if count >= self._due:
            self._due = count + max(count // FRESH, 1)
            self._shape, self._measured = None, count

    def shape(self) -> tuple[float, float]:
        """Centre and spread of the rewards up to the last due one."""
        if self._shape is None:
            self._shape = _centre_and_spread(self.rewards[: self._measured])
        return self._shape

    def furthest(self) -> float:
        """Distance of the worst reward from the centre, in spreads."""
        centre, spread = self.shape()
        return float(np.float64(self.worst - centre) / spread)

    @property
    def is_own(self) -> bool:
        return self.trials >= LEAST_IN_CONTEXT and len(self.rewards) > 1


def _centre_and_spread(rewards: list[float]) -> tuple[float, float]:
    """The median, and the standard deviation if the tails were those of a normal distribution.

    A setting that is a thousand times slower must not make all others equal, nor must a third of all settings.
    """
    low, lower, centre, upper, high = np.quantile(rewards, [0.1, 0.25, 0.5, 0.75, 0.9]).tolist()
    spread = (high - low) / _REACH
    if high - centre > TINY * max(abs(high), abs(centre)):
        spread = min(spread, WIDEST * 2.0 * (high - centre) / _REACH)
    elif upper - lower > TINY * max(abs(upper), abs(lower)):  # most are as good as the best
        spread = min(spread, WIDEST * (upper - lower) / _MIDDLE)
    if spread == 0:
        unit = float(np.abs(rewards).max()) or 1.0  # squares of large numbers overflow
        spread = unit * float(np.std(np.array(rewards) / unit))
    return centre, spread if spread > 0 else 1.0


class RewardScale:
    """Scales rewards within their context, because the best setting there doesn't depend on other contexts.

    A scaled reward is the distance from the context's median in units of the context's spread. A failed trial is one
    unit below the worst measured one, whatever its penalty on record: bad enough, and no reason to unlearn the rest. A
    pruned trial didn't fail, and is as bad as the worst.
    """

    def __init__(self) -> None:
        self._all = _Scale()
        self._scales = [self._all]
        self._contexts: dict[bytes, int] = {}
        # By trial: the number of its scale, its reward, and how it ended.
        self._numbers, self._rewards, self._ends = array("q"), array("d"), array("b")

    def __len__(self) -> int:
        return len(self._rewards)

    def add(
        self, context: Context, reward: float, *, measured: bool, pruned: bool = False, weighs: bool = True
    ) -> None:
        """Add a closed trial; one that doesn't weigh is scaled like the others but moves no scale."""
        number = 0
        if measured:
            reward = max(-LARGEST, min(reward, LARGEST))
            number = self._contexts.setdefault(exact_key(context), len(self._scales))
            if number == len(self._scales):
                self._scales.append(_Scale())
            self._scales[number].trials += 1
            if weighs:
                self._all.add(reward)
                self._scales[number].add(reward)
        self._numbers.append(number)
        self._rewards.append(reward if measured else np.nan)
        self._ends.append(_MEASURED if measured else _PRUNED if pruned else _FAILED)

    def scaled(self, last: int | None = None) -> np.ndarray:
        """The trials that were added, or the ``last`` of them, on the scale that all of them give."""
        first = 0 if last is None else max(len(self) - last, 0)
        rewards, ends = np.array(self._rewards[first:]), np.array(self._ends[first:])
        if not self._all.rewards:
            return np.where(ends == _FAILED, -1.0, 0.0)
        shapes = np.array([(one if one.is_own else self._all).shape() for one in self._scales])
        centres, spreads = shapes[np.array(self._numbers[first:])].T
        with np.errstate(over="ignore"):
            seen = _compressed((rewards - centres) / spreads)
            furthest = min(one.furthest() for one in self._scales if one.is_own or one is self._all)
        worst = min(float(_compressed(np.array(furthest))), 0.0)
        return np.where(ends == _MEASURED, seen, worst - (ends == _FAILED))


def _compressed(away: np.ndarray) -> np.ndarray:
    """A reward by its distance from the centre in spreads."""
    bounded = np.clip(away, -LARGEST, LARGEST)
    return np.maximum(LINEAR * np.arcsinh(bounded / LINEAR), LOWEST)
