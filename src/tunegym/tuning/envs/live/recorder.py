"""Steps 6 and 7 of the walk of a trial, for a live step: scored, recorded, and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy import ndarray

from tunegym.tuning.envs.live.lane import Lane, Running
from tunegym.tuning.envs.live.scoring import NO_METRICS, LiveScoring
from tunegym.tuning.envs.live.showing import Showing
from tunegym.tuning.envs.live.tally import LiveTally
from tunegym.tuning.model.episode import EpisodeEnd
from tunegym.tuning.model.values import Context
from tunegym.tuning.servers.hosting import RAISED, Five, ServerFailure, told
from tunegym.tuning.spaces import SHORT, SpaceError, element_of, has_nan, nothing_of
from tunegym.tuning.stores.live import LiveStore


class Recorder:
    """Makes a record, and what an agent sees, of what a server answered.

    Args:
        store: where steps are written down.
        scoring: the reward of each.
        showing: what is shown of them.
        tally: counts them.
        observations: the server's own space of them.
        following: the context that a lane's next step will have, given whether its episode is over.
    """

    def __init__(
        self,
        store: LiveStore,
        scoring: LiveScoring,
        showing: Showing,
        tally: LiveTally,
        observations: spaces.Space[Any],
        following: Callable[[Lane, Running, bool], Context] | None,
    ) -> None:
        self._store = store
        self._add = store.add
        self._scoring = scoring
        self._shown = showing.shown if showing.shows else None
        self._tally = tally
        self._own = element_of(observations)
        self._nothing = nothing_of(observations)
        # Short vectors are what quick systems have, and need no second look.
        short = isinstance(observations, spaces.Box) and len(observations.shape) == 1 and observations.shape[0] < SHORT
        floats = short and np.dtype(observations.dtype).kind == "f"
        self._dtype = np.dtype(observations.dtype) if floats else None
        self._shape = observations.shape if floats else None
        self._following = following
        kind, self._every = store.recording.kind, store.recording.every
        self._all, self._ends_only = kind == "all", kind == "episodes"

    def took(self, lane: Lane, number: int, action: Any, context: Context, answer: Five, began: float) -> Five:
        """Record an answered step. Raises ``ServerFailure`` if the answer is no measurement: nothing is recorded."""
        duration = perf_counter() - began
        try:
            observation, reward, terminated, truncated, info = answer
        except RAISED:
            raise ServerFailure("step: it did not return five values") from None
        if type(observation) is ndarray and observation.dtype is self._dtype and observation.shape == self._shape:
            total = sum(observation.tolist())
            if total != total and has_nan(observation):  # only then: a call costs as much as the sum
                raise ServerFailure("step: the observation is not of observation_space: it holds NaN")
            observation = observation.copy()
        else:
            observation = self._owned(observation)
        scoring, metrics = self._scoring, NO_METRICS
        if type(info) is not dict:
            info = _plain(info)
        if type(reward) is not float or not scoring.low <= reward <= scoring.high:
            reward, metrics = scoring.scored(reward, info)
        if terminated is not False or truncated is not False:
            terminated, truncated = _flag(terminated), _flag(truncated)
        over = terminated or truncated
        episode = lane.episode
        assert episode is not None
        lane.failures = 0
        counted = episode.counted  # unless an error came between the record of the last step and its count
        _, length, total = counted if counted is episode.upcoming else episode.settle(self._store.settle())
        episode.upcoming = upcoming = (number, length + 1, total + reward)
        if over:
            episode.ending = "terminated" if terminated else "truncated"
        if self._all or (over if self._ends_only else number % self._every == 0):
            self._add(
                number, episode.number, action, observation, reward, duration, terminated, truncated, context, metrics
            )
        else:
            self._store.upto = number
        episode.counted = upcoming
        self._tally.done = number
        following: Context = {} if self._following is None else self._following(lane, episode, over)
        answered: dict[str, Any] = {
            "step": number,
            "episode_number": episode.number,
            "status": "measured",
            "metrics": {**metrics} if metrics else {},
            "env_params": {**context} if context else {},
            "next_env_params": following,
        }
        answered = {**info, **answered} if info else answered
        if episode.ending is not None:
            self.finish(lane, episode.ending)
        if self._shown is not None:
            if over:  # what it ended with belongs to its own conditions, whatever comes next
                answered["final_observation"] = self._shown(self._own(observation), context)
            observation = self._shown(observation, following)
        return observation, reward, terminated, truncated, answered

    def _owned(self, observation: Any) -> Any:
        try:
            return self._own(observation)
        except SpaceError as error:
            raise ServerFailure(f"step: the observation is not of observation_space: {error}") from error
        except RAISED as error:  # what it is converted with is the server's, too
            raise ServerFailure(f"step: its observation: {told(error)}") from error

    def failed(
        self, lane: Lane, number: int, action: Any, context: Context, status: str, reason: str, began: float
    ) -> tuple[float, dict[str, Any]]:
        """Record a step without a measurement: its penalty, and what is told of it. The episode goes on."""
        penalty = self._scoring.penalty()
        episode = lane.episode
        assert episode is not None
        _, length, total = episode.settle(self._store.upto)
        episode.upcoming = upcoming = (number, length + 1, total + penalty)
        episode.ending = None
        duration = perf_counter() - began
        self._store.add_unmeasured(
            number, episode.number, action, self._nothing, penalty, duration, context, status, reason
        )
        episode.counted = upcoming
        self._tally.others[status] += 1
        self._tally.done = number
        return penalty, {
            "step": number,
            "episode_number": episode.number,
            "status": status,
            "reason": reason,
            "cached": False,
            "metrics": {},
            "env_params": dict(context),
            "next_env_params": dict(context),
        }

    def finish(self, lane: Lane, end: EpisodeEnd) -> None:
        """The lane's episode is over, if there is one."""
        finished = lane.finished(end, self._store.upto)
        if finished is not None and self._store.episode_over(finished):
            self._tally.episodes += 1
            if end in ("terminated", "truncated"):
                self._tally.returns.append(finished.total)
        lane.episode = None


def _plain(info: Any) -> dict[str, Any]:
    """A server's info, whatever kind of mapping it is."""
    if not isinstance(info, Mapping):
        raise ServerFailure(f"step: its info is {type(info).__name__}, not a dict")
    try:
        return dict(info)
    except RAISED as error:
        raise ServerFailure(f"step: its info: {told(error)}") from error


def _flag(found: Any) -> bool:
    try:
        return bool(found)
    except RAISED:
        raise ServerFailure(f"step: {found!r:.60} is neither true nor false") from None
