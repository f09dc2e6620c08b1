"""A scenario as frozen values. Configuration has checked them, and the core trusts them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from tunegym.core.randomness import integer
from tunegym.tuning.model.expression import Constraint
from tunegym.tuning.model.space import Choice, EnvParams, Space
from tunegym.tuning.model.values import Action, Context, Metrics, Scalar

BUILTIN_METRICS = ("duration_s", "cpu_s", "max_rss_mb")
"""Metrics that every process has: costs, so less is better unless the scenario says otherwise."""

Goal: TypeAlias = Literal["max", "min"]
"""``max`` if more is better, ``min`` if less is."""

GOAL_OF_REWARD: Mapping[str, Goal] = {"identity": "max", "negative": "min", "inverse": "min"}
"""The rewards that are functions of the first metric alone, and which way that is better for them."""

Penalty: TypeAlias = float | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Penalties:
    """The reward of a trial without a measurement. ``auto`` is below the worst reward measured so far."""

    constraint_failure: Penalty = "auto"
    metric_failure: Penalty = "auto"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Source of one metric."""

    name: str
    # ``regex`` (first group, else the whole match), ``json`` (a path) or ``csv`` (a column's name)
    kind: Literal["regex", "json", "csv"]
    expression: str  # the pattern, the path or the column
    file: str | None = None  # relative to the trial's folder; None for stdout
    match: Literal["first", "last"] = "last"  # the match of a regex that counts
    row: int = -1  # the data row of a CSV that counts; -1 is the last
    stream: bool = False  # report every match of a regex while the job runs


