"""The two kinds of experiment: how each is checked, planned, opened and resumed.

``trials`` runs a job for each trial; ``live`` takes steps of servers that answer themselves. Everything else in the app
and the command line uses what ``TrialsKind`` and ``LiveKind`` have in common, and ``Session``: it never asks for the
kind.
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar

from tunegym.app.catalog import (
    Catalog,
    build_pruner,
    build_reward,
    build_runner,
    build_session,
    build_workload,
)
from tunegym.app.plan import plan_live, plan_trials
from tunegym.app.server import build_host, check_injected, known_token
from tunegym.core.processes import end_leftovers
from tunegym.core.stop import Stop
from tunegym.core.text import escaped
from tunegym.tuning.envs.live.engine import LiveEngine, LiveParts
from tunegym.tuning.envs.trials.engine import Parts, TrialEngine
from tunegym.tuning.envs.trials.phases import Phases
from tunegym.tuning.inference.recommendation import PolicyTable
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.model.summary import Plan, Progress
from tunegym.tuning.model.trial import CONFIRM, SEARCH, Trial
from tunegym.tuning.model.values import masked, number, pairs, with_goal
from tunegym.tuning.ports import Listener, Runner
from tunegym.tuning.stores.steps import StepStore
from tunegym.tuning.stores.trials import JournalStore

if TYPE_CHECKING:
    from tunegym.tuning.envs.face import LiveTuneEnv, LiveVectorEnv, TuneEnv, TuneVectorEnv


def kind_of(experiment: Experiment, server: Any = None) -> TrialsKind | LiveKind:
    """The kind of an experiment; ``server`` is the server that a live one was given in Python, if it was."""
    return LiveKind(server) if experiment.kind == "live" else TrialsKind()


class Session(ABC):
    """One experiment, open and ready to be driven. ``close`` must follow, however the session goes.

    Attributes:
        env: the agent's environment: an ``Env`` or a ``LiveEnv``.
        stopping: the effect of a request to stop on the work in progress, in words for the user.
    """

    stopping: ClassVar[str]

    def __init__(self, env: Any, store: JournalStore | StepStore, resources: contextlib.ExitStack) -> None:
        self.env = env
        self.experiment: Experiment = env.experiment
        self._store = store
        self._resources = resources

    @abstractmethod
    def progress(self) -> Progress:
        """How far the session is. Any thread may ask."""

    def recover(self) -> None:
        """Finish or record what earlier sessions left open. Raises ``ServerLostError`` if no server starts."""
        self.env.take_over()

    def prepare(self) -> bool:
        """Measure what comes before the agent's search; False if the search is over already."""
        return True

    def conclude(self, policy: PolicyTable | None) -> str | None:
        """Measure what comes after the agent's search; why that ended, if known. ``policy`` is the agent's, if any."""
        del policy
        return None

    def settle(self, *, interrupted: bool) -> None:
        """End running jobs and servers. Interrupted, open trials stay open for a resume. Calling it twice is fine."""
        self.env.close(interrupted=interrupted)

    def end(self, code: int, reason: str) -> None:
        """Settle, and record that the experiment came to its end by itself."""
        self.settle(interrupted=False)
        self._store.end(code, reason)

    def close(self) -> None:
        """Release processes and the journal, in this order. Calling it twice is fine."""
        self._resources.close()


def _failures(statuses: Mapping[str, int], latest: str) -> str:
    """How many failed, and why the latest one did."""
    reason = f" (latest: {shorten(escaped(masked(latest)), 160, placeholder=' ...')})" if latest else ""
    return f"{statuses['failed'] + statuses['timed_out']:,}{reason}"


# trials ---------------------------------------------------------------------------------------------------------------


