"""What is wrong with a warm start, before anything runs."""

from __future__ import annotations

from pathlib import Path

from tunegym.core.errors import Problem

WHERE = "agent_config.warm_start"
ALLOWED = "the results folder of another run, relative to the scenario's folder"


def cold(folder: str | None, scenario_dir: Path) -> list[Problem]:
    """Why there can be no warm start from ``folder``, if one is asked for."""
    if folder is None:
        return []
    place = scenario_dir / folder
    what = None
    if not place.is_dir():
        what = f"{place} is not a folder"
    elif not any(next(place.glob(f"{depth}scenario.toml"), None) for depth in ("", "*/", "*/*/")):
        what = f"{place} holds no results"
    hint = "give the results folder that the run printed"
    return [Problem(WHERE, what, f'"{folder}"', ALLOWED, hint)] if what else []
