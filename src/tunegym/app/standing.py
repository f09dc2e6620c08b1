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
from tunegym.tuning.reports.live_results import LiveResults
from tunegym.tuning.reports.results import SCENARIO, ExperimentResults, load
from tunegym.tuning.reports.summary import state_of


@dataclass(frozen=True)
class LiveStanding:
    """What a live experiment has besides.

    Attributes:
        begun: how many episodes have begun, as far as that is recorded.
        episodes: how many are over.
        mean_return: of the newest ``mean_return_over`` that the server itself ended; None before the first.
        unrecorded: how many steps at most were taken and are not on record. Where nobody writes any more, a resume
            counts these as lost; else they are on their way.
        record: which steps are written down.
    """

    begun: int
    episodes: int
    mean_return: float | None
    mean_return_over: int
    unrecorded: int
    record: str


@dataclass(frozen=True)
class Standing:
    """One experiment's state.

    Attributes:
        state: ``not started``, ``running``, ``finished``, ``interrupted``.
        total: how many trials, or steps, it has at most; None if that is open.
        live: of a live experiment only; it has neither open trials, nor a cache, nor a best.
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
    live: LiveStanding | None = None


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
    if isinstance(results, LiveResults):
        return _of_live(results, total)
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


def _of_live(results: LiveResults, total: int | None) -> Standing:
    past = results.past
    live = LiveStanding(
        begun=past.episodes,
        episodes=past.over,
        mean_return=results.mean_return,
        mean_return_over=len(past.returns),
        unrecorded=results.unrecorded,
        record=(past.head or {}).get("live", {}).get("record", "all"),
    )
    return Standing(
        name=results.name,
        state=state_of(results),
        total=total,
        done=past.upto,
        open=0,
        statuses=past.statuses,
        cached=0,
        best=None,
        elapsed_s=past.elapsed_s,
        ended=past.ended["reason"] if past.ended is not None else None,
        live=live,
    )
