"""An experiment as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gymnasium.envs.registration import EnvSpec

from tunegym.app.building import Bench, build_bench
from tunegym.app.folders import new_run_folder
from tunegym.app.injecting import check_given
from tunegym.app.live_building import LiveBench, build_live_bench, check_injected, check_tokens
from tunegym.app.reporting import report_run
from tunegym.app.running import as_scenario, report
from tunegym.app.tracking import Trackers
from tunegym.core.errors import TunegymError
from tunegym.core.registration import ENV_ID
from tunegym.core.stopping import Stop
from tunegym.tuning.envs.engine import TrialEngine
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.envs.live.face import LiveTuneEnv
from tunegym.tuning.envs.live.vector import LiveVectorEnv
from tunegym.tuning.envs.tune import TuneEnv
from tunegym.tuning.envs.vector import TuneVectorEnv, check_share
from tunegym.tuning.model.scenario import Experiment, Scenario

Source = str | Path | Mapping[str, Any] | Scenario
_Env = TypeVar("_Env", TuneEnv, TuneVectorEnv)
_Live = TypeVar("_Live", LiveTuneEnv, LiveVectorEnv)


def make(
    scenario: Source,
    experiment: str | None = None,
    output: str | Path | None = None,
    server: Any = None,
) -> TuneEnv | LiveTuneEnv:
    """A ``gymnasium.Env`` over the same engine and journal as ``tunegym run``, in a new results folder.

    A live experiment's has the spaces of its server, which is started.

    Args:
        scenario: a file, the same as plain data, or a checked one.
        experiment: which one; may be left out when there is only one.
        output: the folder for results instead of ``results``.
        server: replaces the ``env_class`` of a live experiment: a class, which is called with ``cmd_args`` as its
            arguments, a function without arguments that makes a server, or a server itself. What is made is closed
            with the environment; an object is left to whoever gave it.
    """
    checked = as_scenario(scenario, server=server)
    chosen = _chosen(checked, experiment)
    if server is not None:
        check_given(checked, server, chosen)
    if chosen.live is not None:
        one_lane = replace(checked, slots=1)
        env: TuneEnv | LiveTuneEnv = _opened_live(one_lane, chosen, output, server, LiveTuneEnv)
    else:
        env = _opened(checked, chosen, output, TuneEnv)
    # What Gymnasium needs to make another one like it.
    kwargs = {"scenario": scenario, "experiment": experiment, "output": output, "server": server}
    env.spec = EnvSpec(id=ENV_ID, entry_point="tunegym:make", nondeterministic=True, kwargs=kwargs)
    return env


def make_vec(
    scenario: Source,
    num_envs: int,
    experiment: str | None = None,
    output: str | Path | None = None,
    server: Any = None,
) -> TuneVectorEnv | LiveVectorEnv:
    """A ``gymnasium.vector.VectorEnv`` whose sub-environments share one journal, one counter and the runner's slots.

    A live experiment's have a server each, all of which are started.

    Args:
        scenario: a file, the same as plain data, or a checked one.
        num_envs: how many sub-environments; ``[system] slots`` says how many trials run at once, and is not asked of a
            live experiment.
        experiment: which one; may be left out when there is only one.
        output: the folder for results instead of ``results``.
        server: as in ``make``; an object can only be one sub-environment's.

    Raises:
        TunegymError: ``agent_steps`` can't be shared evenly by ``num_envs``.
    """
    checked = as_scenario(scenario, server=server)
    chosen = _chosen(checked, experiment)
    if server is not None:
        check_given(checked, server, chosen)
    check_share(chosen.budget.agent_steps, num_envs)  # before there is a folder
    if chosen.live is not None:
        return _opened_live(replace(checked, slots=num_envs), chosen, output, server, LiveVectorEnv)
    return _opened(checked, chosen, output, lambda engine, finish: TuneVectorEnv(engine, num_envs, finish))


def _opened(
    scenario: Scenario,
    experiment: Experiment,
    output: str | Path | None,
    face: Callable[[TrialEngine, Callable[[], None]], _Env],
) -> _Env:
    """A face of an engine on a new results folder; its second argument is what is to be done once it was closed."""
    folder = new_run_folder(scenario, output)
    with ExitStack() as undo:
        bench = build_bench(scenario, experiment, folder / experiment.name)
        undo.callback(bench.close)
        trackers = Trackers(scenario, experiment, folder / experiment.name)
        undo.callback(trackers.finish)
        env = face(bench.engine, partial(_finish, bench, trackers, scenario, folder))
        undo.pop_all()
    return env


def _opened_live(
    scenario: Scenario,
    experiment: Experiment,
    output: str | Path | None,
    server: Any,
    face: Callable[[LiveEngine, Callable[[], None]], _Live],
) -> _Live:
    """The same for a live experiment, with a server in each of the scenario's slots."""
    check_injected(scenario, experiment, server)
    check_tokens(scenario, experiment)
    folder = new_run_folder(scenario, output)
    with ExitStack() as undo:
        bench = build_live_bench(scenario, experiment, folder / experiment.name, stop=Stop(), server=server)
        undo.callback(bench.close)
        bench.engine.take_over()
        trackers = Trackers(scenario, experiment, folder / experiment.name)
        undo.callback(trackers.finish)
        env = face(bench.engine, partial(_finish, bench, trackers, scenario, folder))
        undo.pop_all()
    return env


def _finish(bench: Bench | LiveBench, trackers: Trackers, scenario: Scenario, folder: Path) -> None:
    """What ``tunegym run`` does at an experiment's end."""
    try:
        bench.store.end(0, bench.engine.exhausted() or "the environment was closed")
    finally:
        bench.close()
        trackers.finish()
    report(folder / bench.engine.experiment.name, bench.engine.experiment)
    report_run(folder, scenario)


def _chosen(scenario: Scenario, name: str | None) -> Experiment:
    by_name = {experiment.name: experiment for experiment in scenario.experiments}
    if name is None and len(by_name) == 1:
        return scenario.experiments[0]
    if name is None or name not in by_name:
        found = "none was named" if name is None else f"there is no {name!r}"
        raise TunegymError(f"{scenario.file}: which experiment? {found}", hint=f"give one of: {', '.join(by_name)}")
    return by_name[name]
