"""Rewards as a policy sees them. The record keeps what was measured; this is only for learning."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

import numpy as np

from tunegym.tuning.model.values import Context, exact_key

LEAST_IN_CONTEXT = 8
"""A context with fewer measurements is scaled by all of them."""
LINEAR = 3.0
"""Up to about so many spreads from the median a reward counts in full; beyond, its logarithm does."""
LOWEST = -5.0
"""No measured reward is seen below this, and none that failed below this minus one."""
FRESH = 50
"""A scale is computed anew when its rewards have become more by one in so many, at least by one."""
WIDEST = 4.0
"""So many times as wide as its upper half, or its middle where that is equal, a distribution is taken to be at most."""
TINY = 1e-9
"""What differs by less, as a share, is the same but for rounding."""
LARGEST = 1e300
"""Rewards beyond this are seen as this: their differences are still numbers. So are distances in spreads."""
_REACH, _MIDDLE = 2.5631, 1.349
"""How many standard deviations of a normal distribution lie between its 10 % and its 90 % quantile; 25 % and 75 %."""
_MEASURED, _PRUNED, _FAILED = range(3)
_EVERYTHING = 0


@dataclass(slots=True)
class _Few:
    """The measured trials of a context that has no scale of its own yet, and those of their rewards that weigh."""

    trials: array[int] = field(default_factory=lambda: array("q"))
    rewards: array[float] = field(default_factory=lambda: array("d"))


class _Scales:
    """The scales that there are, by number, each of the rewards that share it.

    What a scale is depends on the rewards that it was given, and on nothing that was asked in between.
    """

    def __init__(self) -> None:
        self._rewards: list[array[float]] = []
        self._due: list[int] = []
        self._centres, self._spreads, self._worst = array("d"), array("d"), array("d")

    def new(self) -> int:
        """The number of another one."""
        self._rewards.append(array("d"))
        self._due.append(1)
        self._centres.append(0.0)
        self._spreads.append(1.0)
        self._worst.append(math.inf)
        return len(self._rewards) - 1

    def add(self, number: int, reward: float) -> tuple[bool, bool]:
        """Take in a reward; returns whether the scale has moved, and whether its worst reward has."""
        rewards = self._rewards[number]
        rewards.append(reward)
        worse = reward < self._worst[number]
        if worse:
            self._worst[number] = reward
        count = len(rewards)
        if count < self._due[number]:
            return False, worse
        self._due[number] = count + max(count // FRESH, 1)
        before = self._centres[number], self._spreads[number]
        self._centres[number], self._spreads[number] = _centre_and_spread(rewards)
        return before != (self._centres[number], self._spreads[number]), worse

    def of(self, numbers: array[int]) -> tuple[np.ndarray, np.ndarray]:
        """The centres and the spreads of some scales."""
        chosen = np.array(numbers)
        return np.array(self._centres)[chosen], np.array(self._spreads)[chosen]

    def worst(self) -> float:
        """How many spreads the worst of all rewards is from its centre."""
        with np.errstate(over="ignore"):
            return float(((np.array(self._worst) - np.array(self._centres)) / np.array(self._spreads)).min())


def _centre_and_spread(rewards: array[float]) -> tuple[float, float]:
    """The median, and what a standard deviation would be if the tails were those of a normal distribution.

    Settings that are a thousand times slower must not make all others equal, be they one or a third of all.
    """
    low, lower, centre, upper, high = np.quantile(rewards, [0.1, 0.25, 0.5, 0.75, 0.9]).tolist()
    spread = (high - low) / _REACH
    if high - centre > TINY * max(abs(high), abs(centre)):
        spread = min(spread, WIDEST * 2.0 * (high - centre) / _REACH)
    elif upper - lower > TINY * max(abs(upper), abs(lower)):  # most are as good as the best
        spread = min(spread, WIDEST * (upper - lower) / _MIDDLE)
    if spread == 0:
        unit = float(np.abs(rewards).max()) or 1.0  # squares of large numbers are none
        spread = unit * float(np.std(np.array(rewards) / unit))
    return centre, spread if spread > 0 else 1.0


class RewardScale:
    """Brings rewards to a scale on which a network learns, whatever the metric's unit.

    Within its own context, because what is best there doesn't depend on how good things can be elsewhere: a reward is
    its distance from the context's median in units of the context's spread. Whatever has no measurement is one unit
    below the worst that was measured, whatever penalty is on record: bad enough, and no reason to unlearn the rest.
    What was pruned didn't fail, and is as bad as the worst.

    A trial costs about the same however many there were, and however many contexts: a scale is computed anew when its
    rewards have become more by a fiftieth, and a context that hardly ever comes up has none of its own.
    """

    def __init__(self) -> None:
        self._scales = _Scales()
        self._scales.new()
        self._few: dict[bytes, _Few] = {}
        self._own: dict[bytes, int] = {}
        # By trial: its scale, its reward, and how it ended.
        self._numbers, self._rewards, self._ends = array("q"), array("d"), array("b")
        self._unmeasured = False
        self._weighed = False
        self.version = 0
        """Another number whenever trials that were added before are seen otherwise."""

    def __len__(self) -> int:
        return len(self._rewards)

    def add(
        self, context: Context, reward: float, *, measured: bool, pruned: bool = False, weighs: bool = True
    ) -> None:
        """Take in a closed trial; one that doesn't weigh is scaled like the others, and moves no scale."""
        if not measured:
            self._unmeasured = True
            self._append(_EVERYTHING, math.nan, _PRUNED if pruned else _FAILED)
            return
        reward = max(-LARGEST, min(reward, LARGEST))
        key = exact_key(context)
        number = self._own.get(key)
        self._append(_EVERYTHING if number is None else number, reward, _MEASURED)
        if weighs:
            self._weigh(_EVERYTHING, reward)
        if number is None:
            few = self._few.setdefault(key, _Few())
            few.trials.append(len(self) - 1)
            if weighs:
                few.rewards.append(reward)
            if len(few.trials) >= LEAST_IN_CONTEXT and len(few.rewards) > 1:
                self._settle(key)
        elif weighs:
            self._weigh(number, reward)

    def scaled(self, last: int | None = None) -> np.ndarray:
        """The trials that were added, or the ``last`` of them, on the scale that all of them give."""
        first = 0 if last is None else max(len(self) - last, 0)
        rewards, ends = np.array(self._rewards[first:]), np.array(self._ends[first:])
        if not self._weighed:
            return np.where(ends == _FAILED, -1.0, 0.0)
        centres, spreads = self._scales.of(self._numbers[first:])
        with np.errstate(over="ignore"):
            seen = _seen((rewards - centres) / spreads)
        worst = min(float(_seen(self._scales.worst())), 0.0)
        return np.where(ends == _MEASURED, seen, worst - (ends == _FAILED))

    def _append(self, number: int, reward: float, end: int) -> None:
        self._numbers.append(number)
        self._rewards.append(reward)
        self._ends.append(end)

    def _weigh(self, number: int, reward: float) -> None:
        moved, worse = self._scales.add(number, reward)
        self._weighed = True
        self.version += moved or (worse and self._unmeasured)

    def _settle(self, key: bytes) -> None:
        """Give a context a scale of its own."""
        few = self._few.pop(key)
        number = self._own[key] = self._scales.new()
        for trial in few.trials:
            self._numbers[trial] = number
        for reward in few.rewards:
            self._scales.add(number, reward)
        self.version += 1


def _seen(away: np.ndarray | float) -> np.ndarray:
    """A reward by its distance from the centre in spreads."""
    bounded = np.clip(np.asarray(away), -LARGEST, LARGEST)
    return np.maximum(LINEAR * np.arcsinh(bounded / LINEAR), LOWEST)