class TrialSession(Session):
    """A session of trials."""

    stopping = "running trials are ended and stay open for a resume"

    def __init__(self, env: TrialEngine, store: JournalStore, runner: Runner, resources: contextlib.ExitStack) -> None:
        super().__init__(env, store, resources)
        self._runner = runner
        one = self.experiment
        needed = one.confirms or one.baseline is not None or one.enqueue
        self._phases = Phases(env, store) if needed and one.agent is not None else None

    def prepare(self) -> bool:
        """Measure the baseline, and what is to be tried first."""
        return self._phases is None or self._phases.start()

    def conclude(self, policy: PolicyTable | None) -> str | None:
        """Confirm the finalists."""
        return None if self._phases is None else self._phases.finish(policy)

    def progress(self) -> Progress:
        """Trials by status, and the best so far."""
        tally, statuses = self.env.tally, self.env.tally.statuses
        shown = {"failed": _failures(statuses, tally.failure), "cached": str(tally.cached)}
        shown |= {status: str(statuses[status]) for status in ("infeasible", "pruned") if statuses[status]}
        if (best := tally.best) is not None and self.experiment.agent is not None:
            label = "best of the search" if tally.phase == CONFIRM else "best"
            shown[label] = _reached(best, self.experiment)
        if tally.phase != SEARCH:
            shown["phase"] = tally.phase
        if waiting := getattr(self._runner, "waiting", ""):
            shown["waiting"] = waiting
        return Progress(tally.done, "", statuses["measured"], self.env.budget.elapsed_s, shown)


def _reached(trial: Trial, experiment: Experiment) -> str:
    """``seconds (min) 12.5 (threads=4 at load=0.1)``; the reward where that is no metric, or limits count."""
    judged = experiment.judged
    title, value = "reward (max)", trial.reward
    if judged.metric is not None and all(objective.limit is None for objective in experiment.objectives):
        title, value = with_goal(judged.metric, {judged.metric: judged.goal}), trial.metrics[judged.metric]
    context = f" at {pairs(trial.context)}" if trial.context else ""
    return f"{title} {number(value)} ({pairs(trial.action)}{context})"


class TrialsKind:
    """Each trial is a job that a runner runs."""

    units = "trials"

    def check(self, scenario: Scenario, experiment: Experiment) -> None:
        """Refuse jobs that the runner's cluster can never run."""
        with contextlib.closing(build_runner(scenario, "check")) as runner:
            if check := getattr(runner, "check", None):
                check([experiment])

    def plan(self, scenario: Scenario, experiment: Experiment, count: int) -> Plan:
        """The size of the search and its first trials."""
        return plan_trials(scenario, experiment, count)

    def open(
        self,
        scenario: Scenario,
        experiment: Experiment,
        folder: Path,
        *,
        stop: Stop,
        listeners: Sequence[Listener] = (),
    ) -> Session:
        """Open the journal, build the runner and the engine."""
        workload, reward = build_workload(scenario, experiment), build_reward(scenario, experiment)
        session = build_session(scenario, experiment, workload)
        with contextlib.ExitStack() as resources:
            store = JournalStore(folder, Head.of(experiment, uuid.uuid4().hex), session)
            resources.callback(store.close)
            runner = build_runner(scenario, store.head.run)
            resources.callback(runner.close)
            if check := getattr(runner, "check", None):
                check([experiment])  # it connects to its cluster now: an agent may use that, too
            encodings = partial(Catalog().at(scenario.scenario_dir).get, "encodings")
            pruner = build_pruner(scenario, experiment)
            parts = Parts(
                experiment, workload, runner, store, reward, experiment.constraints, folder, pruner, encodings
            )
            engine = TrialEngine(
                parts,
                slots=scenario.slots,
                listeners=listeners,
                stopping=lambda: stop.requested,
                spent_s=store.past.elapsed_s,
            )
            stop.subscribe(runner.stop, runner.kill)
            resources.callback(stop.unsubscribe, runner.stop, runner.kill)
            return TrialSession(engine, store, runner, resources.pop_all())

    def face(self, session: Session, num_envs: int | None, finish: Callable[[], None]) -> TuneEnv | TuneVectorEnv:
        """A Gymnasium environment over an open session; a vector one shares the scenario's slots."""
        from tunegym.tuning.envs.face import TuneEnv, TuneVectorEnv

        return TuneEnv(session.env, finish) if num_envs is None else TuneVectorEnv(session.env, num_envs, finish)

    def slots(self, scenario: Scenario, num_envs: int | None) -> int:
        """How many trials of ``num_envs`` sub-environments run at a time: as many as the scenario says."""
        del num_envs
        return scenario.slots


