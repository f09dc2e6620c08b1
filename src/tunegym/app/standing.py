"""Where a run stands, from its files alone."""

from __future__ import annotations

from pathlib import Path

from tunegym.app.catalog import Catalog
from tunegym.app.folders import FAILURE
from tunegym.config.loading import load as load_scenario
from tunegym.core.errors import ConfigError
from tunegym.tuning.model.summary import Counts
from tunegym.tuning.reports.results import SCENARIO, load


def standing(folder: Path) -> tuple[Path, list[Counts], str | None]:
    """The run's folder, how far every experiment is, and the text of a hard failure if there was one."""
    results = load(folder)
    totals = _totals(results.folder)
    failure = results.folder / FAILURE
    told = failure.read_text(encoding="utf-8", errors="replace") if failure.is_file() else None
    first = None if told is None else next(iter(told.splitlines()), f"see {failure}")
    return results.folder, [one.counts(totals.get(name)) for name, one in results.experiments.items()], first


def _totals(folder: Path) -> dict[str, int | None]:
    try:
        scenario = load_scenario(folder / SCENARIO, Catalog())
    except ConfigError:  # the scenario's own files may be gone: the trials can be shown all the same
        return {}
    return {experiment.name: experiment.most_trials for experiment in scenario.experiments}
