"""Steps 6 and 7 of the walk for a live step: scored, recorded and shown; and recorded steps read back for agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy import ndarray

from tunegym.tuning.envs.live.lane import Lane, Running
from tunegym.tuning.envs.score import NO_METRICS, StepScore, StepTally
from tunegym.tuning.envs.structure import ContextLeaves, FindEncoding, leaf_space
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import EnvParams
from tunegym.tuning.model.trial import EpisodeEnd
from tunegym.tuning.model.values import Context, printable
from tunegym.tuning.ports import Transition
from tunegym.tuning.servers.host import RAISED, ServerFailure, StepAnswer, error_text
from tunegym.tuning.spaces import SHORT, SpaceError, element_of, has_nan, leaves, nothing_of
from tunegym.tuning.stores.columns import SIDES, leaf_values, row_type
from tunegym.tuning.stores.reader import JOURNAL, Lost, steps
from tunegym.tuning.stores.steps import StepStore


class Display:
    """What an agent sees: the server's own observation, and beside it the env_params that have an encoding.

    Attributes:
        space: of what is shown.
        shows: whether that is more than the server's own observation.
    """

    def __init__(self, experiment: Experiment, observations: spaces.Space[Any], encodings: FindEncoding | None) -> None:
        encoded = {name: one for name, one in experiment.env_params.params.items() if one.encoding is not None}
        self._leaves = ContextLeaves(EnvParams(encoded, experiment.env_params.seed), encodings) if encoded else None
        self.space = observations
        self.shows = self._leaves is not None
        if self._leaves is not None:
            context: dict[str, spaces.Space[Any]] = {
                name: leaf_space(leaf) for name, leaf in self._leaves.descriptors().items()
            }
            self.space = spaces.Dict({"observation": observations, "context": spaces.Dict(context)})

    def shown(self, observation: Any, context: Context) -> Any:
        """An element of ``space``; ``context`` is that of the next step."""
        if self._leaves is None:
            return observation
        encoded = self._leaves.encode(context)
        own = {name: leaf.copy() if isinstance(leaf, ndarray) else leaf for name, leaf in encoded.items()}
        return {"observation": observation, "context": own}


class Recorder:
    """Records a server's answers, and turns them into what an agent sees.

    Args:
        store: where steps are written down.
        score: gives the rewards.
        display: what an agent sees.
        tally: counts steps.
        observations: the server's own space.
        following: the context of a lane's next step, given whether its episode is over; None without env_params.
    """

    def __init__(
        self,
        store: StepStore,
        score: StepScore,
        display: Display,
        tally: StepTally,
        observations: spaces.Space[Any],
        following: Callable[[Lane, Running, bool], Context] | None,
    ) -> None:
        self._store = store
        self._add = store.add
        self._score = score
        self._shown = display.shown if display.shows else None
        self._tally = tally
        self._own = element_of(observations)
        self._nothing = nothing_of(observations)
        # Short vectors of floats are what quick systems have: they are checked here, without a call.
        short = isinstance(observations, spaces.Box) and len(observations.shape) == 1 and observations.shape[0] < SHORT
        floats = short and np.dtype(observations.dtype).kind == "f"
        self._dtype = np.dtype(observations.dtype) if floats else None
        self._shape = observations.shape if floats else None
        self._following = following
        kind, self._every = store.recording.kind, store.recording.every
        self._all, self._ends_only = kind == "all", kind == "episodes"

    def took(
        self, lane: Lane, number: int, action: Any, context: Context, answer: StepAnswer, began: float
    ) -> StepAnswer:
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
        score, metrics = self._score, NO_METRICS
        if type(info) is not dict:
            info = _plain(info)
        if type(reward) is not float or not score.low <= reward <= score.high:
            reward, metrics = score.score(reward, info)
        if terminated is not False or truncated is not False:
            terminated, truncated = _flag(terminated), _flag(truncated)
        over = terminated or truncated
        episode = lane.episode
        assert episode is not None
        lane.failures = 0
        episode.last = number
        episode.length += 1
        episode.total += reward
        if self._all or (over if self._ends_only else number % self._every == 0):
            self._add(
                number, episode.number, action, observation, reward, duration, terminated, truncated, context, metrics
            )
        else:
            self._store.upto = number
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
        if over:
            self.finish(lane, "terminated" if terminated else "truncated")
        if self._shown is not None:
            if over:  # the last observation belongs to its own conditions, not to the next ones
                answered["final_observation"] = self._shown(self._own(observation), context)
            observation = self._shown(observation, following)
        return observation, reward, terminated, truncated, answered

    def _owned(self, observation: Any) -> Any:
        try:
            return self._own(observation)
        except SpaceError as error:
            raise ServerFailure(f"step: the observation is not of observation_space: {error}") from error
        except RAISED as error:  # the conversion runs the server's code too
            raise ServerFailure(f"step: its observation: {error_text(error)}") from error

    def failed(
        self, lane: Lane, number: int, action: Any, context: Context, status: str, reason: str, began: float
    ) -> tuple[float, dict[str, Any]]:
        """Record a step without a measurement: its penalty, and its info. The episode goes on."""
        penalty = self._score.penalty()
        episode = lane.episode
        assert episode is not None
        episode.last = number
        episode.length += 1
        episode.total += penalty
        told = status, printable(reason)
        duration = perf_counter() - began
        self._store.add(
            number, episode.number, action, self._nothing, penalty, duration, False, False, context, {}, told
        )
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
        finished = lane.finished(end)
        if finished is not None:
            self._store.episode_over(finished)
            self._tally.episodes += 1
            if end in ("terminated", "truncated"):
                self._tally.returns.append(finished.total)


def _plain(info: Any) -> dict[str, Any]:
    """A server's info as a dict, whatever mapping it is."""
    if not isinstance(info, Mapping):
        raise ServerFailure(f"step: its info is {type(info).__name__}, not a dict")
    try:
        return dict(info)
    except RAISED as error:
        raise ServerFailure(f"step: its info: {error_text(error)}") from error