# live -----------------------------------------------------------------------------------------------------------------


class LiveSession(Session):
    """A session of steps."""

    stopping = "the step in progress is finished"

    def progress(self) -> Progress:
        """Episodes and their recent return, and steps that failed."""
        tally, others = self.env.tally, self.env.tally.others
        shown = {"episodes": f"{tally.episodes:,}"}
        if tally.mean_return is not None:
            shown["return"] = f"{number(tally.mean_return)} (last {len(tally.returns)})"
        shown["failed"] = _failures(others, tally.failure)
        if others["cancelled"]:
            shown["cancelled"] = f"{others['cancelled']:,}"
        if tally.restarts:
            shown["restarts"] = str(tally.restarts)
        return Progress(tally.done, "step", tally.statuses["measured"], self.env.budget.elapsed_s, shown)


class LiveKind:
    """Each step is answered by a server, one per slot; ``server`` is the argument of that name in Python."""

    units = "steps"

    def __init__(self, server: Any = None) -> None:
        self._server = server

    def check(self, scenario: Scenario, experiment: Experiment) -> None:
        """Refuse a server whose token is unknown, and a server object that is missing or can't fill all slots."""
        assert experiment.live is not None
        check_injected(scenario, experiment, self._server)
        if experiment.live.address is not None:
            known_token(experiment.live, scenario.scenario_dir)

    def plan(self, scenario: Scenario, experiment: Experiment, count: int) -> Plan:
        """The server and the budget. The server isn't started, so no steps are planned."""
        del count
        return plan_live(scenario, experiment)

    def open(
        self,
        scenario: Scenario,
        experiment: Experiment,
        folder: Path,
        *,
        stop: Stop,
        listeners: Sequence[Listener] = (),
    ) -> Session:
        """Open the journal and build the servers' hosts; ``recover`` starts the servers."""
        del listeners
        spec = experiment.live
        assert spec is not None
        session = build_session(scenario, experiment, build_workload(scenario, experiment))
        reward = build_reward(scenario, experiment) if experiment.reward is not None else None
        with contextlib.ExitStack() as resources:
            store = StepStore(folder, Head.of(experiment, uuid.uuid4().hex), session)
            resources.callback(store.close)
            build = partial(build_host, spec, scenario.scenario_dir, folder, server=self._server)
            lanes = range(scenario.slots)
            hosts = [build(lane=lane, token=store.head.run, started=store.job_started) for lane in lanes]
            for host in reversed(hosts):
                resources.callback(host.close)
            encodings = partial(Catalog().at(scenario.scenario_dir).get, "encodings")
            leftovers = partial(end_leftovers, store.head.run)
            parts = LiveParts(experiment, hosts, store, folder, scenario.seed, reward, encodings, leftovers)
            engine = LiveEngine(parts, stopping=lambda: stop.requested, spent_s=store.past.elapsed_s)

            def finish_step() -> None:
                """A step that has begun is finished, unless the user asks twice."""

            def kill() -> None:
                for host in hosts:
                    host.kill()

            stop.subscribe(finish_step, kill)
            resources.callback(stop.unsubscribe, finish_step, kill)
            return LiveSession(engine, store, resources.pop_all())

    def face(self, session: Session, num_envs: int | None, finish: Callable[[], None]) -> LiveTuneEnv | LiveVectorEnv:
        """A Gymnasium environment with the server's spaces; a vector one has a server for each sub-environment."""
        from tunegym.tuning.envs.face import LiveTuneEnv, LiveVectorEnv

        return LiveTuneEnv(session.env, finish) if num_envs is None else LiveVectorEnv(session.env, finish)

    def slots(self, scenario: Scenario, num_envs: int | None) -> int:
        """How many servers there are: one for each sub-environment."""
        del scenario
        return num_envs or 1
