"""Trials on the model's scale: costs by setting and context, of which less is better.

A cost is the logarithm of the judged metric where all of its values are positive, so that differences of costs are
ratios. Of other metrics, and of rewards, it is the value itself. The sign makes less better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tunegym.tuning.inference.coordinates import ContextIndex, Coordinates, Floats, Indices
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.scenario import Experiment, Judged, Objective, OverContexts, aims
from tunegym.tuning.model.space import EnvParams, Space
from tunegym.tuning.model.trial import CONFIRM, FAILURES, Infeasible, Pruned, Trial
from tunegym.tuning.model.values import Action, exact_key

EXACT = 1e-9
"""Costs of one setting that differ by less are the same: the metric is deterministic."""


@dataclass(frozen=True)
class Question:
    """What an experiment asks: which setting of ``space`` is best, under which contexts, judged by what."""

    space: Space
    params: EnvParams
    judged: Judged
    objectives: tuple[Objective, ...] = ()
    baseline: Action | None = None
    over_contexts: OverContexts = "mean"

    @classmethod
    def of(cls, source: Experiment | Head) -> Question:
        """Return what an experiment asks, or asked: that of a journal's head."""
        return cls(
            space=source.space,
            params=source.env_params if isinstance(source, Experiment) else source.params,
            judged=source.judged,
            objectives=source.objectives,
            baseline=source.baseline,
            over_contexts=source.over_contexts,
        )

    @cached_property
    def coordinates(self) -> Coordinates:
        """The points of settings."""
        return Coordinates(self.space)

    @cached_property
    def contexts(self) -> ContextIndex:
        """The represented contexts."""
        return ContextIndex(self.params)

    @cached_property
    def limits(self) -> tuple[Objective, ...]:
        """The objectives whose limits settings must keep."""
        return tuple(objective for objective in self.objectives if objective.limit is not None)

    def parts(self, gains: Floats, contexts: Sequence[int]) -> Floats:
        """Return how much each context counts over some: as often as it is drawn, or only the worst gains."""
        weights = self.contexts.weights[list(contexts)]
        weights = weights / weights.sum()
        if self.over_contexts == "mean":
            return weights
        left_out = self.over_contexts["cvar"] if isinstance(self.over_contexts, Mapping) else 1.0
        share = max(1.0 - left_out, 1e-9)
        parts = np.zeros(len(weights))
        for context in np.argsort(gains, kind="stable"):
            parts[context] = min(weights[context], share - parts.sum())
        return parts / parts.sum()

    @cached_property
    def aims(self) -> tuple[Objective, ...]:
        """The objectives to improve."""
        return aims(self.objectives)


@dataclass(frozen=True)
class CostScale:
    """What a metric, or the reward, costs: less is better. ``is_ratio``: differences of costs are ratios of values."""

    judged: Judged
    is_ratio: bool

    @classmethod
    def of(cls, judged: Judged, trials: Iterable[Trial]) -> CostScale:
        """Return the scale that fits all values: that of ratios needs positive ones."""
        linear = cls(judged, is_ratio=False)
        if judged.metric is None or judged.scale == "difference":
            return linear
        lowest = min((linear.raw(trial) for trial in trials), default=0.0)
        return cls(judged, is_ratio=lowest > 0)

    @property
    def sign(self) -> float:
        """1 if less is better, -1 if more is."""
        return 1.0 if self.judged.goal == "min" else -1.0

    def raw(self, trial: Trial) -> float:
        """Return the value of a measured trial."""
        return trial.reward if self.judged.metric is None else trial.metrics[self.judged.metric]

    def cost(self, value: float) -> float:
        """Return the cost of a value."""
        return self.sign * (math.log(value) if self.is_ratio else value)

    def value(self, cost: float) -> float:
        """Return the value that a cost stands for."""
        signed = self.sign * cost
        return math.exp(min(signed, 700.0)) if self.is_ratio else signed


@dataclass(frozen=True, slots=True)
class Row:
    """One trial: indices of its setting and context, and its values; None where it failed."""

    trial: Trial
    setting: int
    context: int
    worked: bool


