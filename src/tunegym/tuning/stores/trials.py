"""Stores of trials: numbers, open trials, and how each is written down.

Written first, believed after: a record that can't be written has not happened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from pathlib import Path

from tunegym.core.clock import Clock
from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Cancelled, JobHandle, OpenTrial, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.stores import reader, records
from tunegym.tuning.stores.journal import JournalFile
from tunegym.tuning.stores.records import Head, Session
from tunegym.tuning.stores.views import TrialViews


class Numbers:
    """Trial numbers 1, 2, 3, ...: hands out the lowest number that is neither used nor held.

    ``used`` are the numbers of earlier sessions; a number missing below the highest of them is free.
    """

    def __init__(self, used: Iterable[int] = ()) -> None:
        taken = set(used)
        self.highest = max(taken, default=0)
        self._frontier = self.highest
        self._free = [number for number in range(1, self.highest) if number not in taken]
        heapify(self._free)
        self._held: dict[int, int] = {}

    def hold(self, lane: int) -> int:
        """The lane's number; asking again keeps it."""
        number = self._held.get(lane)
        if number is None:
            if self._free:
                number = heappop(self._free)
            else:
                number = self._frontier = self._frontier + 1
            self._held[lane] = number
        return number

    def release(self, lane: int) -> None:
        """The lane's number, if it holds one, is free again."""
        number = self._held.pop(lane, None)
        if number is not None:
            heappush(self._free, number)

    def use(self, lane: int) -> int:
        """The lane's number is used from here on; the lane holds none."""
        number = self.hold(lane)
        del self._held[lane]
        self.highest = max(self.highest, number)
        return number

    def take_unused(self) -> list[int]:
        """Use up every unused number below the highest used one, and return them in order."""
        free = {*self._free, *self._held.values()}
        unused = sorted(number for number in free if number < self.highest)
        self._free.clear()
        self._held.clear()
        self._frontier = self.highest
        return unused


class _Book(ABC):
    """The numbers and the open trials of a ``TrialStore``; a subclass writes records."""

    def __init__(self, used: Iterable[int] = (), open_trials: Mapping[int, OpenTrial] | None = None) -> None:
        self._numbers = Numbers(used)
        self._open = dict(open_trials or {})

    @abstractmethod
    def _write_open(self, trial: OpenTrial) -> None:
        """Write a decision down, or raise."""

    @abstractmethod
    def _write_close(self, trial: Trial, *, opened: bool) -> None:
        """Write an outcome down, or raise; ``opened`` is False for a number that was never used."""

    @property
    def highest(self) -> int:
        """The highest used number."""
        return self._numbers.highest

    def hold(self, lane: int) -> int:
        """See ``TrialStore.hold``."""
        return self._numbers.hold(lane)

    def release(self, lane: int) -> None:
        """See ``TrialStore.release``."""
        self._numbers.release(lane)

    def open(self, lane: int, context: Context, action: Action) -> OpenTrial:
        """See ``TrialStore.open``."""
        trial = OpenTrial(self._numbers.hold(lane), context, action)
        self._write_open(trial)
        self._numbers.use(lane)
        self._open[trial.number] = trial
        return trial

    def close_trial(self, trial: Trial) -> None:
        """See ``TrialStore.close_trial``."""
        if trial.number not in self._open:
            raise StoreError(f"trial {trial.number} is not open, so it can't be closed")
        self._write_close(trial, opened=True)
        del self._open[trial.number]

    def cancel_held(self, contexts: Callable[[int], Context], reward: Callable[[], float]) -> list[Trial]:
        """See ``TrialStore.cancel_held``."""
        reason = Cancelled("the experiment ended before this number was used")
        cancelled = [
            Trial(number, contexts(number), {}, reason, reward(), 0.0) for number in self._numbers.take_unused()
        ]
        for trial in cancelled:
            self._write_close(trial, opened=False)
        return cancelled

    def open_trials(self) -> list[OpenTrial]:
        """See ``TrialStore.open_trials``."""
        return [self._open[number] for number in sorted(self._open)]


class JournalStore(_Book):
    """The ``TrialStore`` that a run uses: a journal, and the CSV views, which are written again at every opening.

    Raises:
        StoreLockedError: another process writes it.
        StoreError: it can't be written, or belongs to another experiment than ``head`` describes.
    """

    def __init__(self, folder: Path, head: Head, session: Session, clock: Clock | None = None) -> None:
        self.fingerprint = session.fingerprint
        self._journal = JournalFile(folder, head, session, clock)
        self.head = self._journal.head
        self.past = self._journal.past
        try:
            super().__init__(self.past.used, self.past.open)
            self._views = TrialViews(folder, list(head.knobs), list(head.env_params), head.metrics)
            for _, trial in reader.trials(self._journal.path):
                self._views.add(trial)
        except BaseException:
            self._journal.close(lambda: None)
            raise
        self._journal.start(self._views.flush)

    def job_started(self, number: int, handle: JobHandle) -> None:
        """See ``TrialStore.job_started``."""
        self._journal.append({"record": "job", "number": number, "handle": handle})

    def leftovers(self) -> list[JobHandle]:
        """See ``TrialStore.leftovers``."""
        return [handle for handles in self.past.handles.values() for handle in handles]

    def recorded(self) -> Iterator[tuple[str, Trial]]:
        """See ``TrialStore.recorded``."""
        return reader.trials(self._journal.path)

    def forgive(self, seconds: float) -> None:
        """See ``TrialStore.forgive``."""
        self._journal.forgive(seconds)

    def end(self, code: int, reason: str) -> None:
        """See ``TrialStore.end``."""
        self._journal.append(records.end_record(code, reason, self._journal.wall(), self._journal.since()))

    def close(self) -> None:
        """See ``TrialStore.close``. Raises ``StoreError`` if records or views could not be written."""
        self._journal.close(self._views.close)

    def _write_open(self, trial: OpenTrial) -> None:
        self._journal.append(records.open_record(trial, self._journal.wall(), self._journal.since()))

    def _write_close(self, trial: Trial, *, opened: bool) -> None:
        self._journal.append(records.close_record(trial, self._journal.wall(), self._journal.since(), opened))
        self._views.add(trial)


class MemoryStore(_Book):
    """A ``TrialStore`` for tests and throw-away environments; as strict as the journal."""

    def __init__(self, fingerprint: str = "") -> None:
        super().__init__()
        self.fingerprint = fingerprint
        self._recorded: list[Trial] = []
        self._closed = False

    def job_started(self, number: int, handle: JobHandle) -> None:
        """Not recorded: no session could read it."""

    def leftovers(self) -> list[JobHandle]:
        """Nothing outlives this store."""
        return []

    def recorded(self) -> Iterator[tuple[str, Trial]]:
        """See ``TrialStore.recorded``."""
        return ((self.fingerprint, trial) for trial in list(self._recorded))

    def forgive(self, seconds: float) -> None:
        """Time is not recorded here."""

    def end(self, code: int, reason: str) -> None:
        """Not recorded: no session could read it."""

    def close(self) -> None:
        """See ``TrialStore.close``."""
        self._closed = True

    def _write_open(self, trial: OpenTrial) -> None:
        self._check_writable()

    def _write_close(self, trial: Trial, *, opened: bool) -> None:
        self._check_writable()
        self._recorded.append(trial)

    def _check_writable(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
