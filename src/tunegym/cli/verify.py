"""``tunegym verify``: is a scenario right?"""

from __future__ import annotations

from pathlib import Path

import typer

from tunegym.app.catalog import Catalog
from tunegym.cli.terminal import BAD_CONFIGURATION, guarded, show
from tunegym.config.discovery import scenario_files
from tunegym.config.load import load
from tunegym.core.errors import ConfigError
from tunegym.core.escaping import escaped, escaped_lines


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
