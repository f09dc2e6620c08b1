"""How good each setting is, within a context and over all of them, and which ones win: what ``best.toml`` says.

Where the environment varies, a lucky context must not win: settings are ranked by their advantage over what is typical
*in the same context*, shrunk towards zero when they were measured only a few times. In one context, what a setting does
in the others counts too, with less weight. Over all, each context counts as often as it is drawn, and settings that
were measured in every context come first.

Only measurements win, and settings that keep every limit come before those that don't. With several objectives
there is a set of winners, none of which is better than another in every respect: the Pareto set.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from tunegym.tuning.answers.contexts import OverContexts, distance
from tunegym.tuning.model.scenario import Objective, aims, violation
from tunegym.tuning.model.space import Knob
from tunegym.tuning.model.trial import CONFIRM, Cancelled, Measured, Trial
from tunegym.tuning.model.values import Context, Metrics, Scalar, exact_key

SHRINK = 1.0
OWN, ELSEWHERE, TYPICAL = 4.0, 0.5, 2.0
"""Weights in one context: each of a setting's measurements there, its mean in other contexts, and what is typical."""
REACH = 0.15
"""Length scale of the kernel over a range of contexts, as a share of the range."""
LEAST_NEAR = 0.25
"""A setting is ranked in a context if its measurements there have at least this weight; a near one counts in part."""
LARGEST = 1e290
OFTEN = 2
"""How often contexts, or a parameter's values, must come on average for each to have its own mean."""
MOST_BINS = 8
"""Into how many bins a parameter's values are put when they come less often."""
_NO_CONTEXT = exact_key({})


Cells = Mapping[bytes, Mapping[bytes, Sequence[Trial]]]
"""Trials by the exact key of their action, then of their context."""


def measurements_of(trials: Iterable[Trial]) -> list[Trial]:
    """The trials with their own measurement. A cached trial adds no information."""
    return [trial for trial in trials if trial.measured and trial.cached_from is None]


class Score(NamedTuple):
    """How an action did in one respect: the score that ranks it, and the plain mean behind it."""

    score: float
    mean: float


