"""``tunegym run``: every experiment of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tunegym.app.running import INTERRUPTED, run
from tunegym.app.watching import Watch
from tunegym.cli.ending import say_how_to_resume, show_results
from tunegym.cli.errors import guarded
from tunegym.cli.progress import Progress
from tunegym.cli.signals import caught
from tunegym.core.stopping import Stop


def main(scenario: Path, output: Path | None, overrides: list[str], slots: int | None) -> int:
    """Run, with progress on stderr and the best settings on stdout."""
    return shown(
        lambda watch, stop: run(scenario, output=output, overrides=overrides, slots=slots, watch=watch, stop=stop)
    )


def shown(drive: Callable[[Watch, Stop], int]) -> int:
    """Drive something with progress, signals and a closing table; the exit code."""
    progress = Progress()
    stop = Stop()
    unfinished = True

    def go() -> int:
        nonlocal unfinished
        with progress, caught(stop, lambda: progress.live):
            code = drive(progress, stop)
        unfinished = code == INTERRUPTED
        return code

    code = 1
    try:
        code = guarded(go)
    finally:
        if progress.folder is not None:
            show_results(progress.folder)
            if unfinished:
                say_how_to_resume(progress.folder, interrupted=code == INTERRUPTED)
    return code
