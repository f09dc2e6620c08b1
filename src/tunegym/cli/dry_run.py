"""``tunegym dry-run``: show what would run."""

from __future__ import annotations

from pathlib import Path

from tunegym.app.kinds import kind_of
from tunegym.app.run import as_scenario
from tunegym.cli.terminal import guarded, print_json, say, warn


def main(path: Path, overrides: list[str], slots: int | None, count: int, *, as_json: bool) -> int:
    """Show every experiment's plan."""
    return guarded(lambda: _dry_run(path, overrides, slots, count, as_json=as_json))


def _dry_run(path: Path, overrides: list[str], slots: int | None, count: int, *, as_json: bool) -> int:
    settings = [*overrides, *([] if slots is None else [f"system.slots={slots}"])]
    scenario = as_scenario(path, settings)
    plans = [kind_of(one).plan(scenario, one, count) for one in scenario.experiments]
    if as_json:
        print_json({"scenario": scenario.name, "experiments": [plan.document for plan in plans]})
        return 0
    for warning in scenario.warnings:
        warn(warning)
    for plan in plans:
        say(*plan.lines)
    return 0
