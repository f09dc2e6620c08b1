"""Run or resume a scenario: its experiments one after another, each with its agent, reports whatever happens.

An agent that fails in a way that it can tell (a non-zero code) ends its experiment; the next one runs. An exception
ends the run: later experiments are not started, the reports and ``dse_failure.txt`` are written, and the exception is
raised again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunegym.app.catalog import Catalog, build_agent, build_workload
from tunegym.app.kinds import Session, kind_of
from tunegym.app.report import FAILURE, report_run
from tunegym.app.server import check_given, check_server, with_injected
from tunegym.app.warm_start import copied_sources, copy_source, find_source
from tunegym.config.load import load, load_system, parse
from tunegym.core.errors import BudgetError, ServerLostError, StoreError, StoreLockedError
from tunegym.core.files import dump_toml, write_atomic
from tunegym.core.stop import Stop
from tunegym.core.text import printable
from tunegym.tuning.agents import policies
from tunegym.tuning.model.scenario import Experiment, Scenario, aims
from tunegym.tuning.model.trial import Cancelled, OpenTrial, Trial
from tunegym.tuning.model.values import Context, counted
from tunegym.tuning.ports import Agent
from tunegym.tuning.reports.results import RESULTS, SCENARIO, RunResults, find_run
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.journal import HEARTBEAT_S, WriterLock, living_writer, unwritable
from tunegym.tuning.stores.views import TRAJECTORY
from tunegym.tuning.trackers import mlflow, tensorboard
from tunegym.tuning.trackers.process import TrackerProcess, TrackerSpec
from tunegym.tuning.workloads.fingerprint import FILE_PART

logger = logging.getLogger(__name__)

INTERRUPTED = 130
_TIME = re.compile(r"(?:^|_)(?:[mun]?s|secs?|seconds|time|duration|latency)$")
Source = str | Path | Mapping[str, Any] | Scenario


class Watch:
    """Shows a run while it goes; this one shows nothing. Override what you need.

    It hears of every trial. Live steps are too many for that: read ``session.progress()``.
    """

    def run_started(self, scenario: Scenario, folder: Path) -> None:
        """The run begins; results will be in ``folder``."""

    def experiment_started(self, session: Session) -> None:
        """The experiment is open, and its trials or steps follow."""

    def trial_opened(self, trial: OpenTrial) -> None:
        """A trial was decided."""

    def trial_closed(self, trial: Trial) -> None:
        """A trial ended."""

    def experiment_ended(self, session: Session) -> None:
        """No more trials of it follow in this session."""

    def run_reported(self, results: RunResults) -> None:
        """The run's page is written, from these results."""


def as_scenario(
    source: Source, overrides: Sequence[str] = (), *, server: Any = None, system: str | Path | None = None
) -> Scenario:
    """A checked scenario from a file, from plain data, or unchanged.

    ``server`` replaces the ``env_class`` of its live experiments; ``check_given`` says whether it fits them. ``system``
    is a file whose ``[system]`` replaces the scenario's.
    """
    named = {"file": str(source)} if isinstance(source, str | Path) else {}
    if isinstance(source, Scenario):
        if not overrides and server is None and system is None:
            return source
        named, source = {"file": source.file}, dict(source.document)
    if server is not None:
        check_server(server)
        source = with_injected(source)
    catalog = Catalog()
    table = None if system is None else load_system(system, catalog)
    if isinstance(source, Mapping):
        return parse(source, catalog, scenario_dir=Path.cwd(), overrides=overrides, system=table, **named)
    return load(Path(source), catalog, overrides, table)


def run(
    scenario: Source,
    *,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    slots: int | None = None,
    system: str | Path | None = None,
    watch: Watch | None = None,
    stop: Stop | None = None,
    server: Any = None,
) -> int:
    """Run every experiment of a scenario into a new results folder.

    ``system`` is a file whose ``[system]`` is used instead of the scenario's.

    ``server`` replaces the ``env_class`` of its live experiments. A class is called with their ``cmd_args`` as its
    arguments, a function without any, once for each server that is needed; what they make is closed, too. An object is
    used by one experiment after another, and you close it. Beside an object or a function ``cmd_args`` may hold
    env_params only.

    Returns:
        0; 1 if an experiment failed or none of its trials was measured; 130 if ``stop`` was requested.

    Raises:
        ConfigError: the scenario can't be run as it is written; nothing was started.
        TunegymError: ``server`` is no server, or no live experiment would use it, or the token of a remote server is
            not known; nothing was started.
    """
    settings = [*overrides, *([] if slots is None else [f"system.slots={slots}"])]
    checked = as_scenario(scenario, settings, server=server, system=system)
    if server is not None:
        check_given(checked, server)
    for experiment in checked.experiments:
        kind_of(experiment, server).check(checked, experiment)
    named = [(one, getattr(one.agent_config, "warm_start", None)) for one in checked.experiments]
    # before there is a new run, which would be the newest
    sources = {one.name: find_source(checked.scenario_dir / path, one) for one, path in named if path is not None}
    folder = new_run_folder(checked, output)
    for name, source in sources.items():
        copy_source(source, folder / name)
    if sources:
        checked = as_scenario(checked, copied_sources(folder))
        write_scenario(folder, checked)
    with locked(folder):
        return drive(checked, folder, watch or Watch(), stop or Stop(), server)