class Ranking:
    """Settings compared in one respect: by the reward, or by one metric.

    A setting is compared with what is *typical* in its context: the mean of the middle half of all values there, or
    the baseline. Where contexts hardly come again (a range, or many parameters) that would compare each trial with
    itself; there every parameter shifts the overall mean by its own effect. Parameters are drawn independently, so
    their effects may be added. ``contexts`` gives the context of each exact key, ``value`` the number that counts.

    Attributes:
        recurs: whether contexts come often enough for each to have its own typical value.
    """

    def __init__(
        self,
        cells: Cells,
        contexts: Mapping[bytes, Context],
        value: Callable[[Trial], float],
        over: OverContexts | None = None,
    ) -> None:
        self._contexts = contexts
        self._over = over or OverContexts()
        self._drawn: Counter[bytes] = Counter()
        self._values: dict[bytes, dict[bytes, list[float]]] = {}
        found: dict[bytes, list[float]] = {}
        for action, row in cells.items():
            for context, trials in row.items():
                self._drawn[context] += len(trials)
                some = [min(max(value(trial), -LARGEST), LARGEST) for trial in measurements_of(trials)]
                if some:
                    self._values.setdefault(action, {})[context] = some
                    found.setdefault(context, []).extend(some)
        self._scales = {context: _Scale(some) for context, some in found.items()}
        self._varies = any(context != _NO_CONTEXT for context in found)
        count = sum(len(some) for some in found.values())
        self.recurs = count >= OFTEN * len(found) or not self._varies
        self._overall = math.fsum(one for some in found.values() for one in some) / max(count, 1)
        self._effects: list[Callable[[Context], float]] = []
        if not self.recurs:
            runs = [(contexts[context], some) for context, some in found.items()]
            self._effects = [self._effect(name, runs) for name in runs[0][0]]

    def is_complete(self, action: bytes) -> bool:
        """Whether an action was measured in every context that counts."""
        return self._values[action].keys() >= (self._over.weights.keys() or self._scales.keys())

    def at(self, wanted: Context, domains: Mapping[str, Knob]) -> dict[bytes, float]:
        """The scores of settings that were measured in a context or near it, informed by the other contexts.

        ``wanted`` may be part of a context: then all contexts with these values count.
        """
        away = distance(wanted, domains)
        apart = {context: away(self._contexts[context]) for context in self._scales}
        near = {context: math.exp(-0.5 * (one / REACH) ** 2) for context, one in apart.items()}
        found: dict[bytes, float] = {}
        for action, met in self._values.items():
            if math.fsum(near[context] * len(some) for context, some in met.items()) >= LEAST_NEAR:
                found[action] = self._informed(action, near)
        return found

    def _informed(self, action: bytes, near: Mapping[bytes, float]) -> float:
        """The mean of an action's standardised values, those elsewhere counting for less, shrunk to what is typical."""
        own = weight = 0.0
        elsewhere: list[float] = []
        for context, some in self._values[action].items():
            here = near.get(context, 0.0)
            mean = fmean(self._standard(context, some))
            own, weight = own + here * len(some) * mean, weight + here * len(some)
            if here < LEAST_NEAR:
                elsewhere.append(mean)
        total = OWN * own + (ELSEWHERE * fmean(elsewhere) if elsewhere else 0.0)
        return total / (OWN * weight + (ELSEWHERE if elsewhere else 0.0) + TYPICAL)

    def _standard(self, context: bytes, some: Sequence[float]) -> list[float]:
        if self.recurs:
            return self._scales[context].standard(some)
        typical = self._typical(context)
        return [(one - typical) / self._residual for one in some]

    @cached_property
    def _residual(self) -> float:
        """The spread of what the contexts' effects don't explain."""
        away = [
            abs(one - self._typical(context))
            for met in self._values.values()
            for context, some in met.items()
            for one in some
        ]
        return median(away) or 1.0

    def over_all(self, action: bytes) -> Score:
        """How a measured action did over all contexts.

        Where contexts come again, each counts as often as it is drawn, and one that the action never met counts as
        typical. Where they don't, and where there is only one, all measurements count alike.
        """
        met = self._values[action]
        if self.recurs:
            total = self._drawn.total()  # as recorded, however trials ended, where shares aren't declared
            shares = self._over.weights or {context: self._drawn[context] / total for context in self._scales}
            advantages = [self._shrunk(action, context) for context in shares]
            parts = self._over.parts(list(shares.values()), advantages)
            score = math.fsum(map(operator.mul, parts, advantages))
            each = [(shares.get(context, 0.0), fmean(found)) for context, found in met.items()]
            known = math.fsum(share for share, _ in each)
            mean = sum(share * one for share, one in each) / known if known else fmean([one for _, one in each])
        else:
            values = [value for found in met.values() for value in found]
            score = sum(self._advantage(context, found) for context, found in met.items()) / (len(values) + SHRINK)
            mean = fmean(values)
        return Score(score if self._varies else mean, mean)

    def _shrunk(self, action: bytes, context: bytes) -> float:
        found = self._values[action].get(context, ())
        return self._advantage(context, found) / (len(found) + SHRINK) if found else 0.0

    def _advantage(self, context: bytes, found: Sequence[float]) -> float:
        return math.fsum(found) - len(found) * self._typical(context)

    def _typical(self, context: bytes) -> float:
        if not self.recurs:
            return self._overall + math.fsum(effect(self._contexts[context]) for effect in self._effects)
        baseline = {} if self._over.baseline is None else self._values.get(exact_key(self._over.baseline), {})
        return fmean(baseline[context]) if context in baseline else self._scales[context].centre

    def _effect(self, name: str, runs: Sequence[tuple[Context, Sequence[float]]]) -> Callable[[Context], float]:
        bin_of = _bins([context[name] for context, some in runs for _ in some])
        found: dict[Hashable, list[float]] = {}
        for context, some in runs:
            found.setdefault(bin_of(context[name]), []).extend(some)
        means = {key: fmean(some) for key, some in found.items()}
        return lambda context: means[bin_of(context[name])] - self._overall


class _Scale:
    """What is typical in a context, and how far values are from it.

    ``centre`` is the mean of the middle half: one setting that is a thousand times slower doesn't move it. Standardised
    values are distances from the median over the median distance; of logarithms, if all values have one sign.
    """

    def __init__(self, values: Sequence[float]) -> None:
        cut = len(values) // 4
        self.centre = fmean(sorted(values)[cut : len(values) - cut])
        self._logs = min(values) > 0 or max(values) < 0
        shown = [self._shown(one) for one in values]
        self._middle = median(shown)
        away = [abs(one - self._middle) for one in shown]
        self._spread = median(away) or max(away) or 1.0

    def standard(self, values: Iterable[float]) -> list[float]:
        return [(self._shown(one) - self._middle) / self._spread for one in values]

    def _shown(self, value: float) -> float:
        return math.copysign(1.0, value) * math.log(abs(value)) if self._logs else value


