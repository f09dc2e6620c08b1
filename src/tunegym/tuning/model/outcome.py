"""Outcomes of a trial: a union, never a magic number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, TypeAlias

from tunegym.tuning.model.values import Metrics


@dataclass(frozen=True, slots=True)
class Measured:
    """The workload ran and every metric was read: one sample of metrics per repeat."""

    samples: tuple[Metrics, ...]
    status: ClassVar[str] = "measured"

    def mean(self) -> dict[str, float]:
        """Return every metric's mean over the samples that have it."""
        if len(self.samples) == 1:
            return dict(self.samples[0])
        return {name: _mean(values) for name, values in self._columns().items()}

    def spread(self) -> dict[str, float]:
        """Return every metric's sample standard deviation; 0 for a single sample."""
        spread: dict[str, float] = {}
        for name, values in self._columns().items():
            mean = _mean(values)
            distance = math.hypot(*(value - mean for value in values))  # squares without overflow
            spread[name] = distance / math.sqrt(max(len(values) - 1, 1))
        return spread

    def _columns(self) -> dict[str, list[float]]:
        columns: dict[str, list[float]] = {}
        for sample in self.samples:
            for name, value in sample.items():
                columns.setdefault(name, []).append(value)
        return columns


def _mean(values: list[float]) -> float:
    count = len(values)
    if values.count(values[0]) == count:  # the mean of equals is the value itself, to the last digit
        return values[0]
    try:
        return math.fsum(values) / count
    except OverflowError:  # the sum is no float, the mean still is
        return float(sum(map(Fraction, values)) / count)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A constraint refused the action; nothing ran."""

    reason: str
    status: ClassVar[str] = "infeasible"


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed, or a metric could not be read."""

    reason: str
    status: ClassVar[str] = "failed"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The job was ended because it ran past ``timeout_s``."""

    reason: str = "timed out"
    status: ClassVar[str] = "timed_out"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The number was held or opened, and the experiment ended before it was used."""

    reason: str = "cancelled"
    status: ClassVar[str] = "cancelled"


@dataclass(frozen=True, slots=True)
class Pruned:
    """A pruner ended the trial early."""

    reason: str = "pruned"
    status: ClassVar[str] = "pruned"


Outcome: TypeAlias = Measured | Infeasible | Failed | TimedOut | Cancelled | Pruned

STATUSES = ("measured", "infeasible", "failed", "timed_out", "cancelled", "pruned")


def from_record(status: str, reason: str, samples: list[dict[str, float]]) -> Outcome:
    """Return the outcome of a journal's record."""
    if status == Measured.status:
        return Measured(tuple(samples))
    kinds = {kind.status: kind for kind in (Infeasible, Failed, TimedOut, Cancelled, Pruned)}
    return kinds[status](reason)


__all__ = [
    "STATUSES",
    "Cancelled",
    "Failed",
    "Infeasible",
    "Measured",
    "Outcome",
    "Pruned",
    "TimedOut",
    "from_record",
]
