"""Several runs side by side, as plain data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tunegym.tuning.model.values import printable
from tunegym.tuning.reports.columns import labels
from tunegym.tuning.reports.live_comparison import live_entry
from tunegym.tuning.reports.live_results import LiveResults
from tunegym.tuning.reports.results import ExperimentResults, Results
from tunegym.tuning.reports.summary import Summary, summarise

EXCEEDED = "limits exceeded"
"""Beside a reward that comes with metrics outside the objectives' limits."""


def comparison(runs: Sequence[Results]) -> dict[str, Any]:
    """Every experiment of every run with its best and how the best was reached, and warnings of what differs."""
    entries = [
        {
            "run": label,
            "folder": printable(str(run.folder.absolute())),
            **_entry(experiment, run.declared(experiment.name)),
        }
        for label, run in zip(run_labels([run.folder for run in runs]), runs, strict=True)
        for experiment in run.experiments.values()
    ]
    return {"kind": "comparison", "written_at": time.time(), "warnings": _warnings(entries), "entries": entries}


def run_labels(folders: Sequence[Path]) -> list[str]:
    """A short name for each run: its path without what all of them share. The same folder given twice is numbered."""
    paths = [folder.absolute().parts for folder in folders]
    shared = sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))
    named: list[str] = []
    for parts in paths:
        # Of a single run, or one inside another's folder, nothing would be left.
        label = printable("/".join(parts[shared:] or parts[-2:]))
        again = sum(other == label or other.startswith(f"{label} #") for other in named)
        named.append(f"{label} #{again + 1}" if again else label)
    return named


def _entry(results: ExperimentResults, declared: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(results, LiveResults):
        return live_entry(results, declared)
    summary = summarise(results, declared)
    facts = summary.facts
    best = facts["best"]
    if best is not None:
        best["note"] = EXCEEDED if best["violation"] else None
        best["labels"] = {name: labels([value])[0] for name, value in best["action"].items()}
    head = results.journal.head or {}
    return {
        "experiment": facts["name"],
        "state": facts["state"],
        "agent": facts["agent"],
        "trials": facts["trials"]["done"],
        "measured": facts["trials"]["statuses"].get("measured", 0),
        "best": best,
        "total_s": facts["time"]["wall_s"],
        "metrics": facts["metrics"],
        "objectives": facts["objectives"],
        "reward": declared.get("agent_reward_function", "identity"),
        "knobs": head.get("knobs", {}),
        "env_params": head.get("env_params", {}),
        "spaces": None,
        "live": None,
        "curve": _curve(results, summary),
    }


def _curve(results: ExperimentResults, summary: Summary) -> dict[str, Any]:
    """Where the best so far rises, by trial and by time, and where each ends."""
    times = summary.times
    rewards = {trial.number: trial.reward for trial in results if trial.measured}
    timed = sorted((times[number], reward) for number, reward in rewards.items() if number in times)
    return {
        "trials": _rises(sorted(rewards.items())),
        "seconds": _rises(timed),
        "last_trial": max(times, default=0),
        "last_s": max(times.values(), default=0.0),
    }


def _rises(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at, reward in points:
        if not found or reward > found[-1][1]:
            found.append((at, reward))
    return found


_MUST_AGREE = {
    "metrics": "the metrics",
    "objectives": "the objectives",
    "reward": "the reward function",
    "knobs": "the knobs",
    "env_params": "the env_params",
    "spaces": "the server's spaces",
}


def _warnings(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes the numbers hard to compare: within each experiment, or over all if none is in two runs."""
    started = [entry for entry in entries if entry["state"] != "not started"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in started:
        groups.setdefault(entry["experiment"], []).append(entry)
    shared = {name: group for name, group in groups.items() if len(group) > 1}
    told: list[str] = []
    for name, group in shared.items() if shared else [("the experiments", started)]:
        if len({entry["live"] is None for entry in group}) > 1:
            told.append(f"{name}: some are live and some are not; a return can't be compared with a reward of settings")
            continue
        differs = [what for key, what in _MUST_AGREE.items() if any(entry[key] != group[0][key] for entry in group)]
        if differs:
            told.append(f"{name}: {_listed(differs)} differ, so the rewards may mean different things")
    exceeding = [entry for entry in entries if entry["best"] is not None and entry["best"]["violation"]]
    told += [f"{one['run']}: no measured setting of {one['experiment']} keeps the limits" for one in exceeding]
    return told


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
