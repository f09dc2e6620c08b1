"""The two kinds of experiment: how each is checked, planned, opened and resumed.

``trials`` runs a job for each trial; ``live`` takes steps of servers that answer themselves. Everything else in the app
and the command line works with the ``Kind`` and ``Session`` protocols.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tunegym.app.catalog import (
    Catalog,
    build_head,
    build_pruner,
    build_reward,
    build_session,
    build_workload,
)
from tunegym.app.plan import plan_live, plan_trials
from tunegym.app.server import check_injected, maker_of
from tunegym.core.processes import Tree, end_tree, living_processes
from tunegym.core.stop import Stop
from tunegym.tuning.envs.live.engine import LiveEngine, LiveParts
from tunegym.tuning.envs.trials.engine import Parts, TrialEngine
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.model.summary import Plan, Progress
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.model.values import number
from tunegym.tuning.ports import Listener, Runner
from tunegym.tuning.reports.trials import reached
from tunegym.tuning.servers.factory import build_host, known_token
from tunegym.tuning.servers.host import ServerHost
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.steps import StepStore
from tunegym.tuning.stores.trials import JournalStore

if TYPE_CHECKING:
    from tunegym.tuning.envs.face import LiveTuneEnv, LiveVectorEnv, TuneEnv, TuneVectorEnv


def kind_of(experiment: Experiment, server: Any = None) -> TrialsKind | LiveKind:
    """The kind of an experiment; ``server`` is the server that a live one was given in Python, if it was."""
    return LiveKind(server) if experiment.kind == LiveKind.name else TrialsKind()


class OpenSession:
    """Implements ``Session`` over an engine and its store, for both kinds.

    Args:
        env: the engine.
        store: its journal.
        progress: how far it is.
        stopping: what a request to stop does, for the user.
        resources: closed at the end, after the engine.
        interrupts: how Ctrl-C is handled while the session is driven; as Python does by default.
    """

    def __init__(
        self,
        env: Any,
        store: JournalStore | StepStore,
        progress: Callable[[], Progress],
        stopping: str,
        resources: contextlib.ExitStack,
        interrupts: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.env = env
        self.experiment: Experiment = env.experiment
        self.progress = progress
        self.stopping = stopping
        self.interrupts = interrupts
        self._store = store
        self._resources = resources

    def recover(self) -> None:
        """Finish or record what earlier sessions left open."""
        self.env.take_over()

    def settle(self, *, interrupted: bool) -> None:
        """End running jobs and servers. Interrupted, open trials stay open for a resume."""
        self.env.close(interrupted=interrupted)

    def end(self, code: int, reason: str) -> None:
        """Record that the experiment came to its end by itself."""
        self.settle(interrupted=False)
        self._store.end(code, reason)

    def close(self) -> None:
        """Release processes and the journal, in this order."""
        self._resources.close()


class TrialsKind:
    """Each trial is a job that a runner runs."""

    name = units = "trials"
    stopping = "running trials are ended and stay open for a resume"

    def check(self, scenario: Scenario, experiment: Experiment) -> None:
        """Nothing more is needed than the configuration has checked."""

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
    ) -> OpenSession:
        """Open the journal, build the runner and the engine."""
        workload = build_workload(scenario, experiment)
        reward = build_reward(scenario, experiment)
        with contextlib.ExitStack() as resources:
            store = JournalStore(
                folder, build_head(scenario, experiment), build_session(scenario, experiment, workload)
            )
            resources.callback(store.close)
            catalog = Catalog().at(scenario.scenario_dir)
            runner: Runner = catalog.get("runners", scenario.runner)(token=store.head.run, slots=scenario.slots)
            resources.callback(runner.close)
            parts = Parts(
                experiment,
                workload,
                runner,
                store,
                reward,
                experiment.constraints,
                folder,
                build_pruner(scenario, experiment),
                partial(catalog.get, "encodings"),
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
            return OpenSession(engine, store, partial(_trials_progress, engine), self.stopping, resources.pop_all())

    def make(self, session: OpenSession, finish: Callable[[], None]) -> TuneEnv:
        """A Gymnasium environment over an open session."""
        from tunegym.tuning.envs.face import TuneEnv

        return TuneEnv(session.env, finish)

    def make_vec(self, session: OpenSession, num_envs: int, finish: Callable[[], None]) -> TuneVectorEnv:
        """The same with ``num_envs`` sub-environments, which share the scenario's slots."""
        from tunegym.tuning.envs.face import TuneVectorEnv

        return TuneVectorEnv(session.env, num_envs, finish)

    def width(self, scenario: Scenario, num_envs: int) -> int:
        """How many trials run at a time under ``num_envs`` sub-environments: as many as the scenario says."""
        del num_envs
        return scenario.slots

    def used(self, folder: Path) -> int:
        """The highest trial number in the journal."""
        return reader.scan(folder / reader.JOURNAL).taken


