"""A trial: one number, one context, one action, one outcome. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tunegym.tuning.model.outcome import Measured, Outcome
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
