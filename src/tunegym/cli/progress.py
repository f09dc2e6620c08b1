"""Live progress on stderr: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from types import TracebackType

from rich.live import Live
from rich.text import Text

from tunegym.cli.console import SteadyConsole, console
from tunegym.cli.live_progress import LiveLine, Ticker
from tunegym.cli.tables import reached
from tunegym.tuning.envs.engine import TrialEngine
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.model.trial import OpenTrial, Trial

PLAIN_EVERY_S = 2.0
PLAIN_SHARE = 0.05
"""Lines come at least this many seconds, and this share of the time so far, apart."""


class _Handler(logging.Handler):
    """Log records as lines above the moving one."""

    def __init__(self, out: SteadyConsole) -> None:
        super().__init__()
        self._console = out

    def emit(self, record: logging.LogRecord) -> None:
        label = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = f"{label}{record.getMessage()}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Progress:
    """Watches a run. Usable as a context manager; ``folder`` is where results go once a run has started.

    Nothing here raises when the terminal or the pipe that it writes to is gone: the run goes on without.
    """

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._handler = _Handler(self._console)
        self._live: Live | None = None
        self._experiment: Experiment | None = None
        self._engine: TrialEngine | LiveEngine | None = None
        self._steps: LiveLine | None = None
        self._ticker: Ticker | None = None
        self._started = 0.0
        self._already = 0
        self._printed = 0.0
        self._opened = False
        self._over = False
        self._level = logging.NOTSET
        self.folder: Path | None = None

    def __enter__(self) -> Progress:
        logger = logging.getLogger("tunegym")
        logger.addHandler(self._handler)
        self._level = logger.level
        logger.setLevel(logging.INFO)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_live()
        logger = logging.getLogger("tunegym")
        logger.removeHandler(self._handler)
        logger.setLevel(self._level)

    @property
    def live(self) -> bool:
        """Whether the experiment of now, or that of just before, is a live one."""
        return self._steps is not None

    # the Watch ----------------------------------------------------------------------------------------

    def run_started(self, scenario: Scenario, folder: Path) -> None:
        """Say what runs and where its results go."""
        self.folder = folder
        count = len(scenario.experiments)
        self._console.print(
            f"{scenario.name}: {count} experiment{'s' if count > 1 else ''}, results in {folder}",
            markup=False,
            soft_wrap=True,
        )

    def experiment_started(self, experiment: Experiment, engine: TrialEngine | LiveEngine) -> None:
        """Begin a line for the experiment."""
        self._experiment, self._engine = experiment, engine
        self._steps = LiveLine(experiment, engine) if isinstance(engine, LiveEngine) else None
        self._started = time.monotonic()
        self._already = engine.tally.done
        self._printed = 0.0
        self._opened = False
        self._over = False
        if self._terminal:
            self._live = Live(
                console=self._console, get_renderable=self._moving_line, refresh_per_second=4, transient=True
            )
            with contextlib.suppress(OSError):
                self._live.start()
        elif self._steps is not None:  # nobody calls us for a step
            self._ticker = Ticker(self._print_line, self._pause)

    def trial_opened(self, trial: OpenTrial) -> None:
        """The pace is that of trials, without what an agent takes to get ready."""
        if not self._opened and self._engine is not None:
            self._opened = True
            self._started = time.monotonic()
            self._already = self._engine.tally.done

    def trial_closed(self, trial: Trial) -> None:
        """On a terminal the line redraws itself; elsewhere a line now and then."""
        if self._live is None and time.monotonic() - self._printed >= self._pause():
            self._print_line()

    def experiment_ended(self, experiment: Experiment) -> None:
        """Leave the last state on the screen."""
        self._stop_live()
        self._over = True
        self._print_line()
        reason = self._engine.exhausted() if self._engine is not None else None
        total = experiment.most_trials
        if reason is not None and self._engine is not None and (total is None or self._engine.tally.done < total):
            self._console.print(f"{experiment.name}: ended, {reason}", markup=False, soft_wrap=True)

    # the line -----------------------------------------------------------------------------------------

    def _pause(self) -> float:
        """Between two plain lines."""
        return max(PLAIN_EVERY_S, PLAIN_SHARE * (time.monotonic() - self._started))

    def _stop_live(self) -> None:
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.stop()
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    def _print_line(self) -> None:
        self._printed = time.monotonic()
        self._console.print(Text("  ".join(self._parts())), soft_wrap=True)

    def _moving_line(self) -> Text:
        """One line, also on a narrow terminal: the best settings are cut short first, of a live one the end."""
        parts = self._parts()
        over = len("  ".join(parts)) - self._console.width
        if over > 0 and self._steps is None:
            longest = max(range(len(parts)), key=lambda index: len(parts[index]))
            parts[longest] = parts[longest][: -over - 1] + "…"
        return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")

    def _parts(self) -> list[str]:
        if self._steps is not None:
            return self._steps.parts(_clock, over=self._over)
        if self._experiment is None or self._engine is None or isinstance(self._engine, LiveEngine):
            return []
        tally = self._engine.tally
        total = self._experiment.most_trials
        parts = [
            f"{self._experiment.name}",
            f"{tally.done}/{total}" if total is not None else f"{tally.done} done",
            f"failed {tally.statuses['failed'] + tally.statuses['timed_out']}",
            f"cached {tally.cached}",
        ]
        if tally.statuses["infeasible"]:
            parts.append(f"infeasible {tally.statuses['infeasible']}")
        if tally.statuses["pruned"]:
            parts.append(f"pruned {tally.statuses['pruned']}")
        if tally.best is not None and self._experiment.agent is not None:
            parts.append(f"best {reached(tally.best)}")
        left = None if self._over else self._left(total)
        spent = _clock(self._engine.budget.elapsed_s)
        parts.append(
            f"took {spent}" if self._over else f"left {_clock(left)}" if left is not None else f"after {spent}"
        )
        return parts

    def _left(self, total: int | None) -> float | None:
        """Seconds to the end, from this session's own pace and from ``max_time``."""
        engine = self._engine
        assert engine is not None
        bounds: list[float] = []
        done = engine.tally.done - self._already
        if total is not None and done > 0:
            pace = (time.monotonic() - self._started) / done
            bounds.append(max(total - engine.tally.done, 0) * pace)
        max_time = engine.budget.budget.max_time_s
        if max_time is not None:
            bounds.append(max(max_time - engine.budget.elapsed_s, 0.0))
        return min(bounds, default=None)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
