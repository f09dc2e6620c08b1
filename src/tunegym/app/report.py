"""The report of a run.

Results come from the journals. What they don't know (how many trials there will be, the fixed parameters) comes from
the scenario, as far as it can still be loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tunegym.app.catalog import Catalog
from tunegym.config.load import load as load_scenario
from tunegym.core.errors import TunegymError
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.reports.page import REPORT, Known, run_document, write_page
from tunegym.tuning.reports.results import SCENARIO, RunResults, load
from tunegym.tuning.reports.trials import BEST

logger = logging.getLogger(__name__)
T = TypeVar("T")

FAILURE = "dse_failure.txt"
"""Says which exception ended a run."""
_UNWRITABLE = "copy the results to a folder that you can write, or take the numbers from --json"


def report_run(folder: Path, scenario: Scenario, experiments: Iterable[Experiment]) -> RunResults | None:
    """Write ``best.toml`` of some experiments and the run's page; the results, from one reading of the journals.

    A failure is logged, and masks nothing.
    """
    results = _tried(folder / REPORT, lambda: load(folder))
    if results is not None:
        for experiment in experiments:
            found = results.experiments[experiment.name]
            if found.path.exists():
                _tried(found.folder / BEST, partial(found.write_best, experiment.space.fixed))
        _tried(folder / REPORT, lambda: write_document(results, document_of(results, scenario)))
    return results


def _tried(path: Path, write: Callable[[], T]) -> T | None:
    """The result of ``write``, which is to write ``path``; None and a log line if it fails."""
    try:
        return write()
    except (OSError, TunegymError) as error:
        why = error.message if isinstance(error, TunegymError) else str(error)
        what = why if why.startswith(str(path)) else f"{path} could not be written: {why}"
        later = "; tunegym report writes it later" if path.name == REPORT else ""
        logger.error("%s%s", what, later)  # noqa: TRY400
    except (Exception, SystemExit):
        logger.exception("%s could not be written", path)
    return None


def write_document(results: RunResults, document: Mapping[str, Any]) -> Path:
    """Write ``report.html`` from the result of ``document_of``. Raises ``StoreError`` if it can't be written."""
    title = f"{document['scenario']} {results.folder.absolute().name}"
    return write_page(results.folder / REPORT, title, document, _UNWRITABLE)


def document_of(results: RunResults, scenario: Scenario | None = None) -> dict[str, Any]:
    """What a run's page shows, as plain data; ``page`` of each experiment is only for the page."""
    scenario, problem = (scenario, "") if scenario is not None else scenario_of(results.folder)
    if scenario is None:
        note = f"fixed parameters are left out, since the scenario can't be loaded any more: {problem}"
        known = dict.fromkeys(results.experiments, Known(note=note))
    else:
        known = {one.name: Known(one.most_trials, one.space.fixed) for one in scenario.experiments}
    return run_document(results, known, failure_of(results.folder))


def failure_of(folder: Path) -> str | None:
    """The text of a hard failure, if there was one."""
    try:
        return (folder / FAILURE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{folder / FAILURE} can't be read: {error.strerror}"


def scenario_of(run: Path) -> tuple[Scenario | None, str]:
    """The run's scenario, or None and why: its files or plugins may be gone, and the results can still be shown."""
    try:
        return load_scenario(run / SCENARIO, Catalog()), ""
    except Exception as error:
        return None, str(error).partition("\n")[0]
