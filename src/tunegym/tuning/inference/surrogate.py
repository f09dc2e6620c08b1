"""What all trials say of every setting in every context: costs, and the chance that a setting works.

Costs are compared with what is typical in their context, in units of the spread of the better half. How bad a bad
setting is matters less than how good a good one is, so costs above the typical one are compressed by a logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from tunegym.tuning.inference.coordinates import Floats, Indices
from tunegym.tuning.inference.observations import Cells, CostScale, Observations, Row
from tunegym.tuning.inference.process import COST, SUCCESS, Posterior, Process, Samples, one_thread
from tunegym.tuning.model.scenario import Judged

FAILURE_NOISE = 0.1
"""Added to the variance of the chance to work: a single failure may be bad luck."""
MEAN_NOISE = 0.3
"""The same where only the mean is computed, for a chance that is compared with a half."""
HOPELESS = 0.02
"""A smaller chance to work is none."""
INFLATION = 4.0
"""The model's variances are 15 % low in the median and far too low at worst; they count this many times where a claim
rests on them. Chosen on kernels and simulations, checked on hpolib."""
DRAWS = 1_000
WORST = 1e4
"""Costs that are more spreads above the typical one count as this many: differences may be of any size."""
LEAST_SPREAD = 1e-4
"""Settings whose costs differ by less than this share are equally good."""

Pending = Sequence[tuple[int, int]]
"""Settings and contexts of trials in flight."""


@dataclass(frozen=True)
class Standard:
    """Costs beside what is typical in their context, and back."""

    typical: Floats  # by context
    spread: float

    @classmethod
    def of(cls, costs: Floats, context: Indices, contexts: int) -> Standard:
        """Return the standard of settings' costs. A context without any is as typical as all of them."""
        typical = np.array([_median(costs[context == index]) for index in range(contexts)])
        typical[np.isnan(typical)] = np.median(costs)
        above = costs - typical[context]
        least = LEAST_SPREAD * min(1.0, _root_mean_square(above))  # differences have units, which may be tiny
        return cls(typical, max(_root_mean_square(above[above <= 0]), least) or 1.0)

    def compressed(self, costs: Floats, context: Indices) -> Floats:
        """Return costs on the model's scale."""
        above = (costs - self.typical[context]) / self.spread
        return np.where(above > 0, np.log1p(np.clip(above, 0.0, WORST)), above)

    def natural(self, values: Floats) -> Floats:
        """Return values of the model's scale as costs above the typical one."""
        return np.where(values > 0, np.expm1(np.clip(values, 0.0, 20.0)), values) * self.spread


def _root_mean_square(costs: Floats) -> float:
    return float(np.sqrt(np.mean(costs**2)))


def _median(costs: Floats) -> float:
    return float(np.median(costs)) if len(costs) else np.nan


class Aspect:
    """One metric of all trials, ready for a process."""

    def __init__(self, observations: Observations, scale: CostScale) -> None:
        self.scale = scale
        contexts = len(observations.question.contexts)
        cells = observations.cells(observations.measured(), scale)
        self.standard = Standard.of(cells.mean, cells.context, contexts)
        points = observations.question.coordinates.points(observations.actions)
        self.process = Process(observations.question.coordinates.categorical, contexts, COST)
        values = self.standard.compressed(cells.mean, cells.context)
        squares = cells.squares / self.standard.spread**2  # not compressed: noise as it is near the best
        self.samples = Samples(points[cells.setting], cells.context, values, cells.count, squares)
        if observations.pruned:
            self._add_pruned(observations, points)

    def _add_pruned(self, observations: Observations, points: Floats) -> None:
        """Take a pruned trial for one of the worst in its context."""
        settings, contexts = np.array(observations.pruned, dtype=np.intp).T
        values = np.full(len(settings), float(np.quantile(self.samples.value, 0.9)))
        self.samples = self.samples.plus(points[settings], contexts, values)


@dataclass(frozen=True)
class Theta:
    """Fitted hyperparameters: of the cost, of each further aspect, and of the chance to work."""

    aspects: tuple[Floats, ...]
    success: Floats | None


