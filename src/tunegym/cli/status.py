"""``tunegym status``: where a run stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from tunegym.app.standing import Standing, standing
from tunegym.cli.console import console, print_json
from tunegym.cli.errors import guarded
from tunegym.cli.tables import reached
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
    table = Table(title=escaped(str(run)), title_justify="left")
    pruned = any(one.statuses["pruned"] for one in experiments)
    middle = ["measured", "failed", "infeasible", *(["pruned"] if pruned else []), "cached"]
    for column in ("experiment", "state", "done", "open", *middle, "best"):
        table.add_column(column)
    for one in experiments:
        table.add_row(*_cells(one, pruned))
    out.print(table)
    if failure is not None:
        out.print(f"failure: {escaped(failure)}", soft_wrap=True)
    return 0


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
    }
