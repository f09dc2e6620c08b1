"""``tunegym verify``: check scenario files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import typer

from tunegym.app.catalog import Catalog
from tunegym.cli.terminal import BAD_CONFIGURATION, guarded, show
from tunegym.config.load import load
from tunegym.core.errors import ConfigError, Problem
from tunegym.core.text import escaped, escaped_lines
from tunegym.tuning.reports.results import SCENARIO
from tunegym.tuning.stores.reader import JOURNAL


def main(paths: list[Path]) -> int:
    """Check every file; all of them, even when one is bad."""
    return guarded(lambda: _verify(paths))


def _verify(paths: list[Path]) -> int:
    bad = 0
    files: dict[Path, None] = {}
    for path in paths:
        try:
            files.update(dict.fromkeys(scenario_files([path])))
        except ConfigError as error:  # a folder without scenarios: the others are checked all the same
            bad += 1
            show(error)
    checked = len(files) + bad
    for file in files:
        try:
            scenario = load(file, Catalog())
        except ConfigError as error:
            bad += 1
            show(error)
        else:
            for warning in scenario.warnings:
                typer.echo(escaped_lines(f"warning: {file}: {warning}"), err=True)
            count = len(scenario.experiments)
            typer.echo(escaped(f"ok: {file} ({count} experiment{'' if count == 1 else 's'})"))
    if bad:
        typer.echo(f"{bad} of {checked} {'is' if bad == 1 else 'are'} bad", err=True)
    return BAD_CONFIGURATION if bad else 0


def scenario_files(paths: Iterable[str | Path]) -> list[Path]:
    """The scenarios under ``paths``: files as they are, folders searched for ``*.toml``, each once.

    Hidden folders and the results of runs are left out. A path that doesn't exist is kept: loading it says what is
    wrong.

    Raises:
        ConfigError: a folder has no ``.toml`` in it.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            found[path] = None
            continue
        files = _search(path)
        if not files:
            hint = "name a folder that holds scenarios, or start one with: tunegym init"
            raise ConfigError(str(path), [Problem("", "no scenario (*.toml) in this folder", hint=hint)])
        found.update(dict.fromkeys(files))
    return list(found)


def _search(folder: Path) -> list[Path]:
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        if Path(parent) != folder and _is_run(Path(parent), folders):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(parent, name) for name in sorted(names) if name.endswith(".toml")]
    return files


def _is_run(folder: Path, below: list[str]) -> bool:
    """Whether this is a run's results folder: a copy of its scenario beside its experiments' journals."""
    return (folder / SCENARIO).is_file() and any((folder / name / JOURNAL).is_file() for name in below)