class Surrogate:
    """The model of an experiment's trials. Needs at least one measured trial.

    Attributes:
        cost: the posterior of the judged cost, on the model's scale.
        aims: with several objectives to improve, the posterior of each of them.
    """

    @one_thread
    def __init__(self, observations: Observations, theta: Theta | None = None, seed: int = 0) -> None:
        self.observations = observations
        question = observations.question
        self._aspects = [Aspect(observations, observations.scale_of(judged)) for judged in _judged(observations)]
        self._working = _working_samples(observations)
        self._success_process = Process(question.coordinates.categorical, len(question.contexts), SUCCESS)
        self.theta = theta or self._fit(seed)
        self.standard = self._aspects[0].standard
        self._posteriors = [
            aspect.process.condition(aspect.samples, fitted)
            for aspect, fitted in zip(self._aspects, self.theta.aspects, strict=True)
        ]
        self.cost = self._posteriors[0]
        several = len(question.aims) if len(question.aims) > 1 else 0
        self.aims = self._posteriors[1 : 1 + several]
        self._limited = list(range(1 + several, len(self._aspects)))
        self._success = self._conditioned_success()

    def _fit(self, seed: int) -> Theta:
        draw = np.random.default_rng(seed)
        aspects = tuple(aspect.process.fit(aspect.samples, draw) for aspect in self._aspects)
        success = None if self._working is None else self._success_process.fit(self._working, draw)
        return Theta(aspects, success)

    def _conditioned_success(self) -> Posterior | None:
        if self._working is None:
            return None
        theta = self.theta.success
        if theta is None:  # the first failure came after the fit
            theta = self._success_process.center
        return self._success_process.condition(self._working, theta)

    def with_pending(self, pending: Pending) -> Posterior:
        """Return the posterior of the cost with trials in flight taken at their mean: only variances shrink."""
        if not pending:
            return self.cost
        settings, contexts = np.array(pending, dtype=np.intp).T
        points = self.points([self.observations.actions[setting] for setting in settings])
        means = self.cost.means(self.cost.reach(points))[contexts, np.arange(len(contexts))]
        return Posterior(self._aspects[0].process, self.cost.samples.plus(points, contexts, means), self.cost.shape)

    def points(self, actions: Sequence) -> Floats:
        """Return the points of settings."""
        return self.observations.question.coordinates.points(actions)

    # the chance to work -------------------------------------------------------------------------------

    def success(self, points: Floats, context: int) -> Floats:
        """Return the chance that settings work in a context and keep every limit."""
        chance = np.ones(len(points))
        if self._success is not None:
            within = self._success.reach(points)
            variance = self._success.variances(within, context)
            chance = ndtr(self._success.means(within)[context] / np.sqrt(FAILURE_NOISE + variance))
        for index in self._limited:
            chance *= self._kept(index, points, context)
        return np.where(chance < HOPELESS, 0.0, chance)

    def works(self, points: Floats) -> Floats:
        """Return roughly the chance to work, contexts by settings: enough to compare it with a half."""
        contexts = len(self.observations.question.contexts)
        chance = np.ones((contexts, len(points)))
        if self._success is not None:
            chance = ndtr(self._success.means(self._success.reach(points)) / np.sqrt(MEAN_NOISE))
        for index in self._limited:
            chance *= np.array([self._kept(index, points, context) for context in range(contexts)])
        return chance

    def _kept(self, index: int, points: Floats, context: int) -> Floats:
        """Return the chance that settings keep a limit."""
        aspect, posterior = self._aspects[index], self._posteriors[index]
        objective = self.observations.question.limits[self._limited.index(index)]
        assert objective.limit is not None
        bound = _limit_cost(aspect.scale, objective.limit)
        highest = aspect.standard.compressed(np.array([bound]), np.array([context]))[0]
        within = posterior.reach(points)
        variance = posterior.variances(within, context) + posterior.shape.noise[context]
        return ndtr((highest - posterior.means(within)[context]) / np.sqrt(variance))

    # costs --------------------------------------------------------------------------------------------

    def means(self, points: Floats) -> Floats:
        """Return expected costs above the typical one, contexts by settings."""
        return self.standard.natural(self.cost.means(self.cost.reach(points)))

    def noise(self, context: int) -> float:
        """Return the standard deviation of a measurement's cost in a context."""
        return float(np.sqrt(self.cost.shape.noise[context])) * self.standard.spread

    def beliefs(self, points: Floats, context: int) -> tuple[Floats, Floats]:
        """Return mean and covariance of the costs of settings in a context. The covariance is too small by far."""
        mean = self.cost.means(self.cost.reach(points))[context]
        covariance = self.cost.covariance(points, context)
        draw = np.random.default_rng(1)
        samples = self.standard.natural(draw.multivariate_normal(mean, covariance, DRAWS, method="eigh"))
        typical = self.standard.typical[context]
        return samples.mean(axis=0) + typical, np.cov(samples.T).reshape(len(points), -1)


def difference_variance(covariance: Floats, first: int, second: int) -> float:
    """Return the variance of the difference between two normal variables."""
    return float(covariance[first, first] + covariance[second, second] - 2.0 * covariance[first, second])


def _limit_cost(scale: CostScale, limit: float) -> float:
    if scale.is_ratio and limit <= 0:
        return -np.inf if scale.sign > 0 else np.inf
    return scale.cost(limit)


def _judged(observations: Observations) -> list[Judged]:
    """Return what the model follows: the judged cost, several aims, and what is limited."""
    question = observations.question
    aims = question.aims if len(question.aims) > 1 else ()
    return [question.judged, *(Judged(metric=goal.metric, goal=goal.goal) for goal in (*aims, *question.limits))]


def _working_samples(observations: Observations) -> Samples | None:
    """Return 1 for settings that worked in a context and -1 for those that failed; None if nothing failed."""
    rows: list[Row] = observations.rows
    if all(row.worked for row in rows):
        return None
    cells = Cells.of(rows, np.array([1.0 if row.worked else -1.0 for row in rows]))
    points = observations.question.coordinates.points(observations.actions)
    flat = np.ones(len(cells))
    return Samples(points[cells.setting], cells.context, cells.mean, flat, 0.0 * flat)
