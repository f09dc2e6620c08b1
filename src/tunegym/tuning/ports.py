"""The seams between the parts of the tuning half: a protocol for each, with who may call what, and when."""

# pyright: reportReturnType=false
# Protocols have docstrings for bodies.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from tunegym.tuning.model.scenario import Experiment, Objective
from tunegym.tuning.model.space import ObsLeafDescriptor, Space
from tunegym.tuning.model.trial import SEARCH, Job, JobHandle, JobResult, Observation, OpenTrial, ReportCallback, Trial
from tunegym.tuning.model.values import Action, Context, Metrics

if TYPE_CHECKING:
    from gymnasium import spaces

ENV_ID = "tunegym/Tune-v0"
"""The environment's name in Gymnasium. Non-deterministic: the next trial has the next context."""


@runtime_checkable
class Agent(Protocol):
    """Anything that can drive an experiment: any class that is built as ``Class(env, config, seed)``.

    ``run`` returns 0, or non-zero for a recoverable failure; the next experiment still runs. An exception out
    of ``run`` means a bug or broken infrastructure, and no later experiment is started.
    ``close`` is always called after ``run``, however it ended.
    """

    def run(self) -> int:
        """Drive the experiment to its end."""

    def close(self) -> None:
        """Release everything that the agent holds."""


class Lanes(Protocol):
    """The part that ``Env`` and ``LiveEnv`` share. A lane is one place for a trial in flight, numbered from 0."""

    @property
    def experiment(self) -> Experiment:
        """The experiment: knobs, env_params, metrics, budget, the length of an episode."""

    @property
    def folder(self) -> Path:
        """The experiment's results. An agent may keep its files in a folder in it."""

    @property
    def slots(self) -> int:
        """How many lanes there are."""


class Env(Lanes, Protocol):
    """The environment that an agent drives: trials at width ``slots``.

    ``observe``, then ``begin``, then ``next_finished`` is the walk of one trial. A thread for each lane may call the
    first two; only one thread calls the third.
    """

    @property
    def space(self) -> Space:
        """The knobs that an action must give."""

    @property
    def objectives(self) -> Sequence[Objective]:
        """The goal of each metric; empty if the reward alone decides."""

    @property
    def first(self) -> int:
        """The number of the search's first trial. If it was extended, as if its trials had no others in between."""

    def exhausted(self, lane: int = 0) -> str | None:
        """Why the lane's next trial may not start (budget used up, run stopping), or None."""

    def observe(self, lane: int = 0) -> Observation:
        """The context of the lane's next trial; holds its number. Asking again changes nothing."""

    def begin(
        self,
        action: Action,
        lane: int = 0,
        weight_version: int | None = None,
        context: Context | None = None,
        phase: str = SEARCH,
    ) -> OpenTrial:
        """Write the decision down and start the trial; raises ``ActionError`` or ``BudgetError``.

        ``weight_version`` is that of the policy that chose the action, for agents that count them. ``context`` replaces
        the drawn one, for agents with ``plans_contexts``. A trial of the phase ``repeat`` is not served from the cache.
        """

    def next_finished(self) -> tuple[int, Trial] | None:
        """Wait for a trial to close: its lane and the trial; None if the run stops before one does."""

    def history(self) -> Iterable[Trial]:
        """The trials so far in the order of closing, without rounds that confirm a search."""

    def context(self, number: int) -> Context:
        """The context that trial ``number`` has, had or would have."""


@runtime_checkable
class Structured(Protocol):
    """An optional part of an ``Env``: leaves that its Gymnasium face shows under ``context``."""

    def structured_observation_descriptors(self) -> Mapping[str, ObsLeafDescriptor]:
        """The leaves by name, always the same. Without leaves the face has no ``context``."""

    def encode_observation(self, observation: Observation) -> Mapping[str, Any]:
        """A value for each of these leaves."""


class Workload(Protocol):
    """Turns parameters into a job, and a finished job into metrics. Pure: it runs nothing itself."""

    def plan(self, number: int, repeat: int, parameters: Mapping[str, Any], folder: str) -> Job:
        """The job of trial ``number``, repeat ``repeat`` (from 1), to be run in ``folder``."""

    def read(self, job: Job, result: JobResult) -> Metrics:
        """The metrics of a job that exited; raises ``MetricError`` saying why there are none."""

    def fingerprint(self) -> str:
        """A digest of everything but the parameters that influences the measurement."""

    def fingerprint_parts(self) -> dict[str, str]:
        """The fingerprint's parts by name, so that a change can be named."""


class MetricError(Exception):
    """A job gave no usable metrics; the message is the trial's reason."""


class Runner(Protocol):
    """Runs jobs somewhere. Knows nothing of agents. ``run`` may be called from several threads."""

    def run(self, job: Job, started: Callable[[JobHandle], None], watch: ReportCallback | None = None) -> JobResult:
        """Run one job to its end, and end every process that it left running.

        ``started(handle)`` is called as soon as a process exists, so that its handle is written down.

        ``watch(step, value)`` is called for each intermediate value of a job that ``reports``, in order, one at a time;
        the steps of a command are the numbers of its matches, from 1. Once it returns True it is not called again: the
        job is ended (a command's teardown still runs) and the result is ``pruned``, however the job reacts. So pruning
        depends on the values alone, not on how quickly they are seen.
        """

    def stop(self) -> None:
        """End every running job now; their ``run`` returns ``interrupted``, and so does every later one."""

    def kill(self) -> None:
        """As ``stop``, without grace. Both may be called from a signal handler: no locks."""

    def end_leftovers(self, handles: Iterable[JobHandle]) -> int:
        """End jobs that a killed driver of this experiment left running; return how many processes were ended.

        ``handles`` are those that the killed driver wrote down. A handle that names nothing any more is ignored.
        """

    def close(self) -> None:
        """Release every worker process. Calling it twice is fine."""


