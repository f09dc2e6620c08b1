"""Median pruning: a trial must keep up with the better half of those before it."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tunegym.tuning.pruners.standing import Course, Standing

MOST_COLUMNS = 256
"""How many steps are remembered with what trials had there. At others a trial's standing is followed."""


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
        self._courses: list[Course] = []
        self._firsts = array("q")
        self._columns: dict[int, array[float]] = {}
        self._standings: dict[int, Standing] = {}

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        """See ``Pruner.judge``."""
        step, reward = curve[-1]
        best = self._best[number] = max(self._best.get(number, reward), reward)
        if step <= self._config.warmup_steps or len(self._courses) < self._config.startup_trials:
            return None
        column = self._columns.get(step)
        if column is None:
            if len(self._columns) >= MOST_COLUMNS and self._keeps_up(number, step, best):
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
        self._standings.pop(number, None)
        if status != "measured" or not curve:
            return
        course = Course(curve)
        self._courses.append(course)
        insort(self._firsts, course.first)
        for step, column in self._columns.items():
            reward = course.until(step)
            if reward is not None:
                insort(column, reward)

    def _keeps_up(self, number: int, step: int, best: float) -> bool:
        """Whether so few are ahead that the median can't be."""
        standing = self._standings.get(number)
        if standing is None:
            standing = self._standings[number] = Standing(self._courses)
        trials = bisect_right(self._firsts, step)
        return standing.ahead(step, best) <= (trials - 1) // 2

    def _column(self, step: int) -> array[float]:
        """What measured trials had at a step, in order; remembered if there is room."""
        had = (course.until(step) for course in self._courses)
        column = array("d", sorted(reward for reward in had if reward is not None))
        if len(self._columns) < MOST_COLUMNS:
            self._columns[step] = column
        return column