class Observations:
    """The trials of an experiment, in the order in which they were added. Grows by ``add``.

    A cached trial adds no information, and a cancelled one has none. A pruned trial is one that looked bad.

    Attributes:
        actions: every setting that a trial had, and the baseline, in the order of first use.
        rows: the trials that count.
    """

    def __init__(self, question: Question, trials: Iterable[Trial] = ()) -> None:
        self.question = question
        self.actions: list[Action] = []
        self.rows: list[Row] = []
        self.pruned: list[tuple[int, int]] = []
        self._index: dict[bytes, int] = {}
        self.baseline = None if question.baseline is None else self.setting(question.baseline)
        for trial in trials:
            self.add(trial)

    def setting(self, action: Action) -> int:
        """Return the index of a setting; a new one is added."""
        key = exact_key(action)
        if key not in self._index:
            self._index[key] = len(self.actions)
            self.actions.append(action)
        return self._index[key]

    def find(self, action: Action) -> int | None:
        """Return the index of a setting that is known."""
        return self._index.get(exact_key(action))

    def add(self, trial: Trial) -> None:
        """Take in a closed trial."""
        if not trial.action or trial.cached_from is not None:
            return
        if isinstance(trial.outcome, Pruned):
            self.pruned.append((self.setting(trial.action), self.question.contexts.index(trial.context)))
        elif trial.measured or trial.status in FAILURES or isinstance(trial.outcome, Infeasible):
            setting = self.setting(trial.action)
            context = self.question.contexts.index(trial.context)
            self.rows.append(Row(trial, setting, context, trial.measured))

    # the scale ----------------------------------------------------------------------------------------

    def scale_of(self, judged: Judged) -> CostScale:
        """Return the cost scale of what settings are judged by, or of another metric."""
        return CostScale.of(judged, (row.trial for row in self.rows if row.worked))

    @property
    def scale(self) -> CostScale:
        """The cost scale of what settings are judged by."""
        return self.scale_of(self.question.judged)

    def costs(self, rows: Sequence[Row], scale: CostScale) -> Floats:
        """Return the costs of measured trials; of draws of a range, at the point that represents them."""
        costs = np.array([scale.cost(scale.raw(row.trial)) for row in rows])
        contexts = self.question.contexts
        if contexts.exact or not rows:
            return costs
        drawn, nearest = contexts.offsets([row.trial.context for row in rows])
        return costs - (drawn - nearest) @ _slopes(drawn, costs)

    # views --------------------------------------------------------------------------------------------

    def measured(self) -> list[Row]:
        """Return the trials that were measured."""
        return [row for row in self.rows if row.worked]

    def failed(self, setting: int, context: int | None = None) -> int:
        """Return how many trials of a setting failed."""
        failures = [row for row in self.rows if not row.worked and row.setting == setting]
        return sum(context is None or row.context == context for row in failures)

    def cells(self, rows: Sequence[Row], scale: CostScale | None = None) -> Cells:
        """Return measured trials by setting and context, on a cost scale."""
        return Cells.of(rows, self.costs(rows, scale or self.scale))

    def repeats(self, *, rounds: bool = False) -> Spread:
        """Return the spread of the search's repeats around their means, or also that of the rounds."""
        cells = self.cells([row for row in self.measured() if rounds or row.trial.phase != CONFIRM])
        return Spread(float(cells.squares.sum()), float((cells.count - 1).sum()))

    def violation(self, row: Row) -> float:
        """Return by how much a measured trial exceeds the limits."""
        metrics = row.trial.metrics
        return math.fsum(objective.violation(metrics) for objective in self.question.limits)


def _slopes(contexts: Floats, costs: Floats) -> Floats:
    """Return the least-squares slopes of costs along the ranges of contexts, with a light ridge."""
    centred = contexts - contexts.mean(axis=0)
    ridge = 1e-3 * len(costs) * np.eye(contexts.shape[1])
    return np.linalg.solve(centred.T @ centred + ridge, centred.T @ (costs - np.median(costs)))


def advantages(question: Question, usual: Iterable[Trial], trials: Iterable[Trial]) -> dict[int, float]:
    """Return by number how far measured rewards are above the median of the ``usual`` trials in their context."""
    reward = CostScale(Judged(), is_ratio=False)
    peers = Observations(question, usual)
    costs = peers.costs(peers.measured(), reward)
    contexts = np.array([row.context for row in peers.measured()], dtype=int)
    typical = {context: float(np.median(costs[contexts == context])) for context in np.unique(contexts)}
    own = [trial for trial in trials if trial.measured]
    places = [question.contexts.index(trial.context) for trial in own]
    return {
        trial.number: typical.get(context, -trial.reward) + trial.reward
        for trial, context in zip(own, places, strict=True)
    }


@dataclass(frozen=True)
class Spread:
    """A sum of squares and its degrees of freedom."""

    squares: float
    degrees: float

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.squares + other.squares, self.degrees + other.degrees)

    @property
    def variance(self) -> float:
        """The variance; infinite if nothing is known."""
        return self.squares / self.degrees if self.degrees else math.inf

    @property
    def is_exact(self) -> bool:
        """Whether repeats are known to give the same value."""
        return self.degrees > 0 and self.variance <= EXACT**2


@dataclass(frozen=True)
class Cells:
    """Samples by setting and context: their mean, how many there are, their squares around the mean."""

    setting: Indices
    context: Indices
    mean: Floats
    count: Floats
    squares: Floats

    @classmethod
    def of(cls, rows: Sequence[Row], values: Floats) -> Cells:
        """Return the cells of the values of trials."""
        setting = np.array([row.setting for row in rows], dtype=np.intp)
        context = np.array([row.context for row in rows], dtype=np.intp)
        most = context.max(initial=0) + 1
        cells, place = np.unique(setting * most + context, return_inverse=True)
        count = np.bincount(place).astype(float)
        mean = np.bincount(place, values) / count
        squares = np.bincount(place, (values - mean[place]) ** 2).astype(float)
        return cls(cells // most, cells % most, mean, count, squares)

    def __len__(self) -> int:
        return len(self.mean)