def _flag(found: Any) -> bool:
    try:
        return bool(found)
    except RAISED:
        raise ServerFailure(f"step: {found!r:.60} is neither true nor false") from None


# read back --------------------------------------------------------------------------------------------


def transitions(
    folder: Path,
    actions: spaces.Space[Any],
    observations: spaces.Space[Any],
    env_params: EnvParams,
    display: Display,
    after: int,
) -> Iterator[Transition]:
    """Recorded steps with numbers above ``after``, each with the observation before it.

    The first step of an episode has none on record, nor has one that follows a lost or unmeasured step. Memory doesn't
    grow with the steps.
    """
    acted, seen = _Elements(folder, "action", actions), _Elements(folder, "observation", observations)
    begun: dict[int, tuple[int, Any]] = {}  # by open episode: its last step's number and observation
    for group in steps(folder / JOURNAL):
        if isinstance(group, Lost) or group.numbers[-1] <= after:
            begun.clear()
            continue
        chosen = acted.of(group.actions, group.action_row, len(group.numbers))
        shown = seen.of(group.observations, group.observation_row, len(group.numbers))
        contexts = group.context_of()
        for at, (number, episode) in enumerate(zip(group.numbers, group.episodes, strict=True)):
            previous = begun.pop(episode, None)
            if at in group.unmeasured:
                continue
            context = following = contexts[at]
            terminated, truncated = at in group.terminated, at in group.truncated
            if not terminated and not truncated:
                begun[episode] = number, shown[at]
            if previous is None or number <= after:
                continue
            last, before = previous
            if episode in begun:  # lanes take turns, so this lane's next step is as far away as its last one was
                following = env_params.next_context(context, 2 * number - last)
            yield Transition(
                display.shown(before, context),
                chosen[at],
                group.rewards[at],
                display.shown(shown[at], following),
                terminated,
                truncated,
            )


class _Elements:
    """The elements of one space, from records or from a side file."""

    def __init__(self, folder: Path, name: str, space: spaces.Space[Any]) -> None:
        self._space = space
        self._leaves = leaves(space)
        self._path = folder / SIDES[name]
        self._type = row_type(space)

    def of(self, inline: list[Any] | None, row: int, count: int) -> list[Any]:
        if inline is not None:
            arrays = [leaf_values(leaf, values) for leaf, values in zip(self._leaves, inline, strict=True)]
        else:
            rows = np.fromfile(self._path, dtype=self._type, count=count, offset=row * self._type.itemsize)
            arrays = [rows[name] for name in self._type.names or ()]
        columns = {leaf.path: array for leaf, array in zip(self._leaves, arrays, strict=True)}
        return [_element(self._space, columns, at) for at in range(count)]


def _element(space: spaces.Space[Any], columns: Mapping[Any, Any], at: int, path: tuple[str | int, ...] = ()) -> Any:
    """An element of ``space`` from row ``at`` of each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: _element(part, columns, at, (*path, str(key))) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_element(part, columns, at, (*path, place)) for place, part in enumerate(space.spaces))
    return columns[path][at]
