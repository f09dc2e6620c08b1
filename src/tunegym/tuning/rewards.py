"""Named metrics to a reward: one number, larger is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunegym.tuning.model.values import Metrics
from tunegym.tuning.ports import Reward


class RewardError(Exception):
    """A measurement that can't be scored; the message is the trial's reason."""


class FirstMetric:
    """A reward that is a function of the first metric."""

    def __init__(self, name: str, function: Callable[[float], float], metrics: Sequence[str]) -> None:
        self._name = name
        self._function = function
        self._metric = metrics[0]

    def __call__(self, metrics: Metrics) -> float:
        """The function's value for the first metric."""
        try:
            value = self._function(metrics[self._metric])
        except ZeroDivisionError:
            raise RewardError(f"reward {self._name}: {self._metric} is 0") from None
        if not math.isfinite(value):
            raise RewardError(f"reward {self._name} of {self._metric} = {metrics[self._metric]} is {value}")
        return value


class ByName:
    """A user's own function of the metrics."""

    def __init__(self, name: str, function: Callable[[Mapping[str, Any]], Any]) -> None:
        self._name = name
        self._function = function

    def __call__(self, metrics: Metrics) -> float:
        """The function's value; what it raises, or a value that is no finite number, fails the trial."""
        try:
            value = float(self._function(metrics))
        except (Exception, SystemExit) as error:
            raise RewardError(f"reward {self._name} raised {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise RewardError(f"reward {self._name} gave {value}")
        return value


def identity(metrics: Sequence[str]) -> Reward:
    """The first metric itself: larger is better."""
    return FirstMetric("identity", lambda value: value, metrics)


def negative(metrics: Sequence[str]) -> Reward:
    """Minus the first metric: smaller is better."""
    return FirstMetric("negative", lambda value: -value, metrics)


def inverse(metrics: Sequence[str]) -> Reward:
    """One over the first metric: smaller is better, and 0 is an error of the trial."""
    return FirstMetric("inverse", lambda value: 1.0 / value, metrics)
