"""The life of a trial as frozen values: the job it runs, the job's result, the outcome, and the closed trial.

A live experiment runs no jobs: its steps make up ``Episode``s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from tunegym.tuning.model.values import Action, Context, Metrics, Scalar

# jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stream:
    """Source of a running command's intermediate values: the matches of a pattern, line by line."""

    pattern: str  # over bytes; the first group that took part is the value, or the whole match without one
    file: str = "stdout.txt"  # relative to the job's folder. It may appear late, be cut short or be replaced.


_PIPEFAIL = ("-e", "-o", "pipefail")
SHELLS = {"bash": _PIPEFAIL, "zsh": _PIPEFAIL, "ksh": _PIPEFAIL, "sh": ("-e",), "dash": ("-e",)}
"""The shells that commands may choose, by name, and the options that make a failing command end the whole text.

In ``sh`` and ``dash`` only the last stage of a pipe counts.
"""


@dataclass(frozen=True, slots=True)
class CommandJob:
    """A shell command, run in ``folder`` (made fresh by the runner) with stdout.txt and stderr.txt in it.

    It is a failure as soon as one of its commands is one, and in most shells one stage of a pipe: see ``SHELLS``.
    """

    name: str  # unique within the experiment, such as ``17`` or ``17.2`` for a second repeat
    folder: str
    command: str
    setup: str | None = None  # runs before; if it fails, the command doesn't run
    teardown: str | None = None  # always runs after, also when the command failed or timed out
    env: Mapping[str, str] = field(default_factory=dict)  # variables on top of the driver's own environment
    timeout_s: float | None = None  # bound on setup and command together, and on teardown by itself; None for no bound
    stream: Stream | None = None  # where intermediate values come from; None if there are none
    shell: str | None = None  # name or path of one of ``SHELLS``; None for bash, or sh where there is none
    num_nodes: int = 1  # how many nodes of a cluster it needs; this machine has one
    measures_memory: bool = False  # its peak memory is needed even if it is below that of the process that starts it

    @property
    def reports(self) -> bool:
        """Whether it reports intermediate values."""
        return self.stream is not None


@dataclass(frozen=True, slots=True)
class CallJob:
    """A Python callable, called with ``arguments``."""

    name: str  # as for a command
    folder: str  # for stdout.txt and stderr.txt; created when there is output
    target: str  # ``module:function``
    arguments: Mapping[str, Any]
    paths: tuple[str, ...] = ()  # folders put in front of ``sys.path``, so that modules beside the scenario are found
    isolate: bool = True  # in a warm worker process (True) or in the driver's own (False; then no timeout)
    env: Mapping[str, str] = field(default_factory=dict)  # environment variables during the call
    timeout_s: float | None = None
    reports: bool = False  # the callable gets one more argument, ``report``, and calls it with (step, value)
    num_nodes: int = 1  # as for a command


Job: TypeAlias = CommandJob | CallJob


def what_runs(job: Job) -> str:
    """A job as a user reads it: the commands, or the call."""
    if isinstance(job, CommandJob):
        around = {name: f"{name}: {text}" for name in ("setup", "teardown") if (text := getattr(job, name))}
        return "\n".join([*around.pop("setup", "").splitlines(), job.command, *around.values()])
    arguments = [f"{name}={value!r}" for name, value in job.arguments.items()]
    return f"{job.target}({', '.join([*arguments, *(['report=report'] if job.reports else [])])})"


ReportCallback: TypeAlias = Callable[[int, float], bool]
"""Called with (step, value) for each intermediate value of a job, in order; True means: end the job now."""

JobHandle: TypeAlias = Mapping[str, Any]
"""Names a running job for the runner that started it: plain JSON, opaque to everyone else.

A process is named by pid, start time and boot; a job of a batch system by its id. The store writes handles down, and a
later session gives them back to the same kind of runner.
"""

