"""``tunegym compare``: several runs in one table and one page."""

from __future__ import annotations

from pathlib import Path

from tunegym.app.report import compare, write_comparison
from tunegym.cli.terminal import guarded, print_json, print_table, say, warn


def main(folders: list[Path], output: Path, *, as_json: bool) -> int:
    """Print a table of all experiments, and write a page with the curves."""
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
    for table in found.tables:
        print_table(table, fold=True)
    say(f"page: {output}")
    return 0
