"""``tunegym compare``: several runs in one table and one page."""

from __future__ import annotations

from pathlib import Path

from rich.measure import Measurement

from tunegym.app.comparing import compare, write_comparison
from tunegym.cli.console import console, print_json
from tunegym.cli.errors import guarded
from tunegym.cli.report import warn
from tunegym.cli.tables import rich_table


def main(folders: list[Path], output: Path, *, as_json: bool) -> int:
    """One table of all experiments on stdout, and a page with the curves."""
    return guarded(lambda: _compare(folders, output, as_json=as_json))


def _compare(folders: list[Path], output: Path, *, as_json: bool) -> int:
    found = compare(folders)
    warnings, entries = found.facts["warnings"], found.facts["entries"]
    for warning in warnings:
        warn(warning)
    write_comparison(output, found)
    if as_json:
        print_json({"warnings": warnings, "entries": entries})
        return 0
    out = console()
    for table in found.tables:
        made = rich_table(table)
        if not out.is_terminal:  # a pipe or a file has no width to keep to
            out.width = max(out.width, Measurement.get(out, out.options.update_width(10_000), made).maximum)
        out.print(made, markup=False)
    out.print(f"page: {output}", markup=False, soft_wrap=True)
    return 0
