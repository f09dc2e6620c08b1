"""Median pruning: a trial must keep up with the better half of those before it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class MedianConfig:
    """The settings of ``median``."""

    startup_trials: int = 5  # so many trials must have been measured before any is judged
    warmup_steps: int = 0  # a trial is judged at steps above this one only

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if self.startup_trials < 1:
            raise ValueError("startup_trials must be at least 1")
        if self.warmup_steps < 0:
            raise ValueError("warmup_steps must be at least 0")


class MedianPruner:
    """Ends a trial whose best reward so far is below the median of the measured trials' at the same step.

    A trial whose first report came later does not count at that step.
    """

    Config: ClassVar[type[MedianConfig]] = MedianConfig

    def __init__(self, config: MedianConfig, seed: int = 0) -> None:
        del seed  # nothing is drawn
        self._config = config
        self._best: dict[int, float] = {}
        """By running trial: long curves are thinned, and may lack it."""
        self._measured: list[tuple[list[int], list[float]]] = []
        """Of each measured trial its steps in order, and the best reward until each."""

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        """See ``Pruner.judge``."""
        step, reward = curve[-1]
        best = self._best[number] = max(self._best.get(number, reward), reward)
        if step <= self._config.warmup_steps or len(self._measured) < self._config.startup_trials:
            return None
        rewards = [past[at - 1] for steps, past in self._measured if (at := bisect_right(steps, step))]
        if not rewards or best >= (middle := median(rewards)):
            return None
        return f"{best:.6g} is below the median {middle:.6g} of {len(rewards)} trials"

    def closed(self, number: int, curve: Sequence[tuple[int, float]], status: str) -> None:
        """See ``Pruner.closed``."""
        self._best.pop(number, None)
        if status == "measured" and curve:
            steps, rewards = zip(*sorted(curve), strict=True)
            self._measured.append((list(steps), list(accumulate(rewards, max))))
