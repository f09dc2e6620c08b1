"""``tunegym run`` and ``tunegym resume``: the results on stdout, progress on stderr.

ProgressDisplay is one moving line on a terminal, and a line now and then elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.live import Live
from rich.text import Text

from tunegym.app import run as app
from tunegym.app.kinds import Session
from tunegym.app.report import FAILURE
from tunegym.cli.terminal import (
    INTERRUPTED,
    LogHandler,
    SteadyConsole,
    chosen_run,
    console,
    exit_now,
    guarded,
    heard,
    note,
    print_table,
    say,
    say_stopping,
    warn,
)
from tunegym.core.errors import TunegymError
from tunegym.core.references import raised_at
from tunegym.core.stop import Stop
from tunegym.core.text import error_text
from tunegym.tuning.model.scenario import Scenario
from tunegym.tuning.model.values import counted, number
from tunegym.tuning.reports.page import REPORT
from tunegym.tuning.reports.results import RunResults, load

PLAIN_EVERY_S = 2.0
PLAIN_SHARE = 0.05
"""Plain lines are at least this many seconds, and this share of the time so far, apart."""


def run(scenario: Path, output: Path | None, overrides: list[str], slots: int | None, system: Path | None) -> int:
    """Run every experiment of a scenario."""
    return drive(partial(app.run, scenario, output=output, overrides=overrides, slots=slots, system=system))


def resume(folder: Path, agent_steps: int | None, slots: int | None, *, force: bool) -> int:
    """Continue a run where it was left."""
    return drive(partial(app.resume, chosen_run(folder), agent_steps=agent_steps, slots=slots, force=force))


def drive(work: Callable[..., int]) -> int:
    """Run or resume with progress, signals and the results at the end; the exit code."""
    progress, stop = ProgressDisplay(), Stop()
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
            try:
                code = work(watch=progress, stop=stop)
            except Exception as error:
                where = raised_at(error)
                if where is None or isinstance(error, TunegymError) or progress.folder is None:
                    raise
                hint = f"{short(progress.folder / FAILURE)} has the whole traceback"
                raise TunegymError(f"{error_text(error)}\n  raised in {where}", hint=hint) from error
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
                note(f"{why}; to continue: {command}")
    return code


def show_results(folder: Path, results: RunResults | None) -> None:
    """Print what every experiment found, and where everything is; ``results`` are those that the page was made from."""
    summaries = []
    try:
        found = (results or load(folder)).experiments.values()
        summaries = [experiment.summary() for experiment in found if experiment.path.exists()]
    except (TunegymError, OSError) as error:  # the run's own error is more important
        warn(f"the results can't be shown: {error}")
    for summary in summaries:
        if summary.table is not None:
            print_table(summary.table)
        say(*summary.lines)
    say(f"results: {short(folder)}")
    if (folder / REPORT).is_file():
        say(f"report: {short(folder / REPORT)}")


def short(path: Path) -> str:
    """Relative to the current folder, when it lies below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# progress -------------------------------------------------------------------------------------------------------------


class Line:
    """The line of one experiment: counts, pace and the time that is left. Another thread changes the counts.

    The pace is that of this session's trials or steps, without the time that an agent or a server takes to get ready.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._total = session.experiment.most_trials
        self._first = session.progress()
        self._parts = [session.experiment.name]
        self.over = False

    @property
    def done(self) -> int:
        """How many trials or steps are done."""
        return self._session.progress().done

    def parts(self) -> list[str]:
        """The line's parts; those of the last time while the counts are just being changed."""
        with contextlib.suppress(RuntimeError):
            self._parts = self._current()
        return list(self._parts)

    def _current(self) -> list[str]:
        now, total = self._session.progress(), self._total
        taken, spent = now.done - self._first.done, now.elapsed_s - self._first.elapsed_s
        pace = taken / spent if taken > 0 and spent > 0 else None
        parts = [self._session.experiment.name]
        if not now.unit:
            parts.append(f"{number(now.done)} done" if total is None else f"{number(now.done)}/{number(total)}")
        else:
            units = counted(now.done if total is None else total, now.unit)
            parts.append(units if total is None else f"{now.done:,}/{units}")
            parts += [] if pace is None else [f"{number(pace, 3)} {now.unit}s/s"]
        parts += [f"{label} {value}" for label, value in now.shown.items()]
        left = None if self.over else self._left(now.done, now.elapsed_s, pace)
        if left is not None:
            return [*parts, f"left {_clock(left)}"]
        return [*parts, f"{'took' if self.over else 'after'} {_clock(now.elapsed_s)}"]

    def _left(self, done: int, elapsed_s: float, pace: float | None) -> float | None:
        bounds: list[float] = []
        if self._total is not None and pace:
            bounds.append(max(self._total - done, 0) / pace)
        max_time = self._session.experiment.budget.max_time_s
        if max_time is not None:
            bounds.append(max(max_time - elapsed_s, 0.0))
        return min(bounds, default=None)


