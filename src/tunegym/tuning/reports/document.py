"""A run as the data of one page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import printable
from tunegym.tuning.reports.columns import columns, kept, labels
from tunegym.tuning.reports.live import summarise_live
from tunegym.tuning.reports.live_results import LiveResults
from tunegym.tuning.reports.masking import masked
from tunegym.tuning.reports.outputs import by_interest, commands, tails
from tunegym.tuning.reports.results import SCENARIO, ExperimentResults, Results
from tunegym.tuning.reports.summary import summarise

MOST_TRIALS = 50_000
"""How many trials a page holds; beyond that it shows a sample."""
OUTPUT_BUDGET = 4_000_000
COMMAND_BUDGET = 4_000_000
"""Characters of output and of commands in the whole page."""


@dataclass(frozen=True)
class Known:
    """What only the scenario itself can tell of an experiment.

    Attributes:
        total: how many trials it has at most; None if that is open.
        fixed: the parameters that are not tuned.
        command: what a trial ran; None where that can't be told.
        note: why something of this is missing.
    """

    total: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    command: Callable[[Trial], str | None] | None = None
    note: str | None = None


def run_document(results: Results, known: Mapping[str, Known], failure: str | None) -> dict[str, Any]:
    """Everything that a run's page shows, without passwords in addresses.

    A broken journal is shown as an error of its experiment.
    """
    share = max(1, len(results.experiments))
    experiments = [
        _experiment(one, results.declared(name), known.get(name, Known()), share)
        for name, one in results.experiments.items()
    ]
    return {
        "kind": "run",
        "folder": printable(str(results.folder.absolute())),
        "scenario": str(results.scenario.get("name", "")),
        "written_at": time.time(),
        "failure": None if failure is None else masked(failure),
        "source": _source(results),
        "experiments": experiments,
    }


def _source(results: Results) -> str:
    """The scenario as it was run; its file keeps the passwords that are left out here."""
    try:
        return masked((results.folder / SCENARIO).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def _experiment(results: ExperimentResults, declared: Mapping[str, Any], known: Known, share: int) -> dict[str, Any]:
    """One experiment's facts, and under ``page`` what is only for the page."""
    if isinstance(results, LiveResults):
        return _live_experiment(results, known)
    notes = [masked(known.note)] if known.note else []
    try:
        shown = kept(results, results.journal.closed, MOST_TRIALS)
        summary = summarise(results, declared, shown, known.total)
    except StoreError as error:
        return {"name": results.name, "state": "broken", "error": str(error), "page": None}
    facts, closed = summary.facts, summary.facts["trials"]["done"]
    if len(shown) < closed:
        notes.append(
            f"plots and the table show {len(shown):,} of {closed:,} trials; the numbers above count all of them"
        )
    head = results.journal.head or {"knobs": {}, "env_params": {}, "metrics": []}
    page: dict[str, Any] = {
        "notes": notes,
        "fixed": {name: masked(_label(value)) for name, value in known.fixed.items()},
    }
    page["table"] = columns(shown, head, summary.times)
    if known.command is not None:
        page["commands"] = commands(shown, known.command, COMMAND_BUDGET // share)
    order = (shown[position].number for position in by_interest(shown))
    page["outputs"] = {
        str(n): files for n, files in tails(results.folder / "trials", order, OUTPUT_BUDGET // share).items()
    }
    page["labels"] = _setting_labels(facts)
    return {**facts, "page": page}


def _live_experiment(results: LiveResults, known: Known) -> dict[str, Any]:
    try:
        summary = summarise_live(results, known.total)
    except StoreError as error:
        return {"name": results.name, "live": True, "state": "broken", "error": str(error), "page": None}
    fixed = {name: masked(_label(value)) for name, value in known.fixed.items()}
    return {**summary.facts, "page": {"notes": [], "fixed": fixed, **summary.curves}}


def _label(value: Any) -> str:
    return labels([value])[0]


def _setting_labels(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the facts as text, since a browser knows no difference between 1 and 1.0."""

    def of(setting: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        return {
            "action": {name: _label(value) for name, value in setting["action"].items()},
            "context": {name: _label(value) for name, value in setting.get("context", {}).items()},
        }

    return {
        "best": None if facts["best"] is None else of(facts["best"]),
        "per_context": [of(setting) for setting in facts["per_context"]],
        "pareto": [of(setting) for setting in facts["pareto"]],
        "policy": [
            {**of(one), "best": {} if one["best"] is None else of(one["best"])["action"]}
            for one in (facts["policy"] or {"choices": []})["choices"]
        ],
    }