def resume(
    folder: str | Path = RESULTS,
    *,
    agent_steps: int | None = None,
    slots: int | None = None,
    force: bool = False,
    watch: Watch | None = None,
    stop: Stop | None = None,
    server: Any = None,
) -> int:
    """Continue a run (the newest in a folder of runs) where it was left, or extend it to ``agent_steps`` trials.

    ``server`` is the server of its live experiments, where it was given in Python before (see ``run``).

    Raises:
        TunegymError: ``server`` is no server, or the run's live experiments have an ``env_class``.
        StoreError: another process writes it, or the measured system has changed and ``force`` is not set.
    """
    if server is not None:
        check_server(server)
    run_folder = find_run(Path(folder)).absolute()
    with locked(run_folder):
        scenario = _reloaded(run_folder, agent_steps, slots)
        if server is not None:
            check_given(scenario, server)
        for experiment in scenario.experiments:
            place = run_folder / experiment.name
            writer = living_writer(place)  # an environment of `tunegym.make` doesn't lock the run
            if writer is not None:
                raise StoreLockedError(f"{place} is being written by {writer}", hint="wait for it, or end that process")
            kind = kind_of(experiment, server)
            kind.check(scenario, experiment)
            path = place / reader.JOURNAL
            if not path.exists() and (place / TRAJECTORY).exists():
                raise StoreError(f"{path} is missing", hint="bring it back: without it nothing can be resumed")
            past = reader.scan(path)
            reader.spaces_of(path, past)  # damaged ones are refused before anything is written
            check_unchanged(scenario, experiment, past, force=force)
            used = past.taken
            if agent_steps is not None and agent_steps < used:
                units = counted(used, kind.units.removesuffix("s"))
                what = f"{experiment.name} has used {units} already, --agent-steps {agent_steps} is less"
                raise StoreError(what, hint=f"give {used} or more")
        write_scenario(run_folder, scenario)
        return drive(scenario, run_folder, watch or Watch(), stop or Stop(), server)


def _reloaded(folder: Path, agent_steps: int | None, slots: int | None) -> Scenario:
    """The run's scenario, with the user's changes."""
    overrides = [] if slots is None else [f"system.slots={slots}"]
    overrides += copied_sources(folder)
    scenario = load(folder / SCENARIO, Catalog(), overrides)
    if agent_steps is None:
        return scenario
    driven = [experiment.name for experiment in scenario.experiments if experiment.agent is not None]
    if not driven:
        raise StoreError(f"{folder} is a plain job, which runs once", hint="leave --agent-steps out")
    overrides += [f"experiments.{name}.agent_steps={agent_steps}" for name in driven]
    return load(folder / SCENARIO, Catalog(), overrides)


def check_unchanged(scenario: Scenario, experiment: Experiment, past: reader.Journal, *, force: bool) -> None:
    """Refuse to continue a journal of another workload. Raises ``StoreError``; with ``force`` it only warns."""
    if not past.statuses["measured"]:
        return  # nothing to compare with
    workload = build_workload(scenario, experiment)
    if past.fingerprint == workload.fingerprint():
        return
    before, now = past.sessions[-1].parts, workload.fingerprint_parts()
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    message = f"{experiment.name}: what is measured has changed since the last session: {', '.join(changed)}"
    # A new file is most often one that the trials write.
    appeared = all(name.startswith(FILE_PART) and name not in before for name in changed)
    if not force and not appeared:
        hint = "start a new run, or resume with --force (older measurements are then kept, but not reused)"
        raise StoreError(message, hint=hint)
    logger.warning("%s; older measurements are kept, but not served from the cache", message)


# the run's folder -----------------------------------------------------------------------------------------------------


