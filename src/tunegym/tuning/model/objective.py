"""Objectives: the direction of a metric, its weight, and its limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tunegym.tuning.model.values import Metrics


@dataclass(frozen=True, slots=True)
class Objective:
    """One criterion for settings.

    Attributes:
        metric: name of the metric.
        goal: ``max`` if more is better, ``min`` if less is.
        weight: in the weighted sum; 0 if only the limit counts.
        limit: worst acceptable value; None for no limit.
    """

    metric: str
    goal: Literal["max", "min"] = "max"
    weight: float = 1.0
    limit: float | None = None

    @property
    def sign(self) -> float:
        """1 if more is better, -1 if less is."""
        return 1.0 if self.goal == "max" else -1.0

    def value(self, metrics: Metrics) -> float:
        """Return the metric with the sign that makes more better."""
        return self.sign * metrics[self.metric]

    def violation(self, metrics: Metrics) -> float:
        """Return the excess over the limit as a share of it; 0 within the limit or without one."""
        if self.limit is None:
            return 0.0
        excess = self.sign * (self.limit - metrics[self.metric])
        return max(0.0, excess) / (abs(self.limit) or 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, without unset values."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def from_dict(document: Mapping[str, Any]) -> Objective:
    """Return the objective that plain data describe."""
    return Objective(**document)


def aims(objectives: Sequence[Objective]) -> tuple[Objective, ...]:
    """Return the objectives to improve, without those that only have a limit."""
    return tuple(objective for objective in objectives if objective.weight > 0)


def violation(objectives: Sequence[Objective], metrics: Metrics) -> float:
    """Return the sum of the excesses over all limits; 0 if all are kept."""
    return math.fsum(objective.violation(metrics) for objective in objectives)