Ending: TypeAlias = Literal["exited", "timed_out", "interrupted", "pruned"]


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job. A failing job is data; only broken infrastructure is an exception."""

    # ``exited`` by itself (or crashed), ``timed_out`` and ended by us, ``interrupted`` because the run stops (the
    # trial then stays open), or ``pruned`` because ``watch`` said so
    ending: Ending
    # of a process; negative for a signal, as in ``subprocess``; 0 for a call that returned
    exit_code: int | None = None
    error: str | None = None  # why the job is a failure although it ended by itself; None when it is not
    value: Any = None  # the return value of a callable, as plain data
    # The built-in metrics; None where unknown.
    duration_s: float = 0.0
    cpu_s: float | None = None
    max_rss_mb: float | None = None
    # the nodes of a cluster that it ran on, one entry for each attempt; empty on this machine
    nodes: tuple[str, ...] = ()


# outcomes ---------------------------------------------------------------------------------------------


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


FAILURES = ("failed", "timed_out")
"""The statuses of jobs and steps that went wrong."""


@dataclass(frozen=True)
class Unmeasured:
    """A trial without a measurement, and why."""

    reason: str = ""
    status: ClassVar[str]


class Infeasible(Unmeasured):
    """A constraint refused the action; nothing ran."""

    status = "infeasible"


class Failed(Unmeasured):
    """The job failed, or a metric could not be read."""

    status = "failed"


class TimedOut(Unmeasured):
    """The job was ended because it ran past ``timeout_s``."""

    status = "timed_out"


class Cancelled(Unmeasured):
    """The number was held or opened, and the experiment ended before it was used."""

    status = "cancelled"


class Pruned(Unmeasured):
    """A pruner ended the trial early."""

    status = "pruned"


Outcome: TypeAlias = Measured | Unmeasured

_UNMEASURED = {kind.status: kind for kind in (Infeasible, Failed, TimedOut, Cancelled, Pruned)}
STATUSES = (Measured.status, *_UNMEASURED)


def outcome_of(status: str, reason: str, samples: tuple[Metrics, ...]) -> Outcome:
    """Return the outcome of a journal's record."""
    return Measured(samples) if status == Measured.status else _UNMEASURED[status](reason)


# trials -----------------------------------------------------------------------------------------------

SEARCH, REPEAT, BASELINE, CONFIRM = PHASES = ("search", "repeat", "baseline", "confirm")
"""What a trial is for: a setting that an agent tries, one that it measures again, the settings in use today, and the
rounds that confirm what the search found. Only the first is served from the cache."""

Reports: TypeAlias = tuple[tuple[int, float], ...]
"""Intermediate values of one trial by step, in the order in which they were reported."""


@dataclass(frozen=True, slots=True)
class OpenTrial:
    """A trial that was decided and written down, and has no outcome yet."""

    number: int
    context: Context
    action: Action
    weight_version: int | None = None  # of the policy that chose the action, if its agent counts them
    phase: str = SEARCH  # one of ``PHASES``


@dataclass(frozen=True, slots=True)
class Trial:
    """A closed trial."""

    number: int
    context: Context
    action: Action
    outcome: Outcome
    reward: float  # the agent's reward; the reward function's value only for a measured trial
    duration_s: float  # from open to close
    # the number of the trial whose measurement this one was given; None if it ran itself
    cached_from: int | None = None
    reports: Reports = ()  # the intermediate values (step, value) that it reported while it ran, in order
    nodes: tuple[str, ...] = ()  # where its jobs ran, one entry for each attempt; empty on this machine
    weight_version: int | None = None  # as in ``OpenTrial``
    phase: str = SEARCH  # as in ``OpenTrial``
    warmup: tuple[Metrics, ...] = ()  # samples before those of the outcome, which don't count

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


def samples_of(trial: Trial) -> tuple[Metrics, ...]:
    """Return the samples of a measured trial; none of any other."""
    return trial.outcome.samples if isinstance(trial.outcome, Measured) else ()


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation that an agent acts on."""

    number: int  # the trial that it is about to run
    context: Context  # the context which that trial will run under
    # the metrics of the lane's last trial; empty if it had no measurement or there was none
    metrics: Metrics = field(default_factory=dict)
    measured: bool = False  # whether the lane's last trial was measured


@dataclass(frozen=True, slots=True)
class Feedback:
    """The result of a closed trial, for the agent."""

    trial: Trial
    observation: Observation  # the lane's present one: the trial's metrics and the next trial's context
    prev_observation: Observation  # the one that the agent acted on
    done: bool  # no trial follows in this run's budget

    @property
    def trial_index(self) -> int:
        """The trial's number."""
        return self.trial.number

    @property
    def value(self) -> float:
        """The trial's reward: a penalty unless it was measured."""
        return self.trial.reward

    @property
    def action(self) -> Action:
        """The agent's choice, in native values."""
        return self.trial.action

    @property
    def status(self) -> str:
        """One of ``STATUSES``."""
        return self.trial.status

    @property
    def cached(self) -> bool:
        """Whether the measurement came from the cache."""
        return self.trial.cached_from is not None

    @property
    def context(self) -> Context:
        """The context that the trial ran under."""
        return self.trial.context

    @property
    def reports(self) -> Reports:
        """The intermediate values that it reported."""
        return self.trial.reports


EpisodeEnd: TypeAlias = Literal["terminated", "truncated", "failed", "reset", "cut"]
"""The server ended it, a reset came before that, or the run ended."""


class Episode(msgspec.Struct, frozen=True, array_like=True):
    """One finished episode of a live experiment."""

    number: int  # counts the experiment's episodes in the order in which they began
    lane: int  # which server
    first: int  # number of its first step
    last: int  # number of its last step, which an interrupt may have lost; other lanes have numbers in between
    length: int  # number of steps
    total: float  # sum of its rewards
    end: EpisodeEnd  # how it ended
    context: Mapping[str, Scalar]  # of its first step
