"""Running trials side by side: inline at width 1, on threads above."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

from tunegym.tuning.model.outcome import Outcome
from tunegym.tuning.model.trial import OpenTrial

Measure = Callable[[OpenTrial], Outcome | None]


class Lanes(Protocol):
    """Starts measurements and hands back the finished ones in the order in which they finish."""

    def start(self, trial: OpenTrial) -> None:
        """Begin to measure; on the caller's own thread, also raise what that raises."""
        ...

    def wait(self) -> tuple[OpenTrial, Outcome | BaseException | None]:
        """The next finished one, or what its measurement raised elsewhere."""
        ...

    def close(self) -> None:
        """Wait for what still runs, and drop it."""
        ...


class InlineLane:
    """One lane on the caller's own thread: no hand-over to pay for."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._done: deque[tuple[OpenTrial, Outcome | None]] = deque()

    def start(self, trial: OpenTrial) -> None:
        """Measure now."""
        self._done.append((trial, self._measure(trial)))

    def wait(self) -> tuple[OpenTrial, Outcome | None]:
        """What was measured first."""
        return self._done.popleft()

    def close(self) -> None:
        """Nothing runs."""


class ThreadLanes:
    """One thread per slot. They mostly wait for processes."""

    def __init__(self, measure: Measure, slots: int) -> None:
        self._measure = measure
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="tunegym-lane")
        self._done: SimpleQueue[tuple[OpenTrial, Outcome | BaseException | None]] = SimpleQueue()

    def start(self, trial: OpenTrial) -> None:
        """Measure on a free thread."""
        self._pool.submit(self._run, trial)

    def wait(self) -> tuple[OpenTrial, Outcome | BaseException | None]:
        """The next to finish."""
        return self._done.get()

    def close(self) -> None:
        """Wait for the threads; the runner must have been stopped if they are to end early."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, trial: OpenTrial) -> None:
        try:
            self._done.put((trial, self._measure(trial)))
        except BaseException as error:  # handed to the driver's thread, which raises it
            self._done.put((trial, error))
