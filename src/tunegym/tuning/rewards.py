"""Rewards: functions from metrics to one number, larger is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tunegym.tuning.model.scenario import Objective, aims, violation
from tunegym.tuning.model.values import Metrics
from tunegym.tuning.ports import Reward


class RewardError(Exception):
    """The measurement can't be scored; the message becomes the trial's reason."""


class FirstMetric:
    """A reward that is a function of the first metric."""

    def __init__(self, name: str, function: Callable[[float], float], metrics: Sequence[str]) -> None:
        self._name = name
        self._function = function
        self._metric = metrics[0]

    def __call__(self, metrics: Metrics) -> float:
        """Return the function's value for the first metric."""
        try:
            value = self._function(metrics[self._metric])
        except ZeroDivisionError:
            raise RewardError(f"reward {self._name}: {self._metric} is 0") from None
        if not math.isfinite(value):
            raise RewardError(f"reward {self._name} of {self._metric} = {metrics[self._metric]} is {value}")
        return value


LIMIT_COST = 10.0
"""Penalty for exceeding a limit by its own size, in units of the first measurement."""


class FromObjectives:
    """The reward of an experiment with objectives.

    One objective is its own reward: the metric, or minus the metric where less is better. Several are weighed
    against each other in units of their first measurement, which ``remember`` records: this makes them comparable
    without changing the rewards of earlier trials. A limit is soft: exceeding it costs in proportion.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = tuple(objectives)
        self._aims = aims(objectives)
        self._units: dict[str, float] = {}

    def remember(self, metrics: Metrics) -> None:
        """Use the first measurement that isn't 0 as the unit of its metric."""
        if len(self._units) < len(self._aims):
            for objective in self._aims:
                value = metrics.get(objective.metric, 0.0)
                if value and objective.metric not in self._units:
                    self._units[objective.metric] = abs(value)

    def __call__(self, metrics: Metrics) -> float:
        """Return the reward; a limit on a missing metric costs nothing."""
        first = self._aims[0]
        known = [objective for objective in self._objectives if objective.metric in metrics]
        cost = LIMIT_COST * violation(known, metrics)
        if len(self._aims) == 1:
            return first.value(metrics) - cost * self._units.get(first.metric, 1.0)
        total = math.fsum(objective.weight for objective in self._aims)
        shares = (one.weight * one.value(metrics) / self._units.get(one.metric, 1.0) for one in self._aims)
        return math.fsum(shares) / total - cost


def identity(metrics: Sequence[str]) -> Reward:
    """The first metric itself: larger is better."""
    return FirstMetric("identity", lambda value: value, metrics)


def negative(metrics: Sequence[str]) -> Reward:
    """Minus the first metric: smaller is better."""
    return FirstMetric("negative", lambda value: -value, metrics)


def inverse(metrics: Sequence[str]) -> Reward:
    """One over the first metric: smaller is better, and 0 is an error of the trial."""
    return FirstMetric("inverse", lambda value: 1.0 / value, metrics)
