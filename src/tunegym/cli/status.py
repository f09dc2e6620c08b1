"""``tunegym status``: where a run stands."""

from __future__ import annotations

from pathlib import Path

from tunegym.app.standing import standing
from tunegym.cli.console import console, print_json
from tunegym.cli.errors import guarded
from tunegym.cli.tables import rich_table
from tunegym.core.escaping import escaped
from tunegym.tuning.model.summary import table_of
from tunegym.tuning.model.values import printable


def main(folder: Path, *, as_json: bool) -> int:
    """Show every experiment's state."""
    return guarded(lambda: _status(folder, as_json=as_json))


def _status(folder: Path, *, as_json: bool) -> int:
    run, experiments, failure = standing(folder)
    if as_json:
        folder_name = printable(str(run))
        print_json({"folder": folder_name, "failure": failure, "experiments": [one.facts for one in experiments]})
        return 0
    out = console()
    title = escaped(str(run))
    for unit in dict.fromkeys(one.unit for one in experiments):
        rows = [one.row for one in experiments if one.unit == unit]
        table = table_of(title, rows)
        out.print(rich_table(table, left=table.columns))
        title = ""
    for note in (note for one in experiments for note in one.notes):
        out.print(note, soft_wrap=True)
    if failure is not None:
        out.print(f"failure: {escaped(failure)}", soft_wrap=True)
    return 0
