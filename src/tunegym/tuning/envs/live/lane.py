"""One server of a live experiment, and the episode that it is in.

A lane restarts its server as often as the experiment allows, with growing pauses.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunegym.core.errors import BudgetError, ServerLostError
from tunegym.core.randomness import integer
from tunegym.core.text import error_text
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import Episode, EpisodeEnd
from tunegym.tuning.model.values import Context
from tunegym.tuning.servers.host import RAISED, ServerFailure, ServerHost
from tunegym.tuning.spaces import SpaceError, describe, space_differences

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_NAP_S = 0.05
_LARGEST = sys.float_info.max


@dataclass
class Running:
    """The episode that a lane is in: its number, its first step's number and context, and its steps so far.

    ``seen`` is its last valid observation, packed. ``terminated`` and ``truncated`` are the server's word.
    """

    number: int
    first: int
    context: Context
    seen: Any
    last: int = 0
    length: int = 0
    total: float = 0.0
    terminated: bool = False
    truncated: bool = False


class Lane:
    """A server that has been started; it is started again when it is lost, at most ``restarts`` times in a row."""

    def __init__(
        self,
        place: int,
        host: ServerHost,
        restarts: int,
        seed: int,
        own: Callable[[Any], Any],
        stopping: Callable[[], bool],
    ) -> None:
        self.place = place
        self.host = host
        self._spaces = host.action_space, host.observation_space
        self._restarts = restarts
        self._seed = seed
        self._own = own
        self._stopping = stopping
        self.failures = 0
        self.lost: ServerFailure | None = None  # how the server was lost, until it is started again
        self.restarted = 0
        self.fresh = True
        self.sound = False
        self.episode: Running | None = None
        self.context: Context = {}
        self.held = 0  # the number of the step that comes next, if its context was asked for; 0 for none

    def begin(
        self, context: Context, number: int, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode under ``context``; ``number`` is that of the step that comes next.

        A server that has had no seed yet gets one that follows from the scenario's. Raises ``ServerLostError`` if it
        failed too often in a row, and ``BudgetError`` if the run is to stop.
        """
        while True:
            self._start_again()
            try:
                self.context = context
                if context:
                    self.host.apply_env_params(context)
                if self.fresh and seed is None:
                    seed = integer(self._seed, 2**31 - 1, "server", self.place, number)
                observation, info = self.host.reset(seed, options)
                owned, said = own_observation(self._own, observation, "reset"), own_info(info, "reset")
                self.fresh = False
            except ServerFailure as failure:
                if not self.sound and not failure.lost:  # it has never worked: building it again won't help
                    raise ServerLostError(
                        f"the server can't begin an episode: {failure}", hint="fix it, then resume"
                    ) from failure
                self.lost = failure
            else:
                self.sound = True
                return owned, said

    def apply(self, context: Context) -> None:
        """Apply another context before the server's next step. Raises ``ServerFailure``."""
        self.host.apply_env_params(context)
        self.context = context

    def _start_again(self) -> None:
        """Start the server again if it is lost, after a pause that grows with every failure in a row."""
        while (failure := self.lost) is not None:
            self.failures += 1
            if self.failures > self._restarts:
                often = f"{self.failures} times in a row" if self.failures > 1 else "and may not be started again"
                raise ServerLostError(
                    f"the server failed {often}, at last with: {failure}",
                    hint="fix it, then `tunegym resume`; recorded steps are safe",
                ) from failure
            self._pause(min(FIRST_PAUSE_S * 2 ** (self.failures - 1), LONGEST_PAUSE_S))
            try:
                self.host.start()
            except ServerFailure as again:
                self.lost = again
            else:
                self._check_same()
                self.restarted += 1
                self.fresh, self.lost = True, None

    def _check_same(self) -> None:
        """A server that came back with other spaces can't continue."""
        lines = space_differences(self._spaces, (self.host.action_space, self.host.observation_space))
        if lines:
            raise ServerLostError(
                f"the server came back with other spaces: {'; '.join(lines)}", hint="restore it, then resume"
            )

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._stopping():
                raise BudgetError("the run was stopped while a server was to be started again")
            time.sleep(min(left, _NAP_S))

    def finished(self, end: EpisodeEnd) -> Episode | None:
        """The lane's episode as a record; None if it has no step. The lane has none after this."""
        one, self.episode = self.episode, None
        if one is None or not one.length:
            return None
        # A sum of large rewards may be beyond what JSON can hold.
        total = 0.0 if math.isnan(one.total) else max(-_LARGEST, min(one.total, _LARGEST))
        return Episode(one.number, self.place, one.first, one.last, one.length, total, end, one.context)


def own_observation(own: Callable[[Any], Any], observation: Any, call: str) -> Any:
    """A copy of an observation. Raises ``ServerFailure`` if it is none."""
    try:
        return own(observation)
    except SpaceError as error:
        raise ServerFailure(f"{call}: the observation is not of observation_space: {error}") from error
    except RAISED as error:  # the conversion runs the server's code too
        raise ServerFailure(f"{call}: its observation: {error_text(error)}") from error


def own_info(info: Any, call: str) -> dict[str, Any]:
    """A server's info as a dict, whatever mapping it is. Raises ``ServerFailure``."""
    if not isinstance(info, Mapping):
        raise ServerFailure(f"{call}: its info is {type(info).__name__}, not a dict")
    try:
        return dict(info)
    except RAISED as error:
        raise ServerFailure(f"{call}: its info: {error_text(error)}") from error


def start_all(hosts: Sequence[ServerHost], experiment: Experiment) -> None:
    """Start every server. Raises ``ServerLostError`` if one can't be started, or is unfit."""
    first = hosts[0]
    for host in hosts:
        try:
            host.start()
            spaces = host.action_space, host.observation_space
            for space in spaces:
                describe(space)
            lines = space_differences((first.action_space, first.observation_space), spaces)
        except (ServerFailure, SpaceError) as failure:
            raise ServerLostError(
                f"{experiment.name}: the server can't be started: {failure}", hint="fix it, then resume"
            ) from failure
        if experiment.env_params and not host.applies_env_params:
            lines = ["there are env_params, and the server has no apply_env_params()"]
        if lines:
            raise ServerLostError(f"{experiment.name}: {'; '.join(lines)}", hint="fix the server")
