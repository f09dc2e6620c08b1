"""The commands that read results: ``status``, ``recommend``, ``report``, ``compare`` and ``list runs``."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import Any

import msgspec

from tunegym.app import report as reports
from tunegym.cli.terminal import chosen_run, console, note, print_json, print_table, say, warn
from tunegym.config.load import value_of
from tunegym.core.errors import ConfigError, Problem, StoreError
from tunegym.core.files import dump_toml
from tunegym.core.text import escaped, printable
from tunegym.tuning.inference.recommendation import WHERE, Recommendation
from tunegym.tuning.inference.wording import context_sentences, drift_notes
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.summary import Table, table_of
from tunegym.tuning.model.values import Action, counted, spelled
from tunegym.tuning.reports import page, results
from tunegym.tuning.reports.verdicts import toml_of


def status(folder: Path, *, as_json: bool) -> int:
    """Show every experiment's state."""
    run = results.load(chosen_run(folder))
    scenario, _ = reports.scenario_of(run.folder)
    totals = {one.name: one.most_trials for one in scenario.experiments} if scenario is not None else {}
    experiments = [one.counts(totals.get(name)) for name, one in run.experiments.items()]
    if (failure := reports.failure_of(run.folder)) is not None:
        failure = next(iter(failure.splitlines()), f"see {run.folder / reports.FAILURE}")
    if as_json:
        facts = [one.facts for one in experiments]
        print_json({"folder": printable(str(run.folder)), "failure": failure, "experiments": facts})
        return 0
    title = escaped(str(run.folder))
    for unit in dict.fromkeys(one.unit for one in experiments):
        rows = [one.row for one in experiments if one.unit == unit]
        print_table(table_of(title, rows, left=list(rows[0])))
        title = ""
    for one in experiments:
        say(*one.notes)
    if failure is not None:
        say(f"failure: {escaped(failure)}")
    return 0


def compare(folders: list[Path], output: Path, *, as_json: bool) -> int:
    """Print a table of all experiments, and write a page with the curves."""
    if len(folders) == 1:  # of runs: the newest, and the one before it of the same scenario
        *others, newest = results.find_runs(folders[0])
        folders = [*[run for run in others if run.parent == newest.parent][-1:], newest]
        if others:
            note("runs: " + ", ".join(map(str, folders)))
    found = page.compare([results.load(chosen_run(folder)) for folder in folders])
    for warning in found.facts["warnings"]:
        warn(warning)
    runs = len({entry["folder"] for entry in found.facts["entries"]})
    page.write_page(output, f"{counted(runs, 'run')} compared", found.facts, hint="choose another place with --output")
    if as_json:
        print_json({key: found.facts[key] for key in ("warnings", "entries")})
        return 0
    for table in found.tables:
        print_table(table)
    say(f"page: {output}")
    return 0


def report(folder: Path, *, show: bool, as_json: bool) -> int:
    """Write ``report.html``; its path on stdout, or its facts as JSON."""
    run = results.load(chosen_run(folder))
    document = reports.document_of(run)
    broken = [one["error"] for one in document["experiments"] if "error" in one]
    if broken:
        raise StoreError(broken[0])
    path = None
    try:
        path = reports.write_document(run, document)
    except StoreError as error:
        if not as_json:
            raise
        warn(error.message)  # the numbers can still be printed
    if as_json:
        facts = {key: document[key] for key in ("folder", "scenario", "failure")}
        shown = [{key: one[key] for key in one if key != "page"} for one in document["experiments"]]
        print_json({**facts, "experiments": shown})
    else:
        say(str(path))
    if show and path is not None:
        try:
            opened = webbrowser.open(path.absolute().as_uri())
        except webbrowser.Error:
            opened = False
        if not opened:
            warn(f"no browser was found; open {path} yourself")
    return 0


