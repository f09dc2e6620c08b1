"""What every store does with numbers and open trials, whatever it writes them to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

from tunegym.core.errors import StoreError
from tunegym.tuning.model.outcome import Cancelled
from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.stores.numbers import Numbers


class TrialBook(ABC):
    """The numbers and the open trials of a ``TrialStore``; a subclass says how each is written down.

    Written first, believed after: what can't be written has not happened.
    """

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
