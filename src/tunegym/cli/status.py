"""``tunegym status``: how far a run is."""

from __future__ import annotations

from pathlib import Path

from tunegym.app.report import status
from tunegym.cli.terminal import guarded, print_json, print_table, say
from tunegym.core.text import escaped
from tunegym.tuning.model.summary import table_of
from tunegym.tuning.model.values import printable


def main(folder: Path, *, as_json: bool) -> int:
    """Show every experiment's state."""
    return guarded(lambda: _status(folder, as_json=as_json))


def _status(folder: Path, *, as_json: bool) -> int:
    run, experiments, failure = status(folder)
    if as_json:
        facts = [one.facts for one in experiments]
        print_json({"folder": printable(str(run)), "failure": failure, "experiments": facts})
        return 0
    title = escaped(str(run))
    for unit in dict.fromkeys(one.unit for one in experiments):
        rows = [one.row for one in experiments if one.unit == unit]
        print_table(table_of(title, rows, left=list(rows[0])), fold=True)
        title = ""
    for one in experiments:
        say(*one.notes)
    if failure is not None:
        say(f"failure: {escaped(failure)}")
    return 0