def new_run_folder(scenario: Scenario, output: str | Path | None) -> Path:
    """A new ``<output>/<scenario>/<time>/`` with the resolved ``scenario.toml`` in it.

    Two runs that start in the same second get different folders: only one process can make a folder.
    """
    parent = Path(output or RESULTS) / scenario.name
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder, count = parent / stamp, 1
        while True:
            try:
                folder.mkdir()
                break
            except FileExistsError:
                count += 1
                folder = parent / f"{stamp}-{count}"
    except OSError as error:
        what = f"{parent} can't be written: {error.strerror}"
        raise StoreError(what, hint="choose another place with --output") from error
    write_scenario(folder, scenario)
    return folder.absolute()


def write_scenario(folder: Path, scenario: Scenario) -> None:
    """Write ``scenario.toml``, atomically. A file with the same content is left alone."""
    path = folder / SCENARIO
    text = dump_toml(scenario.document)
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        write_atomic(path, text)
    except OSError as error:
        hint = "is the disk full, the folder yours? Or choose another place with --output"
        raise StoreError(f"{path} can't be written: {error.strerror}", hint=hint) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's lock, so that no other process drives it."""
    try:
        lock = WriterLock(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError, StoreError):  # the journal's own lock tells what is wrong
                lock.beat()

    keeper = threading.Thread(target=keep, name="tunegym-lock", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()  # or it could write the lock again
        with contextlib.suppress(OSError, StoreError):  # the end of the process releases it, too
            lock.release()


# the experiments ------------------------------------------------------------------------------------------------------


def drive(scenario: Scenario, folder: Path, watch: Watch, stop: Stop, server: Any = None) -> int:
    """Drive every experiment in ``folder``, whose lock the caller holds. The code is that of ``run``."""
    for warning in scenario.warnings:
        logger.warning("%s", warning)
    _warn_of_slots(scenario)
    watch.run_started(scenario, folder)
    with contextlib.suppress(OSError):
        (folder / FAILURE).unlink()
    failed = False
    started: list[Experiment] = []
    try:
        for experiment in scenario.experiments:
            if stop.requested:
                break
            started.append(experiment)
            failed |= _drive_one(scenario, experiment, folder / experiment.name, watch, stop, server) != 0
    except (Exception, SystemExit) as error:
        _write_failure(folder, started[-1].name if started else "", error)
        raise
    finally:
        results = report_run(folder, scenario, started)
        if results is not None:
            watch.run_reported(results)
    if stop.requested:
        return INTERRUPTED
    return 1 if failed else 0


def _warn_of_slots(scenario: Scenario) -> None:
    """Trials that share cores slow each other down, and times then say little."""
    cores = len(os.sched_getaffinity(0))
    if scenario.runner != "local" or scenario.slots <= cores:
        return
    for one in scenario.experiments:
        judged = [objective.metric for objective in aims(one.objectives)] or one.agent_metrics[:1]
        timed = [name for name in judged if one.goals.get(name) == "min" and _TIME.search(name)]
        if timed and one.kind == "trials":
            what = "experiment %s minimises %s, and %d trials at a time share %d cores: they slow each other down"
            logger.warning(f"{what}\nhint: use at most %d slots", one.name, timed[0], scenario.slots, cores, cores)


def _drive_one(scenario: Scenario, experiment: Experiment, folder: Path, watch: Watch, stop: Stop, server: Any) -> int:
    """One experiment from its journal to its end; 0, or 1 for a recoverable failure."""
    kind = kind_of(experiment, server)
    session = kind.open(scenario, experiment, folder, stop=stop, listeners=[watch])
    trackers = Trackers(scenario, experiment, folder)
    with _closing(session, trackers, watch, stop):
        watch.experiment_started(session)
        try:
            session.recover()
            code, reason, confirmed = 0, None, None
            if session.prepare():
                code, reason = _run_agent(build_agent(scenario, session.env.experiment, session.env), session)
            if not code and not stop.requested:
                confirmed = session.conclude(_policy(session))
        except ServerLostError as error:  # the next experiment may still run
            logger.error("%s", error)  # noqa: TRY400 - the message says it all
            code, reason, confirmed = 1, error.message, None
        if not stop.requested:
            if not session.progress().measured:
                hint = "\nhint: remove the cause, then start a new run, or resume this one if its scenario is right"
                logger.error("experiment %s: none of its %s was measured%s", experiment.name, kind.units, hint)
                code = code or 1
            session.end(code, reason or session.env.exhausted() or confirmed or "the agent ended")
    return 1 if code else 0


@contextlib.contextmanager
def _closing(session: Session, trackers: Trackers, watch: Watch, stop: Stop) -> Iterator[None]:
    """Close the session however it ends. An error while closing never masks the error that ended it."""
    try:
        yield
        session.settle(interrupted=stop.requested)
        watch.experiment_ended(session)
    except BaseException as first:
        for end in (lambda: session.settle(interrupted=True), lambda: watch.experiment_ended(session), session.close):
            try:
                end()
            except Exception as error:
                if error is not first:
                    logger.warning("and then: %s", error)
        trackers.finish(interrupted=stop.requested or isinstance(first, KeyboardInterrupt))
        raise
    try:
        session.close()
    finally:
        trackers.finish(interrupted=stop.requested)


def _run_agent(agent: Agent, session: Session) -> tuple[int, str | None]:
    """The agent's code, and why it is not 0; non-zero too when its ``close`` raises, which masks nothing."""
    close_failed = False
    try:
        try:
            code = agent.run()
        except BudgetError:
            if session.env.exhausted() is None:
                raise
            code = 0  # this is how an agent with its own loop learns that it may not go on
        _save_policy(agent, session)
    finally:
        try:
            agent.close()
        except (Exception, SystemExit):
            logger.exception("the agent's close() failed")
            close_failed = True
    told, hint = getattr(agent, "failure", None), getattr(agent, "failure_hint", None)
    if not isinstance(code, int) or isinstance(code, bool):
        told = f"run() of {session.experiment.agent} returned {code!r:.60}, expected an integer"
        code, hint = 1, "end run() with `return 0`; another integer says that the experiment failed"
    if not code:
        ended = getattr(agent, "ended", None)
        ended = printable(ended) if isinstance(ended, str) else None
        if ended:
            logger.info("%s: ended, %s", session.experiment.name, ended)
        return int(close_failed), "the agent's close() failed" if close_failed else ended
    reason = printable(told) if isinstance(told, str) and told else None
    text = f": {reason}" if reason else ""
    text += f"\nhint: {printable(hint)}" if reason and isinstance(hint, str) else ""
    logger.error("the agent of %s returned %d%s", session.experiment.name, code, text)
    return code, reason


def _save_policy(agent: Agent, session: Session) -> None:
    """Write down what the agent would choose, if it has a policy. A failure to do so masks nothing."""
    choose = getattr(agent, "choose", None)  # an agent need not be a BaseAgent
    if choose is None:
        return
    experiment = session.experiment

    def checked(context: Context) -> policies.PolicyChoice | None:
        choice = choose(context)
        return None if choice is None else policies.PolicyChoice(experiment.space.accept(choice.action), choice.chance)

    try:
        learned = sum(trial.status != Cancelled.status for trial in session.env.history())  # others taught nothing
        table = policies.table_of(experiment.agent or "", learned, experiment.env_params, checked)
        if table.choices:
            policies.save(session.env.folder, table)
    except OSError as error:
        logger.warning("the policy of %s could not be saved: %s", experiment.name, error.strerror or error)
    except (Exception, SystemExit):
        logger.warning("the policy of %s could not be saved", experiment.name, exc_info=True)


def _policy(session: Session) -> policies.PolicyTable | None:
    """The agent's saved policy; None if it has none."""
    try:
        return policies.load(session.env.folder)
    except StoreError as error:
        logger.warning("%s", error)
        return None


def _write_failure(folder: Path, experiment: str, error: BaseException) -> None:
    """Write ``dse_failure.txt`` beside the results. A failure to do so never masks the error."""
    path = folder / FAILURE
    try:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        what = f"{when}: experiment {experiment} was ended by {type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        path.write_text(f"{what}\n\n{text}", encoding="utf-8", errors="backslashreplace")
    except OSError as problem:
        logger.error("%s could not be written: %s", path, problem.strerror)  # noqa: TRY400
    except Exception:  # an exception whose own text can't be had
        logger.exception("%s could not be written", path)


class Trackers:
    """The trackers that follow one experiment's journal, which is open. They never raise."""

    def __init__(self, scenario: Scenario, experiment: Experiment, folder: Path) -> None:
        specs: list[TrackerSpec] = []
        if scenario.tracking.mlflow is not None:
            options = {"uri": scenario.tracking.mlflow, "experiment": f"{scenario.name}/{experiment.name}"}
            specs.append(TrackerSpec("mlflow", f"{mlflow.__name__}:MlflowSink", options, mlflow.ENVIRONMENT))
        if scenario.tracking.tensorboard:
            options = {"folder": str(folder / tensorboard.FOLDER)}
            specs.append(TrackerSpec("tensorboard", f"{tensorboard.__name__}:TensorboardSink", options))
        self._processes = [TrackerProcess(spec, folder) for spec in specs]

    def finish(self, *, interrupted: bool = False) -> None:
        """Let all trackers send the rest at the same time, and wait for them in bounded time."""
        for process in self._processes:
            process.ask_to_finish()
        for process in self._processes:
            process.finish(interrupted=interrupted)
