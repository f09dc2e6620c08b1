"""Is a results folder sound? What must hold of every run, however it came about."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from tunegym.app.catalog import Catalog
from tunegym.config.load import load as load_scenario
from tunegym.testing.live_results import check_live
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.reports.live import LiveResults
from tunegym.tuning.reports.results import SCENARIO, AnyResults, TrialResults, find_run
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.views import ENV, TRAJECTORY


def assert_sound(folder: str | Path, *, complete: bool = True) -> dict[str, AnyResults]:
    """Check every experiment of a run that is not being written; returns their results.

    Every number once and none missing, the contexts that the seed gives, the views row by row as the journal
    says. ``complete`` also asks that nothing is open.
    """
    run = find_run(Path(folder))
    scenario = load_scenario(run / SCENARIO, Catalog())
    checked: dict[str, AnyResults] = {}
    for experiment in scenario.experiments:
        if experiment.live is not None:
            live = LiveResults(experiment.name, run / experiment.name)
            check_live(live, experiment, complete=complete)
            checked[experiment.name] = live
            continue
        results = TrialResults(experiment.name, run / experiment.name)
        _check_numbers(results, complete=complete)
        _check_contexts(results, experiment)
        if complete:
            _check_views(results)
        checked[experiment.name] = results
    return checked


def _check_numbers(results: TrialResults, *, complete: bool) -> None:
    counts: dict[str, Counter[int]] = {"open": Counter(), "close": Counter()}
    for record in reader.records(results.path):
        if record["record"] in counts:
            counts[record["record"]][record["number"]] += 1
    for kind, numbers in counts.items():
        twice = sorted(number for number, count in numbers.items() if count > 1)
        assert not twice, f"{results.name}: numbers with more than one {kind} record: {twice}"
    if complete:
        assert not results.journal.open, f"{results.name}: still open: {sorted(results.journal.open)}"
        closed = sorted(counts["close"])
        assert closed == list(range(1, len(closed) + 1)), f"{results.name}: numbers are missing: {closed}"


def _check_contexts(results: TrialResults, experiment: Experiment) -> None:
    for trial in results:
        expected = experiment.env_params.context(trial.number)
        assert trial.context == expected, f"{results.name}: trial {trial.number} ran under {trial.context}"


def _check_views(results: TrialResults) -> None:
    trajectory, env = (_rows(results.folder / name) for name in (TRAJECTORY, ENV))
    steps = [row["step"] for row in trajectory]
    assert steps == [str(trial.number) for trial in results.trials], f"{results.name}: {TRAJECTORY} differs"
    assert steps == [row["step"] for row in env], f"{results.name}: {TRAJECTORY} and {ENV} are not aligned"
    for trial, row, drawn in zip(results.trials, trajectory, env, strict=True):
        assert row["status"] == trial.status, f"{results.name}: trial {trial.number} has status {row['status']}"
        assert row["cached"] == ("false" if trial.cached_from is None else "true")
        assert float(row["reward"]) == trial.reward
        for name in trial.context:
            assert row[f"context.{name}"] == drawn[name], f"{results.name}: trial {trial.number}, {name}"


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