class LiveKind:
    """Each step is answered by a server, one per slot.

    Args:
        server: what was given in Python as ``server=``; None if nothing was.
    """

    name, units = "live", "steps"
    stopping = "the step in progress is finished"

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
    ) -> OpenSession:
        """Open the journal and build the servers' hosts; ``recover`` starts the servers."""
        del listeners
        spec = experiment.live
        assert spec is not None
        check_injected(scenario, experiment, self._server)
        workload = build_workload(scenario, experiment)
        reward = build_reward(scenario, experiment) if experiment.reward is not None else None
        with contextlib.ExitStack() as resources:
            head = build_head(scenario, experiment, live={"record": spec.recording.spelled})
            store = StepStore(folder, head, build_session(scenario, experiment, workload), spec.recording)
            resources.callback(store.close)
            build = partial(
                build_host, spec, scenario.scenario_dir, folder, token=store.head.run, started=store.job_started
            )
            injected = maker_of(self._server, spec)
            hosts = [build(lane=lane, injected=injected) for lane in range(scenario.slots)]
            for host in reversed(hosts):
                resources.callback(host.close)
            parts = LiveParts(
                experiment,
                hosts,
                store,
                folder,
                scenario.seed,
                reward,
                partial(Catalog().at(scenario.scenario_dir).get, "encodings"),
                partial(_end_leftovers, store.head.run),
            )
            engine = LiveEngine(parts, stopping=lambda: stop.requested, spent_s=store.past.elapsed_s)
            kill = partial(_kill, hosts)
            stop.subscribe(_finish_step, kill)
            resources.callback(stop.unsubscribe, _finish_step, kill)
            progress, interrupts = partial(_live_progress, engine), partial(_interrupts_stop, stop)
            return OpenSession(engine, store, progress, self.stopping, resources.pop_all(), interrupts)

    def make(self, session: OpenSession, finish: Callable[[], None]) -> LiveTuneEnv:
        """A Gymnasium environment with the server's spaces."""
        from tunegym.tuning.envs.face import LiveTuneEnv

        session.recover()
        return LiveTuneEnv(session.env, finish)

    def make_vec(self, session: OpenSession, num_envs: int, finish: Callable[[], None]) -> LiveVectorEnv:
        """The same with a server for each sub-environment."""
        from tunegym.tuning.envs.face import LiveVectorEnv

        del num_envs
        session.recover()
        return LiveVectorEnv(session.env, finish)

    def width(self, scenario: Scenario, num_envs: int) -> int:
        """How many servers there are: one for each sub-environment."""
        del scenario
        return num_envs

    def used(self, folder: Path) -> int:
        """The highest step number that may have been taken. Refuses a journal whose spaces can't be read."""
        path = folder / reader.JOURNAL
        past = reader.scan(path)
        for space in ("action", "observation"):
            reader.space_of(path, past, space)
        return past.taken


def _trials_progress(engine: TrialEngine) -> Progress:
    tally = engine.tally
    statuses = tally.statuses
    shown = {"failed": str(statuses["failed"] + statuses["timed_out"]), "cached": str(tally.cached)}
    shown |= {status: str(statuses[status]) for status in ("infeasible", "pruned") if statuses[status]}
    if tally.best is not None and engine.experiment.agent is not None:
        shown["best"] = reached(tally.best)
    return Progress(tally.done, "", statuses["measured"], engine.budget.elapsed_s, shown)


def _live_progress(engine: LiveEngine) -> Progress:
    tally = engine.tally
    others = tally.others
    shown = {"episodes": f"{tally.episodes:,}"}
    if tally.mean_return is not None:
        shown["return"] = f"{number(tally.mean_return)} (last {len(tally.returns)})"
    shown["failed"] = f"{others['failed'] + others['timed_out']:,}"
    if others["cancelled"]:
        shown["cancelled"] = f"{others['cancelled']:,}"
    if tally.restarts:
        shown["restarts"] = str(tally.restarts)
    return Progress(tally.done, "step", tally.statuses["measured"], engine.budget.elapsed_s, shown)


def _end_leftovers(token: str, handles: Sequence[JobHandle]) -> int:
    """End what servers of a killed driver left running."""
    return end_tree(Tree(token, living_processes(handles), spares_kin=True)) if handles else 0


@contextlib.contextmanager
def _interrupts_stop(stop: Stop) -> Iterator[None]:
    """Turn Ctrl-C into a request to stop, and raise ``KeyboardInterrupt`` once the experiment has stopped.

    A second Ctrl-C raises at once. A program that handles interrupts itself, as the command line does, is left alone.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            signal.default_int_handler(number, frame)
        interrupted = True
        stop.request()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt


def _kill(hosts: Sequence[ServerHost]) -> None:
    for host in hosts:
        host.kill()


def _finish_step() -> None:
    """A step that has begun is finished, unless the user asks twice."""
