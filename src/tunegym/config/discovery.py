"""Which files are scenarios, when a user names files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tunegym.core.errors import ConfigError, Problem
from tunegym.tuning.reports.results import SCENARIO
from tunegym.tuning.stores.reader import JOURNAL


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
