"""Steps that an error or an interrupt cut off: what of them is on record, and which numbers are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tunegym.tuning.envs.live.lane import Lane
from tunegym.tuning.envs.live.recorder import Recorder
from tunegym.tuning.model.values import Context
from tunegym.tuning.stores.live import LiveStore


class UnderWay(NamedTuple):
    """A step that was begun."""

    lane: Lane
    number: int
    action: Any
    context: Context
    began: float


class Settling:
    """Puts lanes back to what is on record. Steps are given in the order of their numbers.

    Attributes:
        behind: steps whose numbers are used, and which are not on record yet.
    """

    def __init__(self, store: LiveStore, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self.behind: Sequence[UnderWay] = ()

    def give_back(self, steps: Iterable[UnderWay]) -> int:
        """An error of ours ended them: those that could not be recorded are not used. The next number that may be."""
        recorded = self._store.settle()
        for one in steps:
            self._settle(one.lane, recorded)
        return recorded + 1

    def interrupted(self, steps: Iterable[UnderWay]) -> int:
        """The program was interrupted: their numbers are used, and nobody knows how they went. The next number.

        If this is interrupted, too, or can't be recorded, they stay ``behind``.
        """
        self.behind = tuple(steps)
        return self.catch_up()

    def catch_up(self) -> int:
        """Record what is ``behind``. The next number. Raises ``StoreError``."""
        for lane, number, action, context, began in self.behind:
            recorded = self._store.settle()
            self._settle(lane, recorded)
            if recorded < number and lane.episode is not None:
                self._recorder.failed(lane, number, action, context, "cancelled", "the step was interrupted", began)
        self.behind = ()
        return self._store.settle() + 1

    def _settle(self, lane: Lane, recorded: int) -> None:
        if lane.episode is not None:
            lane.episode.settle(recorded)
            if lane.episode.ending is not None:
                self._recorder.finish(lane, lane.episode.ending)
