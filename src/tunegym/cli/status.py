"""``tunegym status``: where a run stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from tunegym.app.standing import Standing, standing
from tunegym.cli.console import console, print_json
from tunegym.cli.errors import guarded
from tunegym.cli.tables import number, reached
from tunegym.core.escaping import escaped
from tunegym.tuning.model.values import printable


def main(folder: Path, *, as_json: bool) -> int:
    """Show every experiment's state."""
    return guarded(lambda: _status(folder, as_json=as_json))


def _status(folder: Path, *, as_json: bool) -> int:
    run, experiments, failure = standing(folder)
    if as_json:
        folder_name = printable(str(run))
        print_json({"folder": folder_name, "failure": failure, "experiments": [_as_dict(one) for one in experiments]})
        return 0
    out = console()
    title = escaped(str(run))
    live = [one for one in experiments if one.live is not None]
    if len(live) < len(experiments):
        out.print(_table(title, [one for one in experiments if one.live is None]))
    if live:
        out.print(_live_table(title if len(live) == len(experiments) else "live", live))
    for one in live:
        if told := _unrecorded(one):
            out.print(f"{escaped(one.name)}: {told}", soft_wrap=True)
    if failure is not None:
        out.print(f"failure: {escaped(failure)}", soft_wrap=True)
    return 0


def _table(title: str, experiments: Sequence[Standing]) -> Table:
    table = Table(title=title, title_justify="left")
    pruned = any(one.statuses["pruned"] for one in experiments)
    middle = ["measured", "failed", "infeasible", *(["pruned"] if pruned else []), "cached"]
    for column in ("experiment", "state", "done", "open", *middle, "best"):
        table.add_column(column)
    for one in experiments:
        table.add_row(*_cells(one, pruned))
    return table


def _live_table(title: str, experiments: Sequence[Standing]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("experiment", "state", "steps", "measured", "failed", "cancelled", "episodes", "mean return"):
        table.add_column(column)
    for one in experiments:
        table.add_row(*_live_cells(one))
    return table


def _live_cells(one: Standing) -> list[str]:
    live, statuses = one.live, one.statuses
    assert live is not None
    mean = "" if live.mean_return is None else f"{number(live.mean_return)} (last {live.mean_return_over})"
    return [
        escaped(one.name),
        one.state,
        f"{one.done}/{one.total}" if one.total is not None else str(one.done),
        str(statuses["measured"]),
        str(statuses["failed"] + statuses["timed_out"]),
        str(statuses["cancelled"]),
        str(live.episodes),
        mean,
    ]


def _unrecorded(one: Standing) -> str | None:
    """What was cut off; while it runs, these steps are just on their way to the disk."""
    if one.live is None or not one.live.unrecorded or one.state != "interrupted":
        return None
    steps = one.live.unrecorded
    many, are = ("1 step", "is") if steps == 1 else (f"{steps} steps", "are")
    numbers = f"number {one.done + 1}" if steps == 1 else f"numbers {one.done + 1} to {one.done + steps}"
    taken = f"it was cut off: up to {many} may have been taken and {are} not on record"
    return f"{taken}; a resume counts {numbers} as lost, and goes on behind"


def _cells(one: Standing, pruned: bool) -> list[str]:
    done = f"{one.done}/{one.total}" if one.total is not None else str(one.done)
    statuses = one.statuses
    return [
        escaped(one.name),
        one.state,
        done,
        str(one.open),
        str(statuses["measured"]),
        str(statuses["failed"] + statuses["timed_out"]),
        str(statuses["infeasible"]),
        *([str(statuses["pruned"])] if pruned else []),
        str(one.cached),
        reached(one.best) if one.best is not None else "",
    ]


def _as_dict(one: Standing) -> dict[str, Any]:
    best = None
    if one.best is not None:
        trial = one.best
        best = {
            "step": trial.number,
            "reward": trial.reward,
            "action": trial.action,
            "context": trial.context,
        }
    return {
        "name": one.name,
        "state": one.state,
        "total": one.total,
        "done": one.done,
        "open": one.open,
        "statuses": dict(one.statuses),
        "cached": one.cached,
        "best": best,
        "elapsed_s": one.elapsed_s,
        "ended": one.ended,
        "live": None if one.live is None else asdict(one.live),
    }
