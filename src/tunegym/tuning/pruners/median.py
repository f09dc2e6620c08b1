"""Median pruning: a trial must keep up with the better half of those before it."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

MOST_COLUMNS = 4096
"""How many steps are remembered with what trials had there; beyond it they are worked out again."""


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
        """Refuse what can't be meant."""
        if self.startup_trials < 1:
            raise ValueError("startup_trials must be at least 1")
        if self.warmup_steps < 0:
            raise ValueError("warmup_steps must be at least 0")


class MedianPruner:
    """Ends a trial whose best so far is below the median of what measured trials had at the same step.

    What a trial had at a step is its best until then. One whose first report came later has nothing there.
    """

    Config: ClassVar[type[MedianConfig]] = MedianConfig

    def __init__(self, config: MedianConfig, seed: int = 0) -> None:
        del seed  # nothing is drawn
        self._config = config
        self._best: dict[int, float] = {}
        self._finished: list[tuple[list[int], list[float]]] = []
        self._columns: dict[int, list[float]] = {}

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        """See ``Pruner.judge``."""
        step, reward = curve[-1]
        best = self._best[number] = max(self._best.get(number, reward), reward)
        if step <= self._config.warmup_steps or len(self._finished) < self._config.startup_trials:
            return None
        column = self._column(step)
        if not column:
            return None
        middle = len(column) // 2
        median = column[middle] if len(column) % 2 else column[middle - 1] / 2 + column[middle] / 2
        if best >= median:
            return None
        return f"{best:.6g} is below the median {median:.6g} of {len(column)} trials"

    def closed(self, number: int, curve: Sequence[tuple[int, float]], status: str) -> None:
        """See ``Pruner.closed``."""
        self._best.pop(number, None)
        if status != "measured" or not curve:
            return
        ordered = sorted(curve)
        trial = [step for step, _ in ordered], list(accumulate((reward for _, reward in ordered), max))
        self._finished.append(trial)
        for step, column in self._columns.items():
            reward = _until(trial, step)
            if reward is not None:
                insort(column, reward)

    def _column(self, step: int) -> list[float]:
        """What measured trials had at a step, in order."""
        column = self._columns.get(step)
        if column is None:
            if len(self._columns) >= MOST_COLUMNS:
                self._columns.clear()
            had = (_until(trial, step) for trial in self._finished)
            column = self._columns[step] = sorted(reward for reward in had if reward is not None)
        return column


def _until(trial: tuple[list[int], list[float]], step: int) -> float | None:
    """A trial's best up to a step; None if it had reported nothing by then."""
    steps, bests = trial
    index = bisect_right(steps, step)
    return bests[index - 1] if index else None
