"""A store that lives and dies with its process; as strict as the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tunegym.core.errors import StoreError
from tunegym.tuning.model.outcome import Cancelled
from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.stores.numbers import Numbers


class MemoryStore:
    """A ``TrialStore`` for tests and throw-away environments."""

    def __init__(self, fingerprint: str = "") -> None:
        self._fingerprint = fingerprint
        self._numbers = Numbers()
        self._open: dict[int, OpenTrial] = {}
        self._closed: list[Trial] = []
        self._is_closed = False

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
        self._check_writable()
        trial = OpenTrial(self._numbers.use(lane), dict(context), dict(action))
        self._open[trial.number] = trial
        return trial

    def job_started(self, number: int, pid: int, start_time: str) -> None:
        """A process needs no record here: nobody could read it after us."""

    def close_trial(self, trial: Trial) -> None:
        """See ``TrialStore.close_trial``."""
        self._check_writable()
        if trial.number not in self._open:
            raise StoreError(f"trial {trial.number} is not open, so it can't be closed")
        del self._open[trial.number]
        self._closed.append(trial)

    def cancel_held(self, contexts: Callable[[int], Context], reward: Callable[[], float]) -> list[Trial]:
        """See ``TrialStore.cancel_held``."""
        self._check_writable()
        reason = Cancelled("the experiment ended before this number was used")
        cancelled = [
            Trial(number, contexts(number), {}, reason, reward(), 0.0) for number in self._numbers.take_unused()
        ]
        self._closed.extend(cancelled)
        return cancelled

    def open_trials(self) -> list[OpenTrial]:
        """See ``TrialStore.open_trials``."""
        return [self._open[number] for number in sorted(self._open)]

    def leftovers(self) -> list[tuple[int, str]]:
        """Nothing outlives this store."""
        return []

    def recorded(self) -> Iterator[tuple[str, Trial]]:
        """See ``TrialStore.recorded``."""
        return ((self._fingerprint, trial) for trial in list(self._closed))

    def end(self, code: int, reason: str) -> None:
        """The end needs no record here."""

    def close(self) -> None:
        """See ``TrialStore.close``."""
        self._is_closed = True

    def _check_writable(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")
