"""Trials with their outcomes, and episodes of live systems. All frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias

from tunegym.tuning.model.values import Action, Context, Metrics

Reports: TypeAlias = tuple[tuple[int, float], ...]
"""Intermediate values of one trial by step, in the order in which they were reported."""


@dataclass(frozen=True, slots=True)
class OpenTrial:
    """A trial that was decided and written down, and has no outcome yet."""

    number: int
    context: Context
    action: Action


@dataclass(frozen=True, slots=True)
class Trial:
    """A closed trial.

    Attributes:
        cached_from: the number of the trial whose measurement this one was given; None if it ran itself.
        reward: the agent's reward; the reward function's value only for a measured trial.
        duration_s: from open to close.
        reports: the intermediate values (step, value) that it reported while it ran, in order.
    """

    number: int
    context: Context
    action: Action
    outcome: Outcome
    reward: float
    duration_s: float
    cached_from: int | None = None
    reports: Reports = ()

    @property
    def status(self) -> str:
        """The outcome's name, as in the CSV."""
        return self.outcome.status

    @property
    def measured(self) -> bool:
        """Whether the trial has a measurement, new or from the cache."""
        return isinstance(self.outcome, Measured)

    @property
    def metrics(self) -> Metrics:
        """The mean metrics of a measured trial; empty for any other."""
        return self.outcome.mean() if isinstance(self.outcome, Measured) else {}

    @property
    def reason(self) -> str:
        """Why there is no measurement; empty for a measured trial."""
        return "" if isinstance(self.outcome, Measured) else self.outcome.reason


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation that an agent acts on.

    Attributes:
        number: the trial that it is about to run.
        context: the context which that trial will run under.
        metrics: the metrics of the lane's last trial; empty if it had no measurement or there was none.
        measured: whether the lane's last trial was measured.
    """

    number: int
    context: Context
    metrics: Metrics = field(default_factory=dict)
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Feedback:
    """The result of a closed trial, for the agent.

    Attributes:
        trial_index: the trial's number.
        value: its reward (a penalty unless ``status`` is ``measured``).
        observation: what the lane sees now: the trial's metrics and the next trial's context.
        prev_observation: what the agent acted on.
        action: what it chose, in native values.
        done: no trial follows in this run's budget.
        status: ``measured``, ``infeasible``, ``failed``, ``timed_out``, ``cancelled`` or ``pruned``.
        cached: the measurement came from the cache.
        context: the context that the trial ran under.
        reports: the intermediate values that it reported.
    """

    trial_index: int
    value: float
    observation: Observation
    prev_observation: Observation
    action: Action
    done: bool
    status: str
    cached: bool = False
    context: Mapping[str, object] = field(default_factory=dict)
    reports: Reports = ()


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


EpisodeEnd: TypeAlias = Literal["terminated", "truncated", "reset", "cut"]
"""The server ended it, a reset came before that, or the run ended."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode.

    Attributes:
        number: counts the experiment's episodes in the order in which they began.
        lane: which server.
        first: number of its first step.
        last: number of its last step; other lanes have numbers in between.
        length: number of steps.
        total: sum of its rewards.
        end: how it ended.
        context: of its first step.
    """

    number: int
    lane: int
    first: int
    last: int
    length: int
    total: float
    end: EpisodeEnd
    context: Mapping[str, Any]