def recommend(folder: Path, context: list[str], experiment: str | None, *, as_toml: bool, as_json: bool) -> int:
    """Show the settings to use, and how sure one can be of them."""
    if as_toml and as_json:
        raise ConfigError("tunegym recommend", [Problem("", "--toml or --json, not both", hint="leave one out")])
    folder = chosen_run(folder)
    asked: Any = results.chosen(folder, experiment)
    recommendation = asked.recommend(_context(context))
    if as_json:
        print_json({**recommendation.as_dict(), "answer": msgspec.to_builtins(asked.answer)})
    elif as_toml:
        fixed = _fixed(results.find_run(folder), recommendation.experiment)
        console().out(dump_toml(_document(recommendation, fixed)).rstrip("\n"), highlight=False)
    else:
        say(f"{recommendation.experiment}: {recommendation.sentence}")
        if not recommendation.context:
            say(*(f"  {sentence}" for sentence in context_sentences(asked.answer)))
        print_table(_settings_table(recommendation, asked.answer.baseline))
    if recommendation.note is not None:
        note(f"note: {recommendation.note}")
    for drifted in drift_notes(asked.answer):
        warn(drifted)
    return 0


def list_runs(folder: Path, *, as_json: bool) -> int:
    """Show every run in a folder, the newest last. Its state is that of the experiment that needs most attention."""
    order = ("unreadable", "running", "failed", "interrupted", "not started", "finished")
    rows: list[dict[str, Any]] = []
    for run in results.find_runs(folder):
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(results.started_at(run)))
        row = {"scenario": "", "started": started, "state": order[0], "trials": 0, "path": printable(str(run))}
        try:
            found = results.load(run)
            experiments = found.experiments.values()
            states = [one.state for one in experiments] if reports.failure_of(run) is None else ["failed"]
            row |= {"scenario": str(found.scenario.get("name", "")), "state": min(states, key=order.index)}
            row["trials"] = sum(one.statuses.total() for one in experiments)
        except StoreError as error:  # the others must still be listed
            warn(error.message)
        rows.append(row)
    if as_json:
        print_json(rows)
        return 0
    cells = [{name: escaped(str(value)) for name, value in row.items()} for row in rows]
    print_table(table_of("", cells, left=("scenario", "started", "state", "path")))
    return 0


def _context(texts: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` strings as a context."""
    context: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        try:
            if not equals or not name:
                raise ValueError("this is not KEY=VALUE")
            if name in context:
                raise ValueError(f"{name} is given twice")
            context[name] = value_of(value.strip())
        except ValueError as error:
            problem = Problem("", str(error), spelled(text), hint="write for example --context load=0.5")
            raise ConfigError(WHERE, [problem]) from error
    return context


def _settings_table(recommendation: Recommendation, baseline: Action | None) -> Table:
    """Every knob with its value, and with a baseline what it is today."""
    rows = []
    for name, value in recommendation.action.items():
        row = {"knob": escaped(name), "value": spelled(value)}
        if baseline is not None:
            row["today"] = spelled(baseline[name]) if name in recommendation.changes else "the same"
        rows.append(row)
    return table_of("", rows, ("knob", "value", "today"))


def _document(recommendation: Recommendation, fixed: dict[str, Any]) -> dict[str, Any]:
    """The table ``best`` of a ``best.toml``, with the context that was asked for."""
    assert recommendation.verdict.chosen is not None
    best = toml_of(recommendation.verdict.chosen, recommendation.verdict)
    best.pop("context", None)
    more = {"note": recommendation.note, "fixed": fixed, "context": nested(recommendation.context)}
    return {"best": best | {key: value for key, value in more.items() if value}}


def _fixed(run: Path, experiment: str) -> dict[str, Any]:
    """The fixed parameters, as far as the scenario can still be loaded."""
    scenario, why = reports.scenario_of(run)
    if scenario is None:
        warn(f"the fixed parameters are not known: {why}")
        return {}
    return nested(next(one.space.fixed for one in scenario.experiments if one.name == experiment))
