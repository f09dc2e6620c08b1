"""One server of a live experiment, and the episode that it is in."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunegym.core.errors import BudgetError, ServerLostError
from tunegym.tuning.model.episode import Episode, EpisodeEnd
from tunegym.tuning.model.values import Context
from tunegym.tuning.servers.hosting import RAISED, Host, ServerFailure, told
from tunegym.tuning.spaces import SpaceError, differences

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_NAP_S = 0.05
_LARGEST = sys.float_info.max


Counted: TypeAlias = tuple[int, int, float]
"""An episode's steps so far: the last one's number, how many, and the sum of their rewards."""
NOTHING: Counted = (0, 0, 0.0)


@dataclass
class Running:
    """The episode that a lane is in; ``context`` is the one that it began under.

    An interrupt may come between any two instructions. So what a step will make of ``counted`` is put down whole, as
    ``upcoming``, before the step is recorded, and counts once it was; so is how it ends with that step (``ending``).
    """

    number: int
    first: int
    context: Context
    counted: Counted = NOTHING
    upcoming: Counted = NOTHING
    ending: EpisodeEnd | None = None

    def settle(self, recorded: int) -> Counted:
        """What counts, if steps up to number ``recorded`` are on record; what was to be and isn't is forgotten."""
        if self.upcoming[0] <= recorded:
            self.counted = self.upcoming
        else:
            self.upcoming, self.ending = self.counted, None
        return self.counted


class Lane:
    """Holds a server up: whatever happens to it, ``begin`` gives the first observation of an episode, or raises.

    Args:
        place: which lane.
        host: where its server lives, which has been started.
        restarts: how often in a row it may be started again.
        own: makes an observation the caller's own, or raises ``SpaceError``.
        stopping: whether the run is to stop.
    """

    def __init__(
        self,
        place: int,
        host: Host,
        restarts: int,
        own: Callable[[Any], Any],
        stopping: Callable[[], bool],
    ) -> None:
        self.place = place
        self.host = host
        self._spaces = host.action_space, host.observation_space
        self._restarts = restarts
        self._own = own
        self._stopping = stopping
        self.failures = 0
        self.restarted = 0
        self.fresh = True
        self.sound = False
        self.episode: Running | None = None
        self.context: Context = {}

    def begin(
        self, context: Context, seed: Callable[[], int] | int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        """Have the server begin an episode under ``context``; it is started again as often as it may be.

        Args:
            context: what it is to apply.
            seed: for the server; a function is asked only for one that has had no seed yet.
            options: for the server.

        Raises:
            ServerLostError: it failed too often in a row.
            BudgetError: the run is to stop.
        """
        while True:
            try:
                self.context = context
                if context:
                    self.host.apply_env_params(context)
                given = (seed() if self.fresh else None) if callable(seed) else seed
                observation, info = self.host.reset(given, options)
                owned, said = self._observed(observation, info)
                self.fresh = False
            except ServerFailure as failure:
                if not self.sound and not failure.lost:  # it has never worked: to build it again won't help
                    raise ServerLostError(
                        f"the server can't begin: {failure}", hint="mend it, then resume"
                    ) from failure
                self.start_again(failure, lost=True)
            else:
                self.sound = True
                return owned, said

    def apply(self, context: Context) -> None:
        """Have the server's next step under another context. Raises ``ServerFailure``."""
        self.host.apply_env_params(context)
        self.context = context

    def start_again(self, failure: ServerFailure, *, lost: bool) -> None:
        """After a failure: start the server again, if it is lost, with a pause that grows."""
        while lost:
            self.failures += 1
            if self.failures > self._restarts:
                often = f"{self.failures} times in a row" if self.failures > 1 else "and may not be started again"
                raise ServerLostError(
                    f"the server failed {often}, at last with: {failure}",
                    hint="mend it, then `tunegym resume`; what was recorded is safe",
                ) from failure
            self._pause(min(FIRST_PAUSE_S * 2 ** (self.failures - 1), LONGEST_PAUSE_S))
            try:
                self.host.start()
            except ServerFailure as again:
                failure = again
            else:
                self._check_same()
                self.restarted += 1
                self.fresh = True
                lost = False

    def _check_same(self) -> None:
        """A server that came back as another one can't go on with what was learned of the first."""
        lines = differences(self._spaces[0], self.host.action_space, "action_space")
        lines += differences(self._spaces[1], self.host.observation_space, "observation_space")
        if lines:
            raise ServerLostError(
                f"the server came back as another one: {'; '.join(lines)}", hint="put it back as it was, then resume"
            )

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._stopping():
                raise BudgetError("the run was stopped while a server was to be started again")
            time.sleep(min(left, _NAP_S))

    def _observed(self, observation: Any, info: Any) -> tuple[Any, dict[str, Any]]:
        if not isinstance(info, Mapping):
            raise ServerFailure(f"reset: its info is {type(info).__name__}, not a dict")
        try:
            return self._own(observation), dict(info)
        except SpaceError as error:
            raise ServerFailure(f"reset: the observation is not of observation_space: {error}") from error
        except RAISED as error:  # what it is converted with is the server's, too
            raise ServerFailure(f"reset: what it returned: {told(error)}") from error

    def finished(self, end: EpisodeEnd, recorded: int) -> Episode | None:
        """The episode as it is on record, if steps up to ``recorded`` are; None if it has no step."""
        one = self.episode
        if one is None:
            return None
        last, length, total = one.settle(recorded)
        if not length:
            return None
        # A sum of large rewards may be beyond what JSON can hold.
        total = 0.0 if math.isnan(total) else max(-_LARGEST, min(total, _LARGEST))
        return Episode(one.number, self.place, one.first, last, length, total, end, one.context)
