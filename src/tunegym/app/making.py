"""An experiment as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from tunegym.app.building import Bench, build_bench
from tunegym.app.catalog import Catalog
from tunegym.app.folders import new_run_folder
from tunegym.app.reporting import report_run
from tunegym.app.running import as_scenario, report
from tunegym.app.tracking import Trackers
from tunegym.core.errors import TunegymError
from tunegym.tuning.envs.tune import ENV_ID, TuneEnv
from tunegym.tuning.model.scenario import Experiment, Scenario

if ENV_ID not in gymnasium.registry:
    gymnasium.register(id=ENV_ID, entry_point="tunegym:make", nondeterministic=True)


def make(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    experiment: str | None = None,
    output: str | Path | None = None,
) -> TuneEnv:
    """A ``gymnasium.Env`` over the same engine and journal as ``tunegym run``, in a new results folder.

    Args:
        scenario: a file, the same as plain data, or a checked one.
        experiment: which one; may be left out when there is only one.
        output: the folder for results instead of ``results``.
    """
    checked = as_scenario(scenario)
    chosen = _chosen(checked, experiment)
    folder = new_run_folder(checked, output)
    bench = build_bench(checked, chosen, folder / chosen.name)
    trackers = Trackers(checked, chosen, folder / chosen.name)
    catalog = Catalog().at(checked.scenario_dir)
    env = TuneEnv(bench.engine, partial(_finish, bench, trackers, checked, folder), partial(catalog.get, "encodings"))
    # What Gymnasium needs to make another one like it.
    kwargs = {"scenario": scenario, "experiment": experiment, "output": output}
    env.spec = EnvSpec(id=ENV_ID, entry_point="tunegym:make", nondeterministic=True, kwargs=kwargs)
    return env


def _finish(bench: Bench, trackers: Trackers, scenario: Scenario, folder: Path) -> None:
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