def _bins(values: Sequence[Scalar]) -> Callable[[Scalar], Hashable]:
    """Which bin a value is in: its own if values come often, else one of a few equally full ones."""
    if len(values) >= OFTEN * len({(type(value), value) for value in values}):
        return lambda value: (type(value), value)
    numbers = sorted(value for value in values if isinstance(value, int | float))
    if len(numbers) < len(values):  # names have no order: one bin for all
        return lambda _: None
    count = min(MOST_BINS, max(1, len(numbers) // (2 * OFTEN)))
    return lambda value: bisect_left(numbers, value) * count // len(numbers)


class Measurements:
    """Trials by action and context, and how good each setting is among them.

    Args:
        trials: in the order of closing. Those of the confirmation don't count: candidates must not choose themselves.
        objectives: which metrics count, and their limits.
        over: how contexts count together.

    Attributes:
        cells: by the exact key of the action, then of the context.
        baseline: the exact key of the setting in use today; None without one.
        values: the action or context of an exact key, in the order in which it was recorded.
    """

    def __init__(
        self, trials: Iterable[Trial], objectives: Sequence[Objective] = (), over: OverContexts | None = None
    ) -> None:
        self.objectives = tuple(objectives)
        self._over = over
        self.baseline = exact_key(over.baseline) if over is not None and over.baseline is not None else None
        self.cells: dict[bytes, dict[bytes, list[Trial]]] = {}
        self.values: dict[bytes, Mapping[str, Scalar]] = {}
        for trial in trials:
            if trial.phase == CONFIRM:
                continue
            action, context = exact_key(trial.action), exact_key(trial.context)
            self.values.setdefault(action, trial.action)
            self.values.setdefault(context, trial.context)
            self.cells.setdefault(action, {}).setdefault(context, []).append(trial)

    @cached_property
    def reward(self) -> Ranking:
        """Settings by reward."""
        return Ranking(self.cells, self.values, lambda trial: trial.reward, self._over)

    @cached_property
    def metrics(self) -> dict[str, Ranking]:
        """Settings by each objective's metric. One that a measurement lacks counts as 0."""
        names = [objective.metric for objective in self.objectives]
        values = {name: lambda trial, name=name: trial.metrics.get(name, 0.0) for name in names}
        return {name: Ranking(self.cells, self.values, value, self._over) for name, value in values.items()}

    def measured(self, action: bytes, context: bytes | None = None) -> list[Trial]:
        """The trials that measured an action, over all contexts or in one."""
        return [trial for trials in self._cells(action, context).values() for trial in measurements_of(trials)]

    @cached_property
    def actions(self) -> list[bytes]:
        """The measured actions."""
        return [action for action in self.cells if self.measured(action)]

    def violation(self, action: bytes, context: bytes | None = None) -> float:
        """By how much a measured action exceeds the limits."""
        means = {name: _mean_of(ranking, action, context) for name, ranking in self.metrics.items()}
        return violation(self.objectives, means)

    def order(self, action: bytes) -> tuple[float, float, int]:
        """The rank of a measured action; the largest is the best: limits first, then the score, then the earliest."""
        first = min(trial.number for trial in self.measured(action))
        return -self.violation(action), self.reward.over_all(action).score, -first

    def failed(self, action: bytes, context: bytes | None = None) -> int:
        """How many trials of an action ran to an end without a measurement, over all contexts or in one."""
        ends = (trial.status for some in self._cells(action, context).values() for trial in some)
        return sum(end not in (Measured.status, Cancelled.status) for end in ends)

    def mean(self, action: bytes, context: bytes | None = None) -> float:
        """The mean reward of a measured action; over all, contexts weigh as often as they are drawn."""
        found = _mean_of(self.reward, action, context)
        return found if abs(found) < LARGEST / 2 else self.measured(action, context)[-1].reward

    def _cells(self, action: bytes, context: bytes | None) -> Mapping[bytes, list[Trial]]:
        cells = self.cells.get(action, {})
        return cells if context is None else {context: cells[context]} if context in cells else {}


def _mean_of(ranking: Ranking, action: bytes, context: bytes | None) -> float:
    return ranking.over_all(action).mean if context is None else fmean(ranking._values[action][context])


def samples_of(trial: Trial) -> tuple[Metrics, ...]:
    """A trial's samples; none without a measurement."""
    return trial.outcome.samples if isinstance(trial.outcome, Measured) else ()


def front(vectors: Mapping[bytes, Sequence[float]]) -> list[bytes]:
    """The keys whose vectors no other one dominates (more is better); of equal vectors, all."""
    # Sorted downwards, nothing that comes later can dominate an earlier vector.
    ranked = sorted(vectors, key=lambda key: tuple(vectors[key]), reverse=True)
    points = np.array([vectors[key] for key in ranked], dtype=float)
    kept = np.empty_like(points)
    found: list[bytes] = []
    for key, point in zip(ranked, points, strict=True):
        others = kept[: len(found)]
        if not ((others >= point).all(axis=1) & (others > point).any(axis=1)).any():
            kept[len(found)] = point
            found.append(key)
    return found


# the winners ----------------------------------------------------------------------------------------------


def winner(found: Measurements) -> bytes | None:
    """The best action over all contexts, of a Pareto set that with the highest reward; None if nothing was measured."""
    some = pareto(found) or found.actions
    if found.reward.recurs:
        # Where nothing but the baseline was measured everywhere, the others are compared by what is known of them.
        everywhere = [one for one in some if found.reward.is_complete(one)]
        some = everywhere if any(one != found.baseline for one in everywhere) else some
    return max(some, key=found.order, default=None)


def pareto(found: Measurements) -> list[bytes]:
    """The Pareto set over all contexts, best first by the first objective; empty with fewer than two objectives."""
    goals = aims(found.objectives)
    if len(goals) < 2:
        return []
    violations = {action: found.violation(action) for action in found.actions}
    least = min(violations.values(), default=0.0)
    return front(
        {
            action: [goal.sign * found.metrics[goal.metric].over_all(action).score for goal in goals]
            for action, violation in violations.items()
            if violation <= least
        }
    )
