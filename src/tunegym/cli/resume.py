"""``tunegym resume``: continue a run where it was left."""

from __future__ import annotations

from pathlib import Path

from tunegym.app.resume import resume
from tunegym.cli.run import drive


def main(folder: Path, agent_steps: int | None, slots: int | None, *, force: bool) -> int:
    """Resume a run."""
    return drive(
        lambda watch, stop: resume(folder, agent_steps=agent_steps, slots=slots, force=force, watch=watch, stop=stop)
    )