@contextlib.contextmanager
def ticking(line: Line, out: SteadyConsole) -> Iterator[None]:
    """Print the line now and then, on its own thread. An exception ends the thread, and nothing else."""
    ended = threading.Event()

    def tick() -> None:
        started, printed = time.monotonic(), -1
        with contextlib.suppress(Exception):
            while not ended.wait(max(PLAIN_EVERY_S, PLAIN_SHARE * (time.monotonic() - started))):
                if (done := line.done) != printed:
                    printed = done
                    out.print(Text("  ".join(line.parts())), soft_wrap=True)

    thread = threading.Thread(target=tick, name="tunegym-progress", daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(1.0)  # for a line that is being written; its reader may be gone


class ProgressDisplay(app.Watch):
    """Watches a run. Use it as a context manager.

    It never raises when the terminal or the pipe that it writes to is gone: the run continues without it.

    Attributes:
        folder: the run's results; None before the run has started.
        stopping: what a request to stop does just now.
    """

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._handler = LogHandler(self._console)  # its lines are above the moving one
        self._level = logging.NOTSET
        self._line: Line | None = None
        self._shown = contextlib.ExitStack()  # what shows the line
        self.folder: Path | None = None
        self.results: RunResults | None = None
        self.stopping = "no further experiment is started"

    def __enter__(self) -> ProgressDisplay:
        logger = logging.getLogger("tunegym")
        logger.addHandler(self._handler)
        self._level = logger.level
        logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *error: object) -> None:
        self._end_line()
        logger = logging.getLogger("tunegym")
        logger.removeHandler(self._handler)
        logger.setLevel(self._level)

    def run_started(self, scenario: Scenario, folder: Path) -> None:
        """Print what runs and where its results go."""
        self.folder = folder
        count = counted(len(scenario.experiments), "experiment")
        self._console.print(f"{scenario.name}: {count}, results in {folder}", soft_wrap=True)

    def run_reported(self, results: RunResults) -> None:
        """Keep the results for the closing table."""
        self.results = results

    def experiment_started(self, session: Session) -> None:
        """Begin a line for the experiment."""
        self.stopping = session.stopping
        self._line = Line(session)
        if not self._terminal:
            self._shown.enter_context(ticking(self._line, self._console))
            return
        moving = Live(console=self._console, get_renderable=self._moving_line, refresh_per_second=4, transient=True)
        self._shown.callback(moving.stop)
        with contextlib.suppress(OSError):
            moving.start()

    def experiment_ended(self, session: Session) -> None:
        """Leave the last state on the screen."""
        self._end_line()
        if self._line is None:
            return
        self._line.over = True
        self._console.print(Text("  ".join(self._line.parts())), soft_wrap=True)
        total, reason = session.experiment.most_trials, session.env.exhausted()
        if reason is not None and (total is None or self._line.done < total):
            self._console.print(Text(f"{session.experiment.name}: ended, {reason}"), soft_wrap=True)

    def _end_line(self) -> None:
        with contextlib.suppress(OSError):
            self._shown.close()

    def _moving_line(self) -> Text:
        """One line, also on a narrow terminal: the longest part, mostly the best settings, is cut short."""
        parts = self._line.parts() if self._line is not None else []
        over = len("  ".join(parts)) - self._console.width
        if over > 0:
            longest = max(range(len(parts)), key=lambda index: len(parts[index]))
            parts[longest] = parts[longest][: -over - 1] + "…"
        return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
