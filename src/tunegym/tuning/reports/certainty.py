"""How far a setting's reward spreads, and over how many measurements that was seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tunegym.tuning.model.objective import Objective, aims
from tunegym.tuning.reports.best import Setting
from tunegym.tuning.reports.tried import Watched

SURE = 2.0
"""How many standard errors must lie between two settings for one to be better for sure."""

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
    """Which metric the reward is; None where it is a function of its own.

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


def reward_spread(setting: Setting, metric: RewardMetric | None, watched: Watched | None) -> Spread | None:
    """A reward's spread: over samples where it is a metric, else over trials; None with fewer than two of them.

    ``watched`` are the setting's measured trials; None where they were not looked at.
    """
    kept = metric is not None and not (metric.limited and (watched is None or watched.exceeded))
    if metric is not None and kept:
        count = sum(metric.name in sample for sample in setting.samples)
        return Spread(setting.spread()[metric.name], count, "samples") if count > 1 else None
    if watched is None or watched.count < 2:
        return None
    mean = math.fsum(watched.rewards) / watched.count
    deviation = math.hypot(*(reward - mean for reward in watched.rewards)) / math.sqrt(watched.count - 1)
    return Spread(deviation, watched.count, "trials")
