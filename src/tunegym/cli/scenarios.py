"""The commands about scenario files: ``init``, ``verify``, ``dry-run`` and ``list``."""

from __future__ import annotations

import inspect
import os
import shlex
from importlib import resources
from pathlib import Path

from tunegym.app.catalog import Catalog
from tunegym.app.kinds import kind_of
from tunegym.app.run import as_scenario
from tunegym.cli.results import list_runs
from tunegym.cli.terminal import BAD_CONFIGURATION, note, print_json, say, show, warn
from tunegym.config.load import is_system_file, load, load_system
from tunegym.core.errors import ConfigError, Problem, TunegymError, UnresolvedReferenceError
from tunegym.core.text import escaped
from tunegym.tuning.model.values import counted
from tunegym.tuning.reports.results import RESULTS, SCENARIO
from tunegym.tuning.stores.reader import JOURNAL

STARTERS: dict[str, tuple[str, ...]] = {"command": (), "python": ("workload.py",), "live": ()}
"""The files that each starter needs beside its scenario."""


def init(words: list[str], kind: str, *, force: bool) -> int:
    """Write a starter scenario that runs as it is. One that is there unchanged is left alone."""
    if kind not in STARTERS:
        names = ", ".join(STARTERS)
        problem = Problem("", "there is no starter for this workload", kind, names, hint="use one of these")
        raise ConfigError("--workload", [problem])
    path = Path(name := " ".join(words))
    if path.is_dir() or not path.suffix or name.endswith("/"):
        path = path / "scenario.toml"
    if len(words) > 1:
        hint = f"write tunegym init {shlex.quote(str(path))}"
        raise ConfigError("tunegym init", [Problem("", "this is not one file or folder", name, hint=hint)])
    targets = {path: f"{kind}.toml"} | {path.parent / name: name for name in STARTERS[kind]}
    starters = resources.files("tunegym.cli") / "starters"
    texts = {target: (starters / source).read_bytes() for target, source in targets.items()}
    taken = [str(one) for one, text in texts.items() if one.exists() and (one.is_dir() or one.read_bytes() != text)]
    if taken and not force:
        raise TunegymError(f"{', '.join(taken)} exists already", hint="choose another path, or use --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for target, text in texts.items():
            target.write_bytes(text)
    except OSError as error:
        raise TunegymError(f"{path} can't be written: {error.strerror}", hint="choose another path") from error
    quoted = shlex.quote(str(path))
    say(escaped("wrote " + ", ".join(str(target) for target in targets)))
    say(f"next: tunegym dry-run {quoted}   (what would run)", f"      tunegym run {quoted}")
    return 0


def dry_run(
    path: Path, overrides: list[str], slots: int | None, system: Path | None, count: int, *, as_json: bool
) -> int:
    """Show every experiment's plan."""
    settings = [*overrides, *([] if slots is None else [f"system.slots={slots}"])]
    scenario = as_scenario(path, settings, system=system)
    plans = [kind_of(one).plan(scenario, one, count) for one in scenario.experiments]
    folder = str(Path(RESULTS, scenario.name).absolute())
    if as_json:
        print_json({"scenario": scenario.name, "results": folder, "experiments": [plan.document for plan in plans]})
        return 0
    for warning in scenario.warnings:
        warn(warning)
    for plan in plans:
        say(*plan.lines)
    say(escaped(f"results would go to {folder}/<time>"))
    return 0


def list_names(kind: str, folder: Path | None, *, as_json: bool) -> int:
    """Show the names of a kind, where they come from, and what they are; or the runs in a folder."""
    catalog = Catalog()
    if kind == "runs":
        return list_runs(folder or Path(RESULTS), as_json=as_json)
    if kind not in catalog.kinds() or folder is not None:
        what = "unknown kind" if folder is None else "only runs are listed from a folder"
        names = ", ".join(["runs", *catalog.kinds()])
        raise ConfigError("tunegym list", [Problem("", what, kind, names, hint="use one of these")])
    rows = [
        {"name": name, "reference": catalog.where(kind, name), "about": _about(catalog, kind, name)}
        for name in catalog.names(kind)
    ]
    if as_json:
        print_json(rows)
        return 0
    width = max(len(row["name"]) for row in rows)
    say(*(escaped(f"{row['name']:<{width}}  {row['about']}") for row in rows))
    return 0


def _about(catalog: Catalog, kind: str, name: str) -> str:
    """The first sentence of its docstring; a plugin that can't be imported says so instead."""
    try:
        text = inspect.getdoc(catalog.get(kind, name)) or ""
    except UnresolvedReferenceError as error:  # the others must still be listed
        return f"({error.message})"
    return text.split("\n\n")[0].replace("\n", " ")


def verify(paths: list[Path]) -> int:
    """Check every file; all of them, even when one is bad."""
    bad = checked = 0
    files: dict[Path, None] = {}
    for path in paths:
        found = [path] if not path.is_dir() else _search(path)
        if not found:
            hint = "name a folder that holds scenarios, or start one with: tunegym init"
            show(ConfigError(str(path), [Problem("", "no scenario (*.toml) in this folder", hint=hint)]))
            bad, checked = bad + 1, checked + 1
        files.update(dict.fromkeys(found))
    for file in files:
        checked += 1
        try:
            if is_system_file(file):
                load_system(file, Catalog())
                say(escaped(f"ok: {file} (a system file)"))
                continue
            scenario = load(file, Catalog())
        except ConfigError as error:
            bad += 1
            show(error)
            continue
        for warning in scenario.warnings:
            warn(f"{file}: {warning}")
        say(escaped(f"ok: {file} ({counted(len(scenario.experiments), 'experiment')})"))
    if bad:
        note(f"{bad} of {checked} {'is' if bad == 1 else 'are'} bad")
    return BAD_CONFIGURATION if bad else 0


def _search(folder: Path) -> list[Path]:
    """The scenarios in a folder. Hidden folders and the results of runs are left out."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        is_run = SCENARIO in names and any((here / name / JOURNAL).is_file() for name in folders)
        if is_run and here != folder:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [here / name for name in sorted(names) if name.endswith(".toml")]
    return files
