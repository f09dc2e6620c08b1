"""Where a run stands, from its files alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tunegym.app.catalog import Catalog
from tunegym.app.folders import FAILURE
from tunegym.config.loading import load as load_scenario
from tunegym.core.errors import ConfigError
from tunegym.tuning.envs.tally import Tally
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.results import SCENARIO, ExperimentResults, load
from tunegym.tuning.reports.summary import state_of


@dataclass(frozen=True)
class Standing:
    """One experiment's state.

    Attributes:
        state: ``not started``, ``running``, ``finished``, ``interrupted``.
        total: how many trials it has at most; None if that is open.
    """

    name: str
    state: str
    total: int | None
    done: int
    open: int
    statuses: Counter[str]
    cached: int
    best: Trial | None
    elapsed_s: float
    ended: str | None


def standing(folder: Path) -> tuple[Path, list[Standing], str | None]:
    """The run's folder, every experiment's state, and the text of a hard failure if there was one."""
    results = load(folder)
    totals = _totals(results.folder)
    failure = results.folder / FAILURE
    told = failure.read_text(encoding="utf-8", errors="replace") if failure.is_file() else None
    first = None if told is None else next(iter(told.splitlines()), f"see {failure}")
    return results.folder, [_of(one, totals.get(name)) for name, one in results.experiments.items()], first


def _totals(folder: Path) -> dict[str, int | None]:
    try:
        scenario = load_scenario(folder / SCENARIO, Catalog())
    except ConfigError:  # the scenario's own files may be gone: the trials can be shown all the same
        return {}
    return {experiment.name: experiment.most_trials for experiment in scenario.experiments}


def _of(results: ExperimentResults, total: int | None) -> Standing:
    tally = Tally()
    for trial in results:
        tally.add(trial)
    journal = results.journal
    return Standing(
        name=results.name,
        state=state_of(results),
        total=total,
        done=tally.done,
        open=len(journal.open),
        statuses=tally.statuses,
        cached=tally.cached,
        best=tally.best,
        elapsed_s=journal.elapsed_s,
        ended=journal.ended["reason"] if journal.ended is not None else None,
    )
