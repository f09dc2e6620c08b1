"""Several runs side by side, as plain data and as tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tunegym.core.text import escaped
from tunegym.tuning.model.summary import Comparison, table_of
from tunegym.tuning.model.values import printable
from tunegym.tuning.reports.results import RunResults

_LEFT = ("run", "experiment", "agent", "settings")
_NAMES = ("run", "experiment", "agent")


def compare(runs: Sequence[RunResults]) -> Comparison:
    """Every experiment of every run, how its best was reached, and warnings of what differs."""
    entries: list[dict[str, Any]] = []
    tables: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for label, run in zip(run_labels([run.folder for run in runs]), runs, strict=True):
        for experiment in run.experiments.values():
            facts, cells = experiment.compared()
            entries.append({"run": label, "folder": printable(str(run.folder.absolute())), **facts})
            names = {key: escaped(entries[-1][key] or "") for key in _NAMES}
            tables.setdefault(tuple(cells), []).append({**names, **cells})
    facts = {"kind": "comparison", "written_at": time.time(), "warnings": _warnings(entries), "entries": entries}
    return Comparison(facts, tuple(table_of("", rows, _LEFT) for rows in tables.values()))


def run_labels(folders: Sequence[Path]) -> list[str]:
    """A short name for each run: its path without the part that all share. The same folder given twice is numbered."""
    paths = [folder.absolute().parts for folder in folders]
    shared = sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))
    named: list[str] = []
    for parts in paths:
        # Of a single run, or one inside another's folder, nothing would be left.
        label = printable("/".join(parts[shared:] or parts[-2:]))
        again = sum(other == label or other.startswith(f"{label} #") for other in named)
        named.append(f"{label} #{again + 1}" if again else label)
    return named


_MUST_AGREE = {
    "metrics": "the metrics",
    "objectives": "the objectives",
    "reward": "the reward function",
    "knobs": "the knobs",
    "env_params": "the env_params",
    "spaces": "the server's spaces",
}


def _warnings(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Differences that make the numbers hard to compare: within each experiment, or over all if none is in two runs."""
    started = [entry for entry in entries if entry["state"] != "not started"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in started:
        groups.setdefault(entry["experiment"], []).append(entry)
    shared = {name: group for name, group in groups.items() if len(group) > 1}
    warnings: list[str] = []
    for name, group in shared.items() if shared else [("the experiments", started)]:
        if len({entry["live"] is None for entry in group}) > 1:
            why = "a return can't be compared with a reward of settings"
            warnings.append(f"{name}: some are live and some are not; {why}")
            continue
        differs = [what for key, what in _MUST_AGREE.items() if any(entry[key] != group[0][key] for entry in group)]
        if differs:
            listed = differs[0] if len(differs) == 1 else f"{', '.join(differs[:-1])} and {differs[-1]}"
            warnings.append(f"{name}: {listed} differ, so the rewards may mean different things")
    exceeding = [entry for entry in entries if entry["best"] is not None and entry["best"]["violation"]]
    warnings += [f"{one['run']}: no measured setting of {one['experiment']} keeps the limits" for one in exceeding]
    return warnings
