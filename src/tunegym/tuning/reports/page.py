"""``report.html`` and ``compare.html``: one file each that opens offline, with its style, script and data inside.

``run_document`` is the data of the one, ``compare`` of the other; ``render`` makes a page of either.
"""

from __future__ import annotations

import hashlib
import html
import re
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from tunegym.core.errors import StoreError
from tunegym.core.files import write_atomic
from tunegym.core.text import escaped, printable
from tunegym.tuning.model.summary import Comparison, table_of
from tunegym.tuning.model.values import labels, masked
from tunegym.tuning.reports.charts import rollout_notes
from tunegym.tuning.reports.results import SCENARIO, Results, RunResults

REPORT = "report.html"

_STYLE = "style.css"
_BASE = ("base.js", "scales.js", "ranges.js", "plot.js", "controls.js")
_TRIALS = ("answer.js", "best.js", "policy.js", "rewards.js", "learning.js", "knobs.js", "contour.js", "parallel.js")
_LIVE = ("lines.js", "live.js", "live_compare.js")
_SCRIPTS = (*_BASE, *_TRIALS, "front.js", "outcomes.js", "table.js", *_LIVE, "run.js", "compare.js", "start.js")
_ESCAPED = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_COMMENT = re.compile(r"^ *//.*\n", re.MULTILINE)
_INDENT = re.compile(r"^ +", re.MULTILINE)


@dataclass(frozen=True)
class Known:
    """Facts about an experiment that only the scenario has."""

    total: int | None = None  # how many trials it has at most; None if that is open
    fixed: Mapping[str, Any] = field(default_factory=dict)  # the parameters that are not tuned
    note: str | None = None  # why some of this is missing


def run_document(results: RunResults, known: Mapping[str, Known], failure: str | None) -> dict[str, Any]:
    """Everything that a run's page shows, without passwords in addresses.

    A broken journal is shown as an error of its experiment.
    """
    share = 1 / max(1, len(results.experiments))
    return {
        "kind": "run",
        "folder": printable(str(results.folder.absolute())),
        "scenario": str(results.scenario.get("name", "")),
        "written_at": time.time(),
        "failure": None if failure is None else masked(failure),
        "source": _source(results),
        "experiments": [_experiment(one, known.get(name, Known()), share) for name, one in results.experiments.items()],
    }


def _source(results: RunResults) -> str:
    """The scenario as it was run; its file keeps the passwords that are left out here."""
    try:
        return masked((results.folder / SCENARIO).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def _experiment(results: Results, known: Known, share: float) -> dict[str, Any]:
    """One experiment's facts, and under ``page`` the data that only the page needs."""
    try:
        facts = results.summary(known.total).facts
        charts = results.charts(known.fixed, share)
    except StoreError as error:
        return {"name": results.name, "state": "broken", "error": str(error), "page": None}
    fixed = {name: masked(labels([value])[0]) for name, value in known.fixed.items()}
    notes = [*map(masked, [*facts["damage"], *([known.note] if known.note else [])]), *charts["notes"]]
    notes += rollout_notes(results.folder)
    return {**facts, "page": {**charts, "notes": notes, "fixed": fixed}}


# several runs -------------------------------------------------------------------------------------------

_LEFT = ("run", "experiment", "agent", "settings")
_NAMES = ("run", "experiment", "agent")


def compare(runs: Sequence[RunResults]) -> Comparison:
    """Every experiment of every run, how its best was reached, and warnings of what differs."""
    peers: dict[str, list[Results]] = {}
    for name, one in [pair for run in runs for pair in run.experiments.items()]:
        peers.setdefault(name, []).append(one)
    entries: list[dict[str, Any]] = []
    tables: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for label, run in zip(run_labels([run.folder for run in runs]), runs, strict=True):
        for experiment in run.experiments.values():
            facts, cells = experiment.compared(peers[experiment.name])
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
    "goals": "the goals",
    "reward": "the reward function",
    "knobs": "the knobs",
    "env_params": "the env_params",
    "contexts": "the contexts that were measured",
    "baseline": "the baselines",
    "over_contexts": "the ways in which contexts count together",
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


# the page -------------------------------------------------------------------------------------------------


def render(title: str, data: Mapping[str, Any]) -> str:
    """The page of ``data``. Nothing in the data can end the script that holds it, nor become markup.

    Its policy names the one script and the one style that a browser may use, by their hashes.
    """
    style, script = _asset(_STYLE), _script()
    parts = {"title": html.escape(title), "style": style, "data": embedded(data), "script": script}
    parts |= {"style_hash": _hash(style), "script_hash": _hash(script)}
    # In one go: nothing in the data is taken for a slot.
    return _SLOT.sub(lambda slot: parts[slot[1]], _asset("page.html"))


def embedded(data: Mapping[str, Any]) -> str:
    """JSON without any character that HTML or JavaScript could take for something else."""
    text = msgspec.json.encode(data)
    for plain, safe in _ESCAPED.items():
        text = text.replace(plain, safe)
    return text.decode()


@cache
def _asset(name: str) -> str:
    return (resources.files("tunegym.tuning.reports") / "html" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """All scripts in one, without comments and indents; no text in them goes over several lines."""
    parts = "\n".join(_INDENT.sub("", _COMMENT.sub("", _asset(name))) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _hash(text: str) -> str:
    """As a content security policy names an element: by the text in it, which must have no carriage returns."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def write_page(path: Path, title: str, data: Mapping[str, Any], hint: str) -> Path:
    """Write the page of ``data``, whole or not at all.

    Raises:
        StoreError: it can't be written; ``hint`` says what to do then.
    """
    try:
        write_atomic(path, render(title, data))
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror}", hint=hint) from error
    return path
