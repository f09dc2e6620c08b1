"""Objectives: which way a metric is better, how much it counts, and what it must not exceed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tunegym.tuning.model.values import Metrics


@dataclass(frozen=True, slots=True)
class Objective:
    """One thing that a setting is judged by.

    Attributes:
        metric: its name.
        goal: ``max`` if more is better, ``min`` if less is.
        weight: how much it counts in the weighted sum; 0 if only its limit counts.
        limit: the worst value that is acceptable; None if any is.
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
        """The metric, turned so that more is better."""
        return self.sign * metrics[self.metric]

    def violation(self, metrics: Metrics) -> float:
        """By how much the limit is exceeded, as a share of it; 0 if it is kept or there is none."""
        if self.limit is None:
            return 0.0
        excess = self.sign * (self.limit - metrics[self.metric])
        return max(0.0, excess) / (abs(self.limit) or 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, without what is not set."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def from_dict(document: Mapping[str, Any]) -> Objective:
    """The objective that plain data describe."""
    return Objective(**document)


def aims(objectives: Sequence[Objective]) -> tuple[Objective, ...]:
    """Those that are to be made better, not just kept within their limits."""
    return tuple(objective for objective in objectives if objective.weight > 0)


def violation(objectives: Sequence[Objective], metrics: Metrics) -> float:
    """By how much the limits are exceeded together; 0 if all are kept."""
    return math.fsum(objective.violation(metrics) for objective in objectives)