@dataclass(frozen=True, slots=True)
class Objective:
    """One criterion for settings."""

    metric: str  # name of the metric
    goal: Goal = "max"
    weight: float = 1.0  # in the weighted sum; 0 if only the limit counts
    limit: float | None = None  # worst acceptable value; None for no limit

    @property
    def sign(self) -> float:
        """1 if more is better, -1 if less is."""
        return 1.0 if self.goal == "max" else -1.0

    def value(self, metrics: Metrics) -> float:
        """Return the metric with the sign that makes more better."""
        return self.sign * metrics[self.metric]

    def excess(self, metrics: Metrics) -> float:
        """Return by how much the metric is beyond the limit: negative within it, minus infinity without one."""
        return -math.inf if self.limit is None else self.sign * (self.limit - metrics[self.metric])

    def violation(self, metrics: Metrics) -> float:
        """Return the excess over the limit as a share of it; 0 within the limit or without one."""
        return max(0.0, self.excess(metrics)) / (abs(self.limit or 0.0) or 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, without unset values."""
        return {key: value for key, value in asdict(self).items() if value is not None}


class Judged(msgspec.Struct, frozen=True):
    """What settings are judged by."""

    metric: str | None = None  # None: the reward
    goal: Goal = "max"  # of that metric; ``max`` of the reward
    # ``ratio`` for costs that are never negative; ``auto`` is a ratio if all that is measured is positive
    scale: Literal["ratio", "difference", "auto"] = "auto"


def aims(objectives: Sequence[Objective]) -> tuple[Objective, ...]:
    """Return the objectives to improve, without those that only have a limit."""
    return tuple(objective for objective in objectives if objective.weight > 0)


def violation(objectives: Sequence[Objective], metrics: Metrics) -> float:
    """Return the sum of the excesses over all limits; 0 if all are kept."""
    return math.fsum(objective.violation(metrics) for objective in objectives)


@dataclass(frozen=True, slots=True)
class Budget:
    """When an experiment ends. None, or 0 failures, means no such bound."""

    agent_steps: int | None = None
    max_time_s: float | None = None
    stop_after_no_improvement: int | None = None
    stop_after_failures: int = 0


@dataclass(frozen=True, slots=True)
class Keep:
    """Folders to keep in ``trials/``: ``auto`` (failed ones and the best in each context), ``best`` (``count``), ..."""

    kind: Literal["auto", "all", "failed", "best", "none"] = "auto"
    count: int = 0


@dataclass(frozen=True, slots=True)
class Confirm:
    """The confirmation of the finalists at the end of a search."""

    mode: Literal["auto", "on", "off"] = "auto"  # ``auto`` leaves it out of a search that is too short for it
    share: float = 0.2  # of the trials, at most


FEWEST_TO_CONFIRM = 12
"""A search with fewer trials isn't confirmed, unless the scenario says how."""

OverContexts: TypeAlias = Literal["mean", "worst"] | Mapping[str, float]
"""How the advantages of a setting within each context become one number; ``{"cvar": q}`` is the mean of the worst."""


@dataclass(frozen=True, slots=True)
class PrunerSpec:
    """The pruner of an experiment, and its settings."""

    kind: str  # ``median`` or ``hyperband``, or a reference
    options: Mapping[str, Any] = field(default_factory=dict)  # its own settings


@dataclass(frozen=True, slots=True)
class Tracking:
    """Trackers that trials are sent to, beside the journal."""

    mlflow: str | None = None  # tracking URI of an MLflow store; None for none
    tensorboard: bool = False  # whether to write event files beside the results


INJECTED = "<injected>"
"""In place of a reference: the server is an object given in Python."""

IN_PROCESS = "in_process"
PROCESS = "process"
TCP = "tcp://"


@dataclass(frozen=True, slots=True)
class Recording:
    """Which steps are recorded: ``all``, ``every`` n-th, or those that end ``episodes``.

    A step without a measurement is always recorded.
    """

    kind: Literal["all", "every", "episodes"] = "all"
    every: int = 1

    @property
    def spelled(self) -> str:
        """Return it as a scenario writes it."""
        return f"every:{self.every}" if self.kind == "every" else self.kind


@dataclass(frozen=True)
class LiveSpec:
    """The server of a live experiment."""

    # the reference of a ``GymServer`` class; ``INJECTED`` if an object is given in Python, and empty where
    # ``server`` is elsewhere and the scenario leaves the class to it
    env_class: str
    arguments: Mapping[str, Any] = field(default_factory=dict)  # the constructor's, by name
    server: str = IN_PROCESS  # ``in_process``, ``process``, or ``tcp://HOST:PORT`` of a ``tunegym serve``
    step_timeout_s: float | None = None  # how long an answer may take; None for ever, the only choice in process
    restarts: int = 5  # how often in a row a server may be restarted without a measured step in between
    recording: Recording = field(default_factory=Recording)  # which steps are recorded
    token_file: str | None = None  # holds the token of the ``tunegym serve``; None for the environment variable

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of a server elsewhere; None for one that we start."""
        if not self.server.startswith(TCP):
            return None
        host, _, port = self.server.removeprefix(TCP).rpartition(":")
        return host.strip("[]"), int(port)


DRAWS = 1_000
"""Most draws for a setting that the constraints allow: 63 % find one where they leave a thousandth of the space."""
MOST_SCANNED = 100_000
"""If all draws are refused, a grid of at most so many points is scanned. A scan takes less than a second."""


@dataclass(frozen=True)
class Experiment:
    """One workload, its parameters, one agent and a budget of trials."""

    name: str
    workload: str
    # the workload's own keys of ``cmd_args`` (``command``, ``setup``, ``callable``, ...)
    workload_args: Mapping[str, Any]
    # the tunable knobs and fixed parameters by address. Addresses under ``extra_env_vars.`` become environment
    # variables; ``num_nodes`` is an address too when the scenario gives it.
    space: Space
    env_params: EnvParams  # parameters drawn per trial, by address
    agent: str | None  # the agent's name or reference; None for a plain job, which has no knob and runs once
    agent_config: Any  # the agent's own frozen ``Config``
    agent_metrics: tuple[str, ...]
    reward: str | None = "identity"  # the reward's name or reference; None if the objectives define it
    metrics: tuple[MetricSpec, ...] = ()
    goals: Mapping[str, Goal] = field(default_factory=dict)  # which way metrics are better, where that is known
    judged: Judged = field(default_factory=Judged)
    # refuse parameters that must not be tried: parsed expressions, or users' functions
    constraints: tuple[Constraint, ...] = ()
    penalties: Penalties = field(default_factory=Penalties)
    budget: Budget = field(default_factory=Budget)
    timeout_s: float | None = None
    repeats: int | Literal["auto"] = (
        1  # samples of a trial; ``auto`` takes a second one where it may change the ranking
    )
    warmup: int = 0  # samples before these that don't count
    cache: bool = True
    keep: Keep = field(default_factory=Keep)
    isolate: bool = True
    agent_ends_after: int | None = None  # most trials that the agent makes by itself; None if it never ends by itself
    objectives: tuple[Objective, ...] = ()  # criteria by metric; empty if the reward alone decides
    pruner: PrunerSpec | None = None  # ends hopeless trials early; None for none
    episode_steps: int = 1  # trials in an episode of the Gymnasium environment
    live: LiveSpec | None = None  # the server that answers instead of jobs; None for an experiment that runs jobs
    baseline: Action | None = None  # the settings in use today
    enqueue: tuple[Action, ...] = ()  # settings to try first
    confirm: Confirm = field(default_factory=Confirm)
    over_contexts: OverContexts = "mean"

    @property
    def search_trials(self) -> int | None:
        """Upper bound of the agent's trials; None if only time or improvement bounds it."""
        bounds = [bound for bound in (self.budget.agent_steps, self.agent_ends_after) if bound is not None]
        return min(bounds, default=None)

    @property
    def confirms(self) -> bool:
        """Whether the finalists of the search are confirmed."""
        if self.agent is None or self.live is not None:
            return False
        enough = (self.search_trials or FEWEST_TO_CONFIRM) >= FEWEST_TO_CONFIRM
        return self.confirm.mode == "on" or (self.confirm.mode == "auto" and enough)

    @property
    def most_trials(self) -> int | None:
        """Upper bound of the number of trials; None if only time or improvement bounds it."""
        more = self.confirms or self.baseline is not None or self.enqueue
        return self.budget.agent_steps if more else self.search_trials

    @property
    def kind(self) -> str:
        """``live`` if a server answers each step, else ``trials``."""
        return "trials" if self.live is None else "live"

    @property
    def most_samples(self) -> int:
        """The largest number of samples that a trial takes, warm-up included."""
        return self.warmup + (2 if self.repeats == "auto" else self.repeats)

    @property
    def reported_metric(self) -> str | None:
        """The metric that a running trial reports; None if there is none."""
        return self.judged.metric or next(iter(self.agent_metrics), None)

    def parameter_names(self) -> list[str]:
        """Return every address that a trial has a value for: fixed, knobs and env_params."""
        return [*self.space.fixed, *self.space.knobs, *self.env_params.params]

    @property
    def most_nodes(self) -> int:
        """The largest ``num_nodes`` that a trial may have; 1 unless the scenario gives it."""
        drawn = self.env_params.params.get("num_nodes")
        domain = self.space.knobs.get("num_nodes") or (drawn and drawn.domain)
        return max(map(int, domain.values)) if isinstance(domain, Choice) else self.space.fixed.get("num_nodes", 1)

    def parameters(self, action: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of every address in one trial."""
        return {**self.space.fixed, **action, **context}

    @property
    def is_enumerable(self) -> bool:
        """Whether all settings can be looked at, one after another."""
        size = self.space.size
        return size is not None and size <= MOST_SCANNED

    @cached_property
    def expressions(self) -> tuple[Constraint, ...]:
        """The constraints that are expressions. Users' functions are called only when a trial starts."""
        return tuple(constraint for constraint in self.constraints if constraint.is_expression)

    def allows(self, action: Action, context: Context) -> bool:
        """Return whether no expression among the constraints refuses ``action`` in ``context``."""
        if not self.expressions:
            return True
        parameters = self.parameters(action, context)
        return all(constraint.refuse(parameters) is None for constraint in self.expressions)

    def draw_allowed(
        self,
        context: Context,
        seed: int,
        name: str,
        number: int,
        is_wanted: Callable[[Action], bool] = lambda _: True,
    ) -> dict[str, Scalar] | None:
        """Draw a random setting that ``allows`` accepts in ``context``, and that ``is_wanted``.

        The result depends on the arguments alone. The first attempt is ``space.draw(seed, name, number)``; later ones
        add the attempt to the number. If all are refused, a small grid is scanned from a drawn point on. None means
        that there is no such setting, or, where the grid is too large for a scan, that none was found.
        """
        size = self.space.size if self.is_enumerable else None
        for attempt in range(min(DRAWS, size or DRAWS)):
            numbers = (number, attempt) if attempt else (number,)
            action = self.space.draw(seed, name, *numbers)
            if self.allows(action, context) and is_wanted(action):
                return action
        if size is None:
            return None
        start = integer(seed, size, name, number)
        points = (self.space.point((start + index) % size) for index in range(size))
        return next((point for point in points if self.allows(point, context) and is_wanted(point)), None)


@dataclass(frozen=True)
class Scenario:
    """Experiments and the system they run on."""

    name: str
    seed: int
    runner: str
    slots: int
    runner_config: Any  # the runner's settings: an instance of its ``Config``; None for a runner without settings
    experiments: tuple[Experiment, ...]
    scenario_dir: Path  # value of ``{scenario_dir}``; modules are looked for there first
    # the resolved scenario as plain data; written to ``scenario.toml`` and enough to run again
    document: Mapping[str, Any]
    file: str = "<python>"  # the source in messages: a path, or ``<python>``
    warnings: tuple[str, ...] = ()  # of configuration
    tracking: Tracking = field(default_factory=Tracking)
