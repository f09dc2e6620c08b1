"""Closed trials as agents learn from them: which settings work where, and rewards on a scale for learning.

A scaled reward doesn't depend on the metric's unit. The record keeps the measured values.
"""

from __future__ import annotations

from array import array

import numpy as np

from tunegym.tuning.model.values import Action, Context, exact_key

OFTEN = 2
"""How many settings contexts must have met on average for each to have its own scale; else all have one."""
LINEAR = 3.0
"""Up to about this many spreads from the median a reward counts in full; beyond, its logarithm does."""
LOWEST = -5.0
"""The lowest scaled reward of a measured trial; a failed one is at most 1 below."""
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
        self.rewards: list[float] = []
        self.worst = np.inf
        self._shape: tuple[float, float] | None = None

    def add(self, reward: float) -> None:
        self.rewards.append(reward)
        self.worst = min(self.worst, reward)
        self._shape = None

    def shape(self) -> tuple[float, float]:
        """Centre and spread of the rewards."""
        if self._shape is None:
            self._shape = _centre_and_spread(self.rewards)
        return self._shape

    def furthest(self) -> float:
        """Distance of the worst reward from the centre, in spreads."""
        centre, spread = self.shape()
        return float(np.float64(self.worst - centre) / spread)


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


class TrialHistory:
    """Trials by context and setting.

    Rewards are scaled within their context, because the best setting there doesn't depend on other contexts: a scaled
    reward is the distance from the context's median in units of the context's spread. A failed trial is one unit below
    the worst measured one, whatever its penalty on record: bad enough, and no reason to unlearn the rest. A pruned
    trial didn't fail, and is as bad as the worst.

    Attributes:
        settings: all settings by ``exact_key``, in the order in which they came up.
    """

    def __init__(self) -> None:
        self.settings: dict[bytes, Action] = {}
        self._working: set[bytes] = set()
        self._counts: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._all = _Scale()
        self._scales = [self._all]
        self._contexts: dict[bytes, int] = {}
        # By trial: the number of its scale, its reward, and how it ended.
        self._numbers, self._rewards, self._ends = array("q"), array("d"), array("b")

    def __len__(self) -> int:
        """The number of trials."""
        return len(self._rewards)

    def add(self, context: Context, action: Action, reward: float, status: str) -> None:
        """Add a closed trial."""
        here, key = exact_key(context), exact_key(action)
        self.settings.setdefault(key, action)
        measured, failed = self._counts.get((here, key), (0, 0))
        number = 0
        if status == "measured":
            number = self._contexts.setdefault(here, len(self._scales))
            if number == len(self._scales):
                self._scales.append(_Scale())
            reward = max(-LARGEST, min(reward, LARGEST))
            if not measured:  # repeating the best one must not shrink the differences between the others
                self._all.add(reward)
                self._scales[number].add(reward)
            self._working.add(key)
            self._counts[here, key] = measured + 1, failed
        elif status != "pruned":
            self._counts[here, key] = measured, failed + 1
        self._numbers.append(number)
        self._rewards.append(reward if status == "measured" else np.nan)
        self._ends.append({"measured": _MEASURED, "pruned": _PRUNED}.get(status, _FAILED))

    def balance(self, context: Context, key: bytes) -> int | None:
        """Measurements minus failures of a setting in a context; None if it never worked anywhere."""
        measured, failed = self._counts.get((exact_key(context), key), (0, 0))
        return measured - failed if key in self._working else None

    def scaled(self, last: int | None = None) -> np.ndarray:
        """The trials that were added, or the ``last`` of them, on the scale that all of them give."""
        first = 0 if last is None else max(len(self) - last, 0)
        rewards, ends = np.array(self._rewards[first:]), np.array(self._ends[first:])
        if not self._all.rewards:
            return np.where(ends == _FAILED, -1.0, 0.0)
        recurs = len(self._all.rewards) >= OFTEN * len(self._contexts)
        scales = self._scales if recurs else [self._all] * len(self._scales)
        shapes = np.array([one.shape() for one in scales])
        centres, spreads = shapes[np.array(self._numbers[first:])].T
        with np.errstate(over="ignore"):
            seen = _compressed((rewards - centres) / spreads)
            furthest = min(one.furthest() for one in scales[1:])
        worst = min(float(_compressed(np.array(furthest))), 0.0)
        return np.where(ends == _MEASURED, seen, worst - (ends == _FAILED))

    def scaled_at(self, indices: np.ndarray) -> np.ndarray:
        """The scaled rewards of these trials, by the order in which they were added."""
        first = int(indices.min())
        return self.scaled(last=len(self) - first)[indices - first]


def _compressed(away: np.ndarray) -> np.ndarray:
    """A reward by its distance from the centre in spreads."""
    bounded = np.clip(away, -LARGEST, LARGEST)
    return np.maximum(LINEAR * np.arcsinh(bounded / LINEAR), LOWEST)
