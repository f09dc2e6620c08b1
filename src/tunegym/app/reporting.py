"""``report.html``: what the results alone don't know is asked of the scenario, and the page is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunegym.app.catalog import Catalog
from tunegym.app.folders import FAILURE
from tunegym.app.parts import build_workload
from tunegym.app.planning import what_runs
from tunegym.config.loading import load as load_scenario
from tunegym.core.errors import TunegymError
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.page import REPORT, Known, run_document, write_page
from tunegym.tuning.reports.results import SCENARIO, RunResults, load

logger = logging.getLogger(__name__)

_UNWRITABLE = "copy the results to a folder that you can write, or take the numbers from --json"


def report_run(folder: Path, scenario: Scenario) -> None:
    """Write a run's page at its end. Whatever stands in the way is logged: it never masks what happened."""
    path = folder / REPORT
    try:
        write_report(load(folder), scenario)
    except (OSError, TunegymError) as error:
        why = error.message if isinstance(error, TunegymError) else str(error)
        what = why if why.startswith(str(path)) else f"{path} could not be written: {why}"
        logger.error("%s; tunegym report writes it later", what)  # noqa: TRY400
    except (Exception, SystemExit):
        logger.exception("%s could not be written", path)


def write_report(results: RunResults, scenario: Scenario | None = None) -> Path:
    """Write ``report.html`` anew, from the journals as they are now.

    Raises:
        StoreError: the folder can't be written.
    """
    return write_document(results, document_of(results, scenario))


def write_document(results: RunResults, document: Mapping[str, Any]) -> Path:
    """Write ``report.html`` from what ``document_of`` gave."""
    title = f"{document['scenario']} {results.folder.absolute().name}"
    return write_page(results.folder / REPORT, title, document, _UNWRITABLE)


def document_of(results: RunResults, scenario: Scenario | None = None) -> dict[str, Any]:
    """What a run's page shows, as plain data; ``page`` of each experiment is only for the page."""
    return run_document(results, _known(results, scenario), failure_of(results.folder))


def failure_of(folder: Path) -> str | None:
    """The text of a hard failure, if there was one."""
    try:
        return (folder / FAILURE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{folder / FAILURE} can't be read: {error.strerror}"


def _known(results: RunResults, scenario: Scenario | None) -> dict[str, Known]:
    if scenario is None:
        try:
            scenario = load_scenario(results.folder / SCENARIO, Catalog())
        except Exception as error:  # its files or plugins are gone; the results are worth a page all the same
            note = f"commands are left out, since the scenario can't be loaded any more: {_first_line(error)}"
            return dict.fromkeys(results.experiments, Known(note=note))
    return {one.name: _known_of(scenario, one, results.folder / one.name) for one in scenario.experiments}


def _known_of(scenario: Scenario, experiment: Experiment, folder: Path) -> Known:
    total, fixed = experiment.most_trials, experiment.space.fixed
    if experiment.live is not None:  # a server answers, and nothing is run for a step
        return Known(total, fixed)
    try:
        return Known(total, fixed, _command(scenario, experiment, folder))
    except Exception as error:  # as above
        return Known(total, fixed, note=f"commands are left out: {_first_line(error)}")


def _command(scenario: Scenario, experiment: Experiment, folder: Path) -> Callable[[Trial], str | None]:
    """What a trial ran, planned again; None for one that was never opened, and where planning fails."""
    workload = build_workload(scenario, experiment)
    trials = folder.absolute() / "trials"
    repeat = "" if experiment.repeats == 1 else "/repeat-1"

    def command(trial: Trial) -> str | None:
        if experiment.space.knobs and not trial.action:
            return None
        parameters = experiment.parameters(trial.action, trial.context)
        try:
            return what_runs(workload.plan(trial.number, 1, parameters, f"{trials}/{trial.number:06d}{repeat}"))
        except Exception as error:  # anybody's workload: the rest of the page is worth more than one command
            logger.debug("the command of trial %d can't be told: %s", trial.number, error)
            return None

    return command


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
