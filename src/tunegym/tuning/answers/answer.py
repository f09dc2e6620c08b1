"""The answer of an experiment: which setting to use over all and in each context, how good it is, how sure that is.

With confirmation trials, values come from these alone; without, from the search, and the answer says "not confirmed".
Decisions follow the reward; percentages are of a metric that has a goal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunegym.tuning.answers.intervals import Interval
from tunegym.tuning.model.scenario import Objective, aims
from tunegym.tuning.model.values import Action, Context

_FIRST_METRIC = (None, "identity", "negative")
"""Rewards that are the first metric, or minus it."""


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


@dataclass(frozen=True)
class Gain:
    """How much better than the baseline; positive is better."""

    reward: Interval  # difference of rewards
    metric: str | None  # the metric that ``percent`` is of; None where no metric has a goal
    percent: Interval | None  # of the baseline's metric

    @property
    def is_sure(self) -> bool:
        """Whether it is better, at the interval's confidence."""
        return self.reward.low > 0


@dataclass(frozen=True)
class Evidence:
    """What is known of one setting, in one context or over all of them (context None)."""

    action: Action
    context: Context | None
    reward: Interval | None  # None without a measurement; over all contexts the weighted mean of theirs
    metrics: Mapping[str, Interval]
    spread: Mapping[str, float]  # sample standard deviation by metric; empty with fewer than two samples
    samples: int  # independent trials behind it
    failed: int  # of its trials in that phase
    trials: tuple[int, ...]  # their numbers
    is_baseline: bool
    gain: Gain | None  # over the baseline; None without one, and for the baseline itself


@dataclass(frozen=True)
class Verdict:
    """The answer in one context, or over all of them."""

    context: Context | None
    chosen: Evidence | None  # None: nothing can be said, and ``sentence`` says why
    finalists: tuple[Evidence, ...]  # the chosen one, the others and the baseline, best first
    ties: tuple[Evidence, ...]  # cannot be told apart from the chosen one
    confirmed: bool
    notes: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Noise:
    """The same setting measured several times, at the start and at the end."""

    action: Action
    context: Context
    relative_spread: float | None  # None with fewer than two samples
    drift: Interval | None  # from the start to the end, in percent; None with fewer than two samples at either
    note: str | None


@dataclass(frozen=True)
class Answer:
    """What an experiment found."""

    overall: Verdict
    per_context: tuple[Verdict, ...]
    baseline: Action | None
    noise: Noise | None
    not_tested: str  # settings, ranges and contexts that were not tested
