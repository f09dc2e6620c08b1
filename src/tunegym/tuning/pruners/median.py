"""Median pruning: a trial must keep up with the better half of those before it."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

MOST_STEPS = 1024
"""For how many steps the rewards of measured trials are kept in order; at others they are sorted when needed."""


@dataclass(frozen=True, kw_only=True)
class MedianConfig:
    """The settings of ``median``.

    Attributes:
        startup_trials: so many trials must have been measured before any is judged.
        warmup_steps: a trial is judged at steps above this one only.
    """

    startup_trials: int = 5
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if self.startup_trials < 1:
            raise ValueError("startup_trials must be at least 1")
        if self.warmup_steps < 0:
            raise ValueError("warmup_steps must be at least 0")


BestSoFar = tuple["array[int]", "array[float]"]
"""The steps of a measured trial in order, and the best reward until each."""


def _until(past: BestSoFar, step: int) -> float | None:
    """The best up to a step; None if nothing was reported by then."""
    index = bisect_right(past[0], step)
    return past[1][index - 1] if index else None


class MedianPruner:
    """Ends a trial whose best reward so far is below the median of the measured trials' at the same step.

    A trial whose first report came later does not count at that step.
    """

    Config: ClassVar[type[MedianConfig]] = MedianConfig

    def __init__(self, config: MedianConfig, seed: int = 0) -> None:
        del seed  # nothing is drawn
        self._config = config
        self._best: dict[int, float] = {}
        self._measured: list[BestSoFar] = []
        self._at_step: dict[int, array[float]] = {}

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        """See ``Pruner.judge``."""
        step, reward = curve[-1]
        best = self._best[number] = max(self._best.get(number, reward), reward)
        if step <= self._config.warmup_steps or len(self._measured) < self._config.startup_trials:
            return None
        rewards = self._rewards(step)
        if not rewards:
            return None
        middle = len(rewards) // 2
        median = rewards[middle] if len(rewards) % 2 else rewards[middle - 1] / 2 + rewards[middle] / 2
        if best >= median:
            return None
        return f"{best:.6g} is below the median {median:.6g} of {len(rewards)} trials"

    def closed(self, number: int, curve: Sequence[tuple[int, float]], status: str) -> None:
        """See ``Pruner.closed``."""
        self._best.pop(number, None)
        if status != "measured" or not curve:
            return
        ordered = sorted(curve)
        best = array("q", (step for step, _ in ordered)), array("d", accumulate((one for _, one in ordered), max))
        self._measured.append(best)
        for step, rewards in self._at_step.items():
            reward = _until(best, step)
            if reward is not None:
                insort(rewards, reward)

    def _rewards(self, step: int) -> array[float]:
        """The best rewards that measured trials had until a step, in order."""
        found = self._at_step.get(step)
        if found is None:
            had = (_until(one, step) for one in self._measured)
            found = array("d", sorted(reward for reward in had if reward is not None))
            if len(self._at_step) < MOST_STEPS:
                self._at_step[step] = found
        return found
