"""The progress of a live experiment: steps per second, episodes, and how well they go."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from tunegym.cli.tables import number, rate
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.model.scenario import Experiment

PACE_S = 10.0
"""Steps per second are those of the last seconds."""
LOOK_S = 0.2
MOST_LOOKS = 100


class LiveLine:
    """What is told of a live experiment that goes on. It looks at the engine's tally, which another thread moves."""

    def __init__(self, experiment: Experiment, engine: LiveEngine) -> None:
        self._experiment = experiment
        self._engine = engine
        self._already = engine.tally.done
        self._spent = engine.budget.elapsed_s
        self._seen: deque[tuple[float, int]] = deque(maxlen=MOST_LOOKS)
        self._shown: list[str] = [experiment.name]

    def parts(self, clock: Callable[[float], str], *, over: bool) -> list[str]:
        """The line, part by part; the last one over again if the tally is just being changed."""
        with contextlib.suppress(RuntimeError):
            self._shown = self._parts(clock, over=over)
        return list(self._shown)

    def _parts(self, clock: Callable[[float], str], *, over: bool) -> list[str]:
        tally, total = self._engine.tally, self._experiment.most_trials
        done = tally.done
        pace = self._overall(done) if over else self._pace(done)
        counted = f"{done:,}" if total is None else f"{done:,}/{total:,}"
        parts = [self._experiment.name, f"{counted} step{'' if (done if total is None else total) == 1 else 's'}"]
        if pace is not None:
            parts.append(f"{rate(pace)} steps/s")
        parts.append(f"episodes {tally.episodes:,}")
        mean, over_how_many = tally.mean_return, len(tally.returns)
        if mean is not None:
            parts.append(f"return {number(mean)} (last {over_how_many})")
        others = tally.others
        parts.append(f"failed {others['failed'] + others['timed_out']:,}")
        if others["cancelled"]:
            parts.append(f"cancelled {others['cancelled']:,}")
        if tally.restarts:
            parts.append(f"restarts {tally.restarts}")
        spent = self._engine.budget.elapsed_s
        if over:
            parts.append(f"took {clock(spent)}")
        else:
            left = self._left(total, done, pace)
            parts.append(f"left {clock(left)}" if left is not None else f"after {clock(spent)}")
        return parts

    def _pace(self, done: int) -> float | None:
        """Of the last seconds, as far as anybody has looked."""
        if done == self._already:  # a server, or an agent, is getting ready
            return None
        now = time.monotonic()
        seen = self._seen
        if not seen or now - seen[-1][0] >= LOOK_S:
            seen.append((now, done))
        while len(seen) > 1 and now - seen[0][0] > PACE_S:
            seen.popleft()
        at, before = seen[0]
        if now - at < LOOK_S:
            return self._overall(done)
        return max(0, done - before) / (now - at)

    def _overall(self, done: int) -> float | None:
        """Of this session, without what a server and an agent took to get ready."""
        spent, taken = self._engine.budget.elapsed_s - self._spent, done - self._already
        return taken / spent if taken > 0 and spent > 0 else None

    def _left(self, total: int | None, done: int, pace: float | None) -> float | None:
        bounds: list[float] = []
        if total is not None and pace:
            bounds.append(max(total - done, 0) / pace)
        max_time = self._engine.budget.budget.max_time_s
        if max_time is not None:
            bounds.append(max(max_time - self._engine.budget.elapsed_s, 0.0))
        return min(bounds, default=None)


class Ticker:
    """Says something now and then, on a thread of its own. What that raises ends it, and nothing else.

    Args:
        say: what is done.
        pause: how many seconds until the next time.
    """

    def __init__(self, say: Callable[[], None], pause: Callable[[], float]) -> None:
        self._say = say
        self._pause = pause
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunegym-progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            while not self._ended.wait(self._pause()):
                self._say()

    def stop(self) -> None:
        """Say nothing more. Waits for a line that is being written, but not for ever: nobody may be reading it."""
        self._ended.set()
        self._thread.join(1.0)
