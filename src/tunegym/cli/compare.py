"""``tunegym compare``: several runs in one table and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from tunegym.app.comparing import compare, write_comparison
from tunegym.cli.console import console, print_json
from tunegym.cli.errors import guarded
from tunegym.cli.report import warn
from tunegym.cli.tables import number, pairs, rate
from tunegym.core.escaping import escaped

_TITLES = ("run", "experiment", "agent", "trials", "measured", "best", "samples", "settings", "to best", "total")
_LIVE = ("steps", "measured", "episodes", "mean return", "last", "steps/s", "total")
_LIVE_TITLES = ("run", "experiment", "agent", *_LIVE)
_LEFT = ("run", "experiment", "agent", "settings")


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
    entries = document["entries"]
    live = [entry for entry in entries if entry["live"] is not None]
    if len(live) < len(entries):
        _print_table(out, _TITLES, [_cells(entry) for entry in entries if entry["live"] is None])
    if live:
        _print_table(out, _LIVE_TITLES, [_live_cells(entry) for entry in live])
    out.print(f"page: {output}", markup=False, soft_wrap=True)
    return 0


def _print_table(out: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table()
    for title in titles:
        table.add_column(title, justify="left" if title in _LEFT else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    if not out.is_terminal:  # a pipe or a file has no width to keep to
        out.width = max(out.width, Measurement.get(out, out.options.update_width(10_000), table).maximum)
    out.print(table, markup=False)


def _live_cells(entry: Mapping[str, Any]) -> list[str]:
    live = entry["live"]
    names = [escaped(entry[key] or "") for key in ("run", "experiment", "agent")]
    spread = "" if live["return_spread"] is None else f" ±{live['return_spread']:.2g}"
    mean = "none" if live["mean_return"] is None else f"{number(live['mean_return'])}{spread}"
    pace = "" if live["steps_per_s"] is None else rate(live["steps_per_s"])
    counts = [str(entry["trials"]), str(entry["measured"]), str(live["episodes"])]
    return [*names, *counts, mean, str(live["mean_return_over"]), pace, _seconds(entry["total_s"])]


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
