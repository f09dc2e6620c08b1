"""Trials as columns: small to store, and quick to plot, sort and filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunegym.tuning.model.outcome import STATUSES, Measured
from tunegym.tuning.model.trial import Reports, Trial
from tunegym.tuning.model.values import Scalar, spelled
from tunegym.tuning.reports.masking import masked

MOST_CURVES = 1_000
MOST_STEPS = 300
EXACT = 2**53
"""Above this a browser's numbers are not exact."""


def kept(trials: Iterable[Trial], count: int, most: int) -> list[Trial]:
    """At most about ``most`` trials, by number: every improvement, and of the rest every n-th.

    Args:
        trials: in the order of closing.
        count: how many there are.
        most: how many a page can hold.
    """
    stride = max(1, -(-count // most))
    chosen: list[Trial] = []
    best = float("-inf")
    for position, trial in enumerate(trials):
        improves = trial.measured and trial.reward > best
        if improves:
            best = trial.reward
        if improves or position % stride == 0:
            chosen.append(trial)
    return sorted(chosen, key=lambda trial: trial.number)


def labels(values: Sequence[Scalar]) -> list[str]:
    """Each value as one reads it; strings without quotes, unless they could be taken for another value."""
    bare = [value if isinstance(value, str) and value.strip() else spelled(value) for value in values]
    return bare if len(set(bare)) == len(bare) else [spelled(value) for value in values]


def parameter(name: str, spec: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """One knob's or env_param's column; None stands for a trial that has no value."""
    if "values" in spec:
        place = {(type(value), value): index for index, value in enumerate(spec["values"])}
        index = [-1 if value is None else place[type(value), value] for value in values]
        return {"name": name, "kind": "list", "labels": labels(spec["values"]), "index": index}
    column = {"name": name, "kind": "range", "low": spec["low"], "high": spec["high"], "dtype": spec["dtype"]}
    column |= {"log": bool(spec.get("log")), "values": list(values)}
    if spec["dtype"] == "int" and max(abs(spec["low"]), abs(spec["high"])) > EXACT:
        column["text"] = [None if value is None else str(value) for value in values]
    return column


def columns(trials: Sequence[Trial], head: Mapping[str, Any], times: Mapping[int, float]) -> dict[str, Any]:
    """Every trial by column, in the order given."""
    reasons: dict[str, int] = {"": 0}
    metrics = [trial.metrics for trial in trials]
    names = list(dict.fromkeys([*head["metrics"], *(name for one in metrics for name in one)]))
    table: dict[str, Any] = {
        "number": [trial.number for trial in trials],
        "statuses": list(STATUSES),
        "status": [STATUSES.index(trial.status) for trial in trials],
        "cached_from": [trial.cached_from for trial in trials],
        "reward": [trial.reward for trial in trials],
        "reason": [reasons.setdefault(trial.reason, len(reasons)) for trial in trials],
        "reasons": [masked(reason) for reason in reasons],
        "duration_s": [round(trial.duration_s, 6) for trial in trials],
        "closed_s": [round(times[trial.number], 6) if trial.number in times else None for trial in trials],
        "knobs": [parameter(name, spec, [t.action.get(name) for t in trials]) for name, spec in head["knobs"].items()],
        "env_params": [
            parameter(name, spec, [t.context.get(name) for t in trials]) for name, spec in head["env_params"].items()
        ],
        "metrics": [{"name": name, "values": [one.get(name) for one in metrics]} for name in names],
    }
    if any(isinstance(trial.outcome, Measured) and len(trial.outcome.samples) > 1 for trial in trials):
        _add_spreads(table, trials)
    curves = _curves(trials)
    if curves:
        table["curves"] = curves
    return table


def _add_spreads(table: dict[str, Any], trials: Sequence[Trial]) -> None:
    spreads: list[dict[str, float]] = []
    table["samples"] = []
    for trial in trials:
        samples = trial.outcome.samples if isinstance(trial.outcome, Measured) else ()
        table["samples"].append(len(samples))
        spreads.append(Measured(samples).spread() if len(samples) > 1 else {})
    for metric in table["metrics"]:
        metric["spread"] = [one.get(metric["name"]) for one in spreads]


def _curves(trials: Sequence[Trial]) -> list[list[Any]]:
    """Position and intermediate values of trials that reported some."""
    found = [(position, trial.reports) for position, trial in enumerate(trials) if trial.reports]
    stride = max(1, -(-len(found) // MOST_CURVES))
    return [[position, _thinned(reports)] for position, reports in found[::stride]]


def _thinned(reports: Reports) -> list[tuple[int, float]]:
    stride = max(1, -(-len(reports) // MOST_STEPS))
    return [*reports[:-1:stride], reports[-1]]
