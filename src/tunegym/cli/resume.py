"""``tunegym resume``: go on where a run was left."""

from __future__ import annotations

from pathlib import Path

from tunegym.app.resuming import resume
from tunegym.cli.run import shown


def main(folder: Path, agent_steps: int | None, slots: int | None, *, force: bool) -> int:
    """Resume, with progress on stderr and the best settings on stdout."""
    return shown(
        lambda watch, stop: resume(folder, agent_steps=agent_steps, slots=slots, force=force, watch=watch, stop=stop)
    )
