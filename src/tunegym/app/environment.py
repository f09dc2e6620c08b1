"""An experiment as a Gymnasium environment, over the same engine and journal as ``tunegym run``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import EnvSpec

from tunegym.app.kinds import Session, kind_of
from tunegym.app.report import report_run
from tunegym.app.run import Source, Trackers, as_scenario, check_unchanged, new_run_folder
from tunegym.app.server import check_given
from tunegym.config.load import read_file
from tunegym.core.errors import StoreError, TunegymError
from tunegym.core.stop import Stop
from tunegym.envs import ENV_ID
from tunegym.tuning.envs.face import check_share
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.reports.results import SCENARIO, find_run
from tunegym.tuning.stores.reader import JOURNAL, scan

if TYPE_CHECKING:
    from tunegym.tuning.envs.face import LiveTuneEnv, LiveVectorEnv, TuneEnv, TuneVectorEnv


def make(
    scenario: Source,
    experiment: str | None = None,
    output: str | Path | None = None,
    server: Any = None,
    resume: str | Path | None = None,
) -> TuneEnv | LiveTuneEnv:
    """A ``gymnasium.Env`` over a new results folder. The server of a live experiment is started.

    Args:
        scenario: a file, the same as plain data, or a checked one.
        experiment: its name; may be left out when there is only one.
        output: the folder for results instead of ``results``.
        server: replaces the ``env_class`` of a live experiment: a class, which is called with ``cmd_args`` as its
            arguments, a function without arguments that makes a server, or a server itself. What is made is closed
            with the environment; you close an object that you gave.
        resume: the folder of an earlier run, closed or killed, to continue; trials that were left open run first.
    """
    env = _opened(*_chosen(scenario, experiment, server), None, server, output=output, resume=resume)
    # Gymnasium makes another environment from this.
    kwargs = {"scenario": scenario, "experiment": experiment, "output": output, "server": server}
    env.spec = EnvSpec(id=ENV_ID, entry_point="tunegym:make", nondeterministic=True, kwargs=kwargs)
    return env


def make_vec(
    scenario: Source,
    num_envs: int,
    experiment: str | None = None,
    output: str | Path | None = None,
    server: Any = None,
    resume: str | Path | None = None,
) -> TuneVectorEnv | LiveVectorEnv:
    """A ``gymnasium.vector.VectorEnv`` whose sub-environments share one journal and one counter.

    Trials share the runner's slots, of which ``[system] slots`` says how many there are. Live sub-environments have a
    server each, all of which are started. The other arguments are those of ``make``; a server object can serve only
    one sub-environment.

    Raises:
        TunegymError: ``agent_steps`` can't be shared evenly by ``num_envs``.
    """
    checked, chosen = _chosen(scenario, experiment, server)
    check_share(chosen.budget.agent_steps, num_envs)  # before there is a folder
    return _opened(checked, chosen, num_envs, server, output=output, resume=resume)


def _chosen(source: Source, name: str | None, server: Any) -> tuple[Scenario, Experiment]:
    scenario = as_scenario(source, server=server)
    by_name = {experiment.name: experiment for experiment in scenario.experiments}
    if name is None and len(by_name) == 1:
        name = next(iter(by_name))
    if name is None or name not in by_name:
        found = "none was named" if name is None else f"there is no {name!r}"
        raise TunegymError(f"{scenario.file}: which experiment? {found}", hint=f"give one of: {', '.join(by_name)}")
    if server is not None:
        check_given(scenario, server, by_name[name])
    return scenario, by_name[name]


def _opened(scenario: Scenario, experiment: Experiment, num_envs: int | None, server: Any, **place: Any) -> Any:
    """The environment over a session in a new results folder, or in that of an earlier run."""
    kind = kind_of(experiment, server)
    scenario = replace(scenario, slots=kind.slots(scenario, num_envs))
    kind.check(scenario, experiment)
    folder = _folder(scenario, experiment, **place)
    with ExitStack() as undo:
        session = kind.open(scenario, experiment, folder / experiment.name, stop=Stop())
        undo.callback(session.close)
        trackers = Trackers(scenario, experiment, folder / experiment.name)
        undo.callback(trackers.finish)
        session.recover()
        env = kind.face(session, num_envs, partial(_finish, session, trackers, scenario, folder))
        undo.pop_all()
    return env


def _folder(scenario: Scenario, experiment: Experiment, output: str | Path | None, resume: str | Path | None) -> Path:
    if resume is None:
        return new_run_folder(scenario, output)
    folder = find_run(Path(resume)).absolute()
    names = [one["name"] for one in read_file(folder / SCENARIO)["experiments"]]
    if experiment.name not in names:
        what = f"{folder} is a run of {', '.join(names)}, not of {experiment.name}"
        raise StoreError(what, hint="give the folder of a run of this scenario")
    check_unchanged(scenario, experiment, scan(folder / experiment.name / JOURNAL), force=False)
    return folder


def _finish(session: Session, trackers: Trackers, scenario: Scenario, folder: Path) -> None:
    """End the experiment as ``tunegym run`` does."""
    try:
        session.end(0, session.env.exhausted() or "the environment was closed")
    finally:
        session.close()
        trackers.finish()
    report_run(folder, scenario, [session.experiment])
