"""Run: experiments one after another, reports whatever happens."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tunegym.app.building import Bench, build_bench
from tunegym.app.catalog import Catalog
from tunegym.app.folders import FAILURE, new_run_folder, unwritable, write_scenario
from tunegym.app.injecting import check_given, check_server, with_injected
from tunegym.app.interrupting import interrupts_wait
from tunegym.app.live_building import LiveBench, build_live_bench, check_tokens
from tunegym.app.parts import build_agent
from tunegym.app.reporting import report_run
from tunegym.app.tracking import Trackers
from tunegym.app.warming import with_sources
from tunegym.app.watching import Silent, Watch
from tunegym.config.loading import load, parse
from tunegym.core.errors import BudgetError, ServerLostError, StoreError, TunegymError
from tunegym.core.stopping import Stop
from tunegym.tuning.agents import policies
from tunegym.tuning.model.outcome import Cancelled
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.model.values import Context, printable
from tunegym.tuning.ports import Agent
from tunegym.tuning.reports.results import open_results
from tunegym.tuning.stores.lock import HEARTBEAT_S, WriterLock

logger = logging.getLogger(__name__)

INTERRUPTED = 130


def as_scenario(
    source: str | Path | Mapping[str, Any] | Scenario, overrides: Sequence[str] = (), *, server: Any = None
) -> Scenario:
    """A scenario from a file, from plain data, or as it is.

    ``server`` replaces the ``env_class`` of its live experiments; ``check_given`` says whether it fits them.
    """
    if isinstance(source, Scenario):
        if not overrides and server is None:
            return source
        source = dict(source.document)
    if server is not None:
        check_server(server)
        source = with_injected(source)
    if isinstance(source, Mapping):
        return parse(source, Catalog(), scenario_dir=Path.cwd(), overrides=overrides)
    return load(Path(source), Catalog(), overrides)


def run(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    slots: int | None = None,
    watch: Watch | None = None,
    stop: Stop | None = None,
    server: Any = None,
) -> int:
    """Run every experiment of a scenario into a new results folder.

    ``server`` replaces the ``env_class`` of its live experiments. A class is called with their ``cmd_args`` as its
    arguments, a function without any, once for each server that is needed; what they make is closed, too. An object is
    used by one experiment after another, and left to whoever gave it to close. Beside an object or a function
    ``cmd_args`` may hold env_params only.

    Returns:
        0; 1 if an experiment failed or none of its trials was measured; 130 if ``stop`` was requested.

    Raises:
        ConfigError: the scenario can't be run as it is written; nothing was started.
        TunegymError: ``server`` is none, or there is no live experiment that would use it, or the token of a server
            elsewhere is not known; nothing was started.
    """
    settings = [*overrides, *([] if slots is None else [f"system.slots={slots}"])]
    checked = as_scenario(scenario, settings, server=server)
    if server is not None:
        check_given(checked, server)
    check_tokens(checked)
    folder = new_run_folder(checked, output)
    if any(getattr(one.agent_config, "warm_start", None) for one in checked.experiments):
        checked = with_sources(checked, folder)
        write_scenario(folder, checked)
    return drive(checked, folder, watch or Silent(), stop or Stop(), server)


def drive(scenario: Scenario, folder: Path, watch: Watch, stop: Stop, server: Any = None) -> int:
    """Drive every experiment in ``folder``. An exception ends the run; reports are written all the same.

    Raises:
        StoreLockedError: another process drives this run.
    """
    with locked(folder):
        return drive_locked(scenario, folder, watch, stop, server)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else drives the run, also in between two experiments."""
    try:
        lock = WriterLock(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(lock, ended), name="tunegym-run", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        with contextlib.suppress(OSError, StoreError):  # our death would let go of it too
            lock.release()


def _keep(lock: WriterLock, ended: threading.Event) -> None:
    """The run's lock keeps beating; the experiments' own locks say what is wrong if it can't."""
    while not ended.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError, StoreError):
            lock.beat()


def drive_locked(scenario: Scenario, folder: Path, watch: Watch, stop: Stop, server: Any = None) -> int:
    """As ``drive``, for somebody who holds the run's lock already."""
    failed = False
    for warning in scenario.warnings:
        logger.warning("%s", warning)
    watch.run_started(scenario, folder)
    with contextlib.suppress(OSError):
        (folder / FAILURE).unlink()
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
        for experiment in started:
            report(folder / experiment.name, experiment)
        report_run(folder, scenario)
    if stop.requested:
        return INTERRUPTED
    return 1 if failed else 0


