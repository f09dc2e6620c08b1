"""How sure one can be of a setting: its spread, whether another was measured better, and which limits it exceeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tunegym.tuning.answers.ranking import Setting
from tunegym.tuning.model.scenario import Objective, aims
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import counted, exact_key, number, spelled_pairs

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

    ``metrics`` are those that the agent sees, ``declared`` is the experiment in the scenario.
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
    rewards = [trial.reward / len(setting.trials) for trial in setting.trials]  # the sum must not overflow
    if len(rewards) < 2:
        return None
    away = math.hypot(*(trial.reward - math.fsum(rewards) for trial in setting.trials))
    return Spread(away / math.sqrt(len(rewards) - 1), len(rewards), "trials")


def _exceeds(trial: Trial, objectives: Sequence[Objective]) -> bool:
    found = trial.metrics
    return any(one.violation(found) > 0 for one in objectives if one.limit is not None and one.metric in found)


def better_measured(
    mine: Setting, best: Setting, metric: RewardMetric | None, objectives: Sequence[Objective]
) -> str | None:
    """That ``best`` was measured better than ``mine`` by more than the spread; None if it wasn't.

    Where neither was measured twice, so that the spread is unknown, that it looks better. Where one was measured
    once, it is taken to spread as the other does.
    """
    if exact_key(mine.action) == exact_key(best.action):
        return None
    name = spelled_pairs(best.action)
    if best.violation + SLACK < mine.violation:
        how = "exceeds the limits by less" if best.violation else "keeps the limits"
        return f"{name} {how} there ({described(best, metric)})"
    spreads = [one for one in (reward_spread(best, metric, objectives), reward_spread(mine, metric, objectives)) if one]
    errors = [one.standard_error for one in spreads]
    if len(spreads) == 1:
        errors.append(spreads[0].deviation)
    if best.reward - mine.reward <= max(SURE * math.hypot(*errors), SLACK * abs(mine.reward)):
        return None
    how = "was measured better there" if spreads else "looks better there"
    return f"{name} {how}: {described(best, metric)} against {described(mine, metric)}"


def described(setting: Setting, metric: RewardMetric | None) -> str:
    """``seconds 1.1 from 2 samples``; the reward where it is no metric."""
    means, name = setting.metrics(), "" if metric is None else metric.name
    what = f"{name} {number(means[name])}" if name in means else f"reward {number(setting.reward)}"
    return f"{what} from {counted(len(setting.samples), 'sample')}"


def exceeded(setting: Setting, objectives: Sequence[Objective]) -> str:
    """In brackets the metrics that exceed their limits; empty if none does."""
    means = setting.metrics()
    found = [
        f"{objective.metric} is {number(means[objective.metric])}, the limit {number(objective.limit)}"
        for objective in objectives
        if objective.limit is not None and objective.metric in means and objective.violation(means)
    ]
    return f" ({', '.join(found)})" if found else ""
