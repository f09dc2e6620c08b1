"""What a run says when it is over."""

from __future__ import annotations

import shlex
from pathlib import Path

from tunegym.cli.console import console
from tunegym.cli.tables import table_or_list
from tunegym.core.errors import TunegymError
from tunegym.tuning.model.summary import Summary
from tunegym.tuning.reports.page import REPORT
from tunegym.tuning.reports.results import load


def show_results(folder: Path) -> None:
    """The best settings of every experiment on stdout, and where everything is."""
    out = console()
    try:
        results = load(folder)
        for experiment in results.experiments.values():
            if experiment.path.exists():
                _show(experiment.summary())
    except (TunegymError, OSError) as error:  # the run's own error is the one that counts
        console(stderr=True).print(f"warning: the results can't be shown: {error}", markup=False, soft_wrap=True)
    out.print(f"results: {_short(folder)}", markup=False, soft_wrap=True)
    if (folder / REPORT).is_file():
        out.print(f"report: {_short(folder / REPORT)}", markup=False, soft_wrap=True)


def _show(summary: Summary) -> None:
    out = console()
    if summary.table is not None:
        shown = table_or_list(summary.table, out.width)
        out.print(shown, markup=False, soft_wrap=isinstance(shown, str))
    for line in summary.lines:
        out.print(line, markup=False, soft_wrap=True)


def say_how_to_resume(folder: Path, *, interrupted: bool) -> None:
    """The command that goes on from here."""
    why = "interrupted" if interrupted else "not finished"
    console(stderr=True).print(
        f"{why}; to go on: tunegym resume {shlex.quote(_short(folder))}", markup=False, soft_wrap=True
    )


def _short(folder: Path) -> str:
    """Relative to where the user is, when it lies below."""
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