def _drive_one(scenario: Scenario, experiment: Experiment, folder: Path, watch: Watch, stop: Stop, server: Any) -> int:
    """One experiment from its journal to its end; 0, or 1 for a recoverable failure."""
    interrupts: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if experiment.live is not None:
        bench = build_live_bench(scenario, experiment, folder, stop=stop, server=server)
        interrupts = interrupts_wait(stop)
    else:
        bench = build_bench(scenario, experiment, folder, listeners=[watch], stop=stop)
    with interrupts, Trackers(scenario, experiment, folder, stop), _let_go_of(bench, experiment, watch):
        watch.experiment_started(experiment, bench.engine)
        try:
            bench.engine.take_over()
        except ServerLostError as error:  # this experiment can't go on, and the next one may
            logger.error("%s", error)  # noqa: TRY400 - it has said all there is to say
            code, reason = 1, error.message
        else:
            code, reason = _run_agent(build_agent(scenario, experiment, bench.engine), bench)
        bench.engine.close(interrupted=stop.requested)
        if not stop.requested:
            if not bench.engine.tally.statuses["measured"]:
                unit = "trials" if experiment.live is None else "steps"
                logger.error("experiment %s: none of its %s was measured", experiment.name, unit)
                code = code or 1
            bench.store.end(code, reason or bench.engine.exhausted() or "the agent ended")
    return 1 if code else 0


@contextlib.contextmanager
def _let_go_of(bench: Bench | LiveBench, experiment: Experiment, watch: Watch) -> Iterator[None]:
    """However it ends, nothing is held on to afterwards. What that raises never masks what ended it."""
    try:
        yield
    except BaseException as first:
        ends = partial(bench.engine.close, interrupted=True), partial(watch.experiment_ended, experiment), bench.close
        for end in ends:
            try:
                end()
            except Exception as error:
                if error is not first:
                    logger.warning("and then: %s", error)
        raise
    try:
        watch.experiment_ended(experiment)
    finally:
        bench.close()


def _run_agent(agent: Agent, bench: Bench | LiveBench) -> tuple[int, str | None]:
    """The agent's own code, and why it is not 0; non-zero too when its ``close`` raises, which masks nothing."""
    close_failed = False
    try:
        try:
            code = agent.run()
        except BudgetError:
            if not bench.stop.requested:
                raise
            code = 0  # how an agent with a loop of its own hears that the run stops
        _save_policy(agent, bench)
    finally:
        try:
            agent.close()
        except (Exception, SystemExit):
            logger.exception("the agent's close() failed")
            close_failed = True
    if not code:
        return int(close_failed), "the agent's close() failed" if close_failed else None
    told = getattr(agent, "failure", None)
    reason = printable(told) if isinstance(told, str) and told else None
    hint = getattr(agent, "failure_hint", None)
    text = f": {reason}" if reason else ""
    text += f"\nhint: {printable(hint)}" if reason and isinstance(hint, str) else ""
    logger.error("the agent of %s returned %d%s", bench.engine.experiment.name, code, text)
    return code, reason


def _save_policy(agent: Agent, bench: Bench | LiveBench) -> None:
    """Write down what the agent would choose, if it has a policy. What keeps it from that masks nothing."""
    choose = getattr(agent, "choose", None)  # somebody else's agent need not be a BaseAgent
    if choose is None:
        return
    experiment, tally = bench.engine.experiment, bench.engine.tally

    def checked(context: Context) -> policies.Choice | None:
        choice = choose(context)
        return None if choice is None else policies.Choice(experiment.space.accept(choice.action), choice.chance)

    try:
        learned = tally.done - tally.statuses[Cancelled.status]  # those that never ran taught nothing
        table = policies.table_of(experiment.agent or "", learned, experiment.env_params, checked)
        if table.choices:
            policies.save(bench.engine.folder, table)
    except OSError as error:
        logger.warning("the policy of %s could not be saved: %s", experiment.name, error.strerror or error)
    except (Exception, SystemExit):
        logger.warning("the policy of %s could not be saved", experiment.name, exc_info=True)


def report(folder: Path, experiment: Experiment) -> None:
    """Everything that is derived from the journal. A reporter that fails never masks what happened."""
    try:
        results = open_results(experiment.name, folder, {})
        if results.path.exists():
            results.write_best(experiment.space.fixed)
    except (OSError, TunegymError) as error:
        logger.error("the report of %s could not be written: %s", experiment.name, error)  # noqa: TRY400
    except Exception:
        logger.exception("the report of %s could not be written", experiment.name)


def _write_failure(folder: Path, experiment: str, error: BaseException) -> None:
    """Say what happened, in a file beside the results. Whatever stands in the way never masks the error."""
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
