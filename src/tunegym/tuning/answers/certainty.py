"""How sure one can be of a setting: its spread, whether another was measured better, and which limits it exceeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tunegym.tuning.answers.ranking import Measurements, Setting, samples_of
from tunegym.tuning.model.scenario import Objective, aims
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import exact_key, spelled_pairs

SURE = 2.0
"""How many standard errors must lie between two settings for one to be better for sure."""
SLACK = 1e-9
"""Means that differ by a smaller share are the same: they were added up in another order."""

_FIRST_METRIC = (None, "identity", "negative")
"""Rewards that are the first metric, or minus it."""


@dataclass(frozen=True)
class Spread:
    """A reward's standard deviation over ``count`` samples or trials."""

    deviation: float
    count: int
    over: Literal["samples", "trials"]

    @property
    def standard_error(self) -> float:
        """That of the mean."""
        return self.deviation / math.sqrt(self.count)


@dataclass(frozen=True)
class RewardMetric:
    """The metric that a reward is, or minus which it is; with ``limited`` only while every limit is kept."""

    name: str
    limited: bool


def reward_metric(
    metrics: Sequence[str], objectives: Sequence[Objective], declared: Mapping[str, Any]
) -> RewardMetric | None:
    """Which metric the reward is; None where it is computed from several.

    Args:
        metrics: those that the agent sees, the first one first.
        objectives: those of the experiment.
        declared: the experiment in the scenario.
    """
    name = declared.get("agent_reward_function")
    if name is None and objectives:
        goals = aims(objectives)
        limited = any(objective.limit is not None for objective in objectives)
        return RewardMetric(goals[0].metric, limited) if len(goals) == 1 else None
    return RewardMetric(metrics[0], limited=False) if metrics and name in _FIRST_METRIC else None


def reward_spread(setting: Setting, metric: RewardMetric | None, objectives: Sequence[Objective]) -> Spread | None:
    """A reward's spread: over samples where it is a metric, else over trials; None with fewer than two of them."""
    if metric is not None and not (metric.limited and any(_exceeds(trial, objectives) for trial in setting.trials)):
        count = sum(metric.name in sample for sample in setting.samples)
        return Spread(setting.spread()[metric.name], count, "samples") if count > 1 else None
    deviation = _deviation([[trial.reward for trial in setting.trials]])
    return None if deviation is None else Spread(deviation, len(setting.trials), "trials")


def _exceeds(trial: Trial, objectives: Sequence[Objective]) -> bool:
    found = trial.metrics
    return any(one.violation(found) > 0 for one in objectives if one.limit is not None and one.metric in found)


def _deviation(groups: Iterable[Sequence[float]]) -> float | None:
    """The standard deviation within groups; None if none has two values."""
    away: list[float] = []
    freedom = 0
    for group in groups:
        if len(group) > 1:
            centre = _mean(group)
            away.extend(value - centre for value in group)
            freedom += len(group) - 1
    return math.hypot(*away) / math.sqrt(freedom) if freedom else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)  # the sum may be too large for a float


# two settings ---------------------------------------------------------------------------------------------


def better_measured(found: Measurements, mine: Setting, best: Setting, metric: RewardMetric | None) -> str | None:
    """That ``best`` was measured better than ``mine`` by more than the spread; None if it wasn't.

    Where nothing was measured twice, so that the spread is unknown, that it looks better.
    """
    keys = exact_key(best.action), exact_key(mine.action)
    if keys[0] == keys[1]:
        return None
    name = spelled_pairs(best.action)
    if best.violation + SLACK < mine.violation:
        how = "exceeds the limits by less" if best.violation else "keeps the limits"
        return f"{name} {how} there ({described(best, metric)})"
    gap = _mean(_advantages(found, keys[0])) - _mean(_advantages(found, keys[1]))
    error = _standard_error(found, metric, keys)
    if gap <= max(SURE * error if error is not None else 0.0, SLACK * abs(mine.reward)):
        return None
    how = "was measured better there" if error is not None else "looks better there"
    if found.reward.contexts == 1:
        return f"{name} {how}: {described(best, metric)} against {described(mine, metric)}"
    return f"{name} {how}, by {gap:.4g} of reward, each compared with the baseline of its contexts"


def _advantages(found: Measurements, action: bytes) -> list[float]:
    """By how much each measurement of an action was better than the baseline of its context."""
    return [trial.reward - found.reward.baseline(exact_key(trial.context)) for trial in found.measured(action)]


def _standard_error(found: Measurements, metric: RewardMetric | None, actions: Sequence[bytes]) -> float | None:
    """Of the difference between two actions; None if nothing was measured twice.

    In a single context samples count where the reward is a metric; else trials, each compared with its context.
    An action that was measured once is taken to spread as the others do.
    """

    def values(action: bytes) -> list[float]:
        if metric is None or metric.limited or found.reward.contexts > 1:
            return _advantages(found, action)
        samples = [sample for trial in found.measured(action) for sample in samples_of(trial)]
        return [sample[metric.name] for sample in samples if metric.name in sample]

    pooled = _deviation(values(one) for one in found.actions)
    if pooled is None:
        return None
    own = [values(action) for action in actions]
    deviations = [pooled if (one := _deviation([some])) is None else one for some in own]
    return math.hypot(*(one / math.sqrt(max(1, len(some))) for one, some in zip(deviations, own, strict=True)))


# notes ----------------------------------------------------------------------------------------------------


def described(setting: Setting, metric: RewardMetric | None) -> str:
    """``seconds 1.1 from 2 samples``; the reward where it is no metric."""
    value = setting.metrics().get(metric.name) if metric is not None else None
    count = len(setting.samples)
    what = f"{metric.name} {value:.4g}" if metric is not None and value is not None else f"reward {setting.reward:.4g}"
    return f"{what} from {count} sample{'' if count == 1 else 's'}"


def exceeded(setting: Setting, objectives: Sequence[Objective]) -> str:
    """In brackets the metrics that exceed their limits; empty if none does."""
    means = setting.metrics()
    found = [
        f"{objective.metric} is {means[objective.metric]:.4g}, the limit {objective.limit:.4g}"
        for objective in objectives
        if objective.limit is not None and objective.metric in means and objective.violation(means)
    ]
    return f" ({', '.join(found)})" if found else ""


def not_everywhere(found: Measurements, winner: Setting) -> str | None:
    """That the winner was not measured in every context; None if it was, or if contexts hardly come again."""
    met = found.contexts_of(exact_key(winner.action))
    if len(met) == len(found.contexts) or not found.reward.recurs:
        return None
    return f"it was measured in {len(met)} of the {len(found.contexts)} contexts that match"
