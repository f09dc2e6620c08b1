"""``tunegym compare``: several runs in one table and one page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.measure import Measurement
from rich.table import Table

from tunegym.app.comparing import compare, write_comparison
from tunegym.cli.console import console, print_json
from tunegym.cli.errors import guarded
from tunegym.cli.report import warn
from tunegym.cli.tables import number, pairs
from tunegym.core.escaping import escaped

_RIGHT = ("trials", "measured", "best", "samples", "to best", "total")


def main(folders: list[Path], output: Path, *, as_json: bool) -> int:
    """One table of all experiments on stdout, and a page with the curves."""
    return guarded(lambda: _compare(folders, output, as_json=as_json))


def _compare(folders: list[Path], output: Path, *, as_json: bool) -> int:
    document = compare(folders)
    for warning in document["warnings"]:
        warn(warning)
    write_comparison(output, document)
    if as_json:
        print_json({"warnings": document["warnings"], "entries": document["entries"]})
        return 0
    out = console()
    table = Table()
    for title in (
        "run",
        "experiment",
        "agent",
        "trials",
        "measured",
        "best",
        "samples",
        "settings",
        "to best",
        "total",
    ):
        table.add_column(title, justify="right" if title in _RIGHT else "left", overflow="fold")
    for entry in document["entries"]:
        table.add_row(*_cells(entry))
    if not out.is_terminal:  # a pipe or a file has no width to keep to
        out.width = max(out.width, Measurement.get(out, out.options.update_width(10_000), table).maximum)
    out.print(table, markup=False)
    out.print(f"page: {output}", markup=False, soft_wrap=True)
    return 0


def _cells(entry: Mapping[str, Any]) -> list[str]:
    best = entry["best"]
    names = [escaped(entry[key] or "") for key in ("run", "experiment", "agent")]
    head = [*names, str(entry["trials"]), str(entry["measured"])]
    if best is None:
        return [*head, "none", "0", "", "", _seconds(entry["total_s"])]
    spread = "" if best["reward_spread"] is None else f" ±{best['reward_spread']:.2g}"
    found = "" if best["found_s"] is None else _seconds(best["found_s"])
    mark = "" if best["note"] is None else f"\n{best['note']}"
    shown = [f"{number(best['reward'])}{spread}{mark}", str(best["samples"]), _settings(best["action"])]
    return [*head, *shown, found, _seconds(entry["total_s"])]


def _settings(action: Mapping[str, Any]) -> str:
    """One a line, floats in as many digits as one reads: the table is for comparing, ``best.toml`` for using."""
    short = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in action.items()}
    return "\n".join(pairs({name: value}) for name, value in short.items())


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"
