"""``tunegym run``: run every experiment of a scenario, with progress on stderr and the results on stdout."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from tunegym.app.run import Watch, run
from tunegym.cli.progress import Progress
from tunegym.cli.terminal import INTERRUPTED, console, exit_now, guarded, heard, print_table, say, say_stopping, warn
from tunegym.core.errors import TunegymError
from tunegym.core.stop import Stop
from tunegym.tuning.reports.page import REPORT
from tunegym.tuning.reports.results import RunResults, load


def main(scenario: Path, output: Path | None, overrides: list[str], slots: int | None) -> int:
    """Run a scenario."""
    return drive(
        lambda watch, stop: run(scenario, output=output, overrides=overrides, slots=slots, watch=watch, stop=stop)
    )


def drive(work: Callable[[Watch, Stop], int]) -> int:
    """Run or resume with progress, signals and the results at the end; the exit code."""
    progress, stop = Progress(), Stop()
    unfinished = True

    def handle() -> None:
        """The first signal asks to stop, the second one ends the process."""
        if stop.requested:
            stop.force()
            exit_now()
        say_stopping(progress.stopping)
        stop.request()

    def go() -> int:
        nonlocal unfinished
        with progress, heard(handle):
            code = work(progress, stop)
        unfinished = code == INTERRUPTED
        return code

    code = 1
    try:
        code = guarded(go)
    finally:
        if progress.folder is not None:
            show_results(progress.folder, progress.results)
            if unfinished:
                why = "interrupted" if code == INTERRUPTED else "not finished"
                command = f"tunegym resume {shlex.quote(short(progress.folder))}"
                console(stderr=True).print(f"{why}; to continue: {command}", soft_wrap=True)
    return code


def show_results(folder: Path, results: RunResults | None) -> None:
    """Print what every experiment found, and where everything is; ``results`` are those that the page was made from."""
    try:
        for experiment in (results or load(folder)).experiments.values():
            if experiment.path.exists():
                summary = experiment.summary()
                if summary.table is not None:
                    print_table(summary.table)
                say(*summary.lines)
    except (TunegymError, OSError) as error:  # the run's own error is more important
        warn(f"the results can't be shown: {error}")
    say(f"results: {short(folder)}")
    if (folder / REPORT).is_file():
        say(f"report: {short(folder / REPORT)}")


def short(path: Path) -> str:
    """Relative to the current folder, when it lies below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
