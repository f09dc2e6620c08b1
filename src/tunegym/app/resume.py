"""Resume: continue a run where it was left, if it still measures the same."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tunegym.app.catalog import Catalog, build_workload
from tunegym.app.kinds import kind_of
from tunegym.app.run import Watch, drive, locked, write_scenario
from tunegym.app.server import check_given, check_server
from tunegym.app.warm_start import copied_sources
from tunegym.config.load import load
from tunegym.core.errors import StoreError, StoreLockedError
from tunegym.core.stop import Stop
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.reports.results import SCENARIO, find_run
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.journal import living_writer
from tunegym.tuning.workloads.fingerprint import FILE_PART

logger = logging.getLogger(__name__)


def resume(
    folder: str | Path,
    *,
    agent_steps: int | None = None,
    slots: int | None = None,
    force: bool = False,
    watch: Watch | None = None,
    stop: Stop | None = None,
    server: Any = None,
) -> int:
    """Continue a run where it was left, or extend a finished one to ``agent_steps`` trials.

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
            _check_unchanged(scenario, experiment, place, force=force)
            used = kind.used(place)
            if agent_steps is not None and agent_steps < used:
                what = f"{experiment.name} has used {used} {kind.units} already, --agent-steps {agent_steps} is less"
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


def _check_unchanged(scenario: Scenario, experiment: Experiment, folder: Path, *, force: bool) -> None:
    path = folder / reader.JOURNAL
    past = reader.scan(path) if path.exists() else reader.Journal()
    if not past.sessions:
        return
    workload = build_workload(scenario, experiment)
    if past.fingerprint == workload.fingerprint():
        return
    before, now = past.sessions[-1]["parts"], workload.fingerprint_parts()
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    message = f"{folder.name}: what is measured has changed since the last session: {', '.join(changed)}"
    # A new file is most often one that the trials write.
    appeared = all(name.startswith(FILE_PART) and name not in before for name in changed)
    if not force and not appeared:
        raise StoreError(
            message,
            hint="start a new run, or resume with --force (older measurements are then kept, but not reused)",
        )
    logger.warning("%s; older measurements are kept, but not served from the cache", message)