class ClusterRunner(Runner, Protocol):
    """A runner with settings, for jobs that run elsewhere.

    Built as ``Class(token, slots, config, scenario_dir)``, which doesn't touch the cluster. ``Config``, a frozen
    dataclass, is the class of its settings in ``[system]``; ``scenario_dir`` is where the files lie that jobs use.
    """

    Config: type[Any]

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse experiments that the cluster can never run, if it can be asked; raises ``TunegymError``."""

    def script(self, job: Job) -> str:
        """What would be submitted for a job, as a user reads it."""

    @property
    def waiting(self) -> str:
        """What keeps jobs from running now, such as a controller that doesn't answer; empty if nothing does."""


Reward: TypeAlias = Callable[[Metrics], float]
"""From a measurement's mean metrics to one number, larger is better; raises to refuse them."""


class Pruner(Protocol):
    """Says which running trials are hopeless, from the rewards of their reports; larger is better.

    Built as ``Class(config, seed)``; ``Config`` is the class of its settings, a frozen dataclass. One pruner sees the
    trials of one context only, since rewards under different conditions can't be compared. Its methods are never called
    at the same time. It uses no clock, file or generator: its answer follows from the calls, so that a resume, which
    replays every recorded trial, gives the same.

    A curve is (step, reward) in the order of reporting. Steps are any integers. Long curves are thinned, but always
    have the newest step.
    """

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        """Why running trial ``number`` is hopeless, or None; asked after each report, which is the curve's last.

        A reason follows "pruned at step n: ".
        """

    def closed(self, number: int, curve: Sequence[tuple[int, float]], status: str) -> None:
        """A trial with reports has ended. In the order of closing; a resume begins with recorded trials.

        ``curve`` is the record, and replaces the one that ``judge`` saw. ``status`` is ``measured``, ``pruned``, or
        another that says nothing about the setting: such a trial should count for nothing.
        """


class Listener(Protocol):
    """Hears of an experiment's trials, such as a progress display. Must be quick and must not raise."""

    def trial_opened(self, trial: OpenTrial) -> None:
        """A trial was decided."""

    def trial_closed(self, trial: Trial) -> None:
        """A trial ended."""


class GymServer(Protocol):
    """A live system that answers itself: one step of it is one trial, and no job is run.

    Built as ``Class(**arguments)``. An experiment with env_params also needs ``apply_env_params(params)``, which is
    called with the whole context before the ``reset`` or ``step`` that it applies to. One thread calls the server. An
    exception fails the step with its message; the server is then reset or rebuilt.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: an element of ``observation_space``, and a dict of anything worth knowing."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action: observation, reward, terminated, truncated, info. Metrics are numbers in ``info``."""

    def close(self) -> None:
        """Release everything. Called once, also after a failure."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One recorded step of a live system, with the observation before it."""

    observation: Any
    action: Any
    reward: float
    after: Any
    terminated: bool
    truncated: bool


class LiveEnv(Lanes, Protocol):
    """The environment of a live experiment: ``slots`` servers of one kind, a lane each. One thread calls it.

    Every step has a number of one counter that all lanes share, across resets, restarts and sessions.
    """

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The server's own."""

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The server's own; with encoded env_params, a ``Dict`` of that and their ``context``."""

    @property
    def taken(self) -> int:
        """How many numbers are used up, those of earlier sessions included."""

    def exhausted(self) -> str | None:
        """Why no further step may be taken (budget used up, run stopping), or None."""

    def reset(
        self, lane: int = 0, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the lane's next episode; a server that was lost is started again. Moves no number and no context.

        Raises ``ServerLostError`` if the server failed too often in a row.
        """

    def step(self, action: Any, lane: int = 0) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, recorded: Gymnasium's five. After an end of the episode ``reset`` must follow.

        A failed step has a penalty for a reward and the episode's last valid observation. It ends the episode: as the
        server said, else with ``truncated``. The observation is the caller's own: no later step changes it.

        Raises:
            ActionError: the action is not in ``action_space``; no number is used.
            BudgetError: no step may be taken any more.
        """

    def step_all(self, actions: Sequence[Any]) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
        """A step in each lane from 0, numbered in this order; servers in other processes work side by side."""

    def separate(self) -> None:
        """From now on lanes don't wait for each other: a thread for each calls ``reset`` and ``lane_step``."""

    def lane_step(
        self, action: Any, lane: int, weight_version: int | None = None
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As ``step``, in one of several lanes after ``separate``. Numbers are given in the order of beginning."""

    def transitions(self, last: int) -> Iterable[Transition]:
        """The newest recorded steps of all sessions, at most ``last``, oldest first.

        Without the first step of each episode, as the observation before it is not recorded; empty where not all steps
        are recorded.
        """
