"""Training on a live system, from the last checkpoint to the end of the budget. All lanes take their steps together."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space

from tunegym.core.errors import ActionError, BudgetError, ServerLostError
from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.agents.rllib.algorithm import Algorithm, DqnAlgorithm, PpoAlgorithm
from tunegym.tuning.agents.rllib.config import LiveRllibDqnConfig, LiveRllibPpoConfig
from tunegym.tuning.agents.rllib.runner import Result, Shown
from tunegym.tuning.agents.training import DIVERGED, Draws, training
from tunegym.tuning.ports import LiveEnv

logger = logging.getLogger(__name__)

HORIZON = 100_000
"""Assumed budget where only time bounds it."""
LINES = 1000
"""Approximate number of points in the training curves of a budget."""
STARTS = 100
"""Random steps of DQN before it learns, at most a tenth of the budget."""
EPISODES = 100
"""Of the last of which the training curves have the mean return and length."""


class ServerActions:
    """The server's action space, and the one that RLlib chooses from.

    That has a number for each discrete part and one from -1 to 1 for each continuous one, however they are nested.
    """

    def __init__(self, theirs: spaces.Space[Any]) -> None:
        self._theirs = theirs
        counts: list[int] = []
        reals = 0
        for leaf in _leaves(theirs):
            if isinstance(leaf, spaces.Box):
                reals += int(np.prod(leaf.shape))
            else:
                counts += _counts(leaf)
        box = spaces.Box(-1.0, 1.0, (reals,), np.float32)
        whole = spaces.Discrete(counts[0]) if isinstance(theirs, spaces.Discrete) else spaces.MultiDiscrete(counts)
        self._mixed = bool(counts) and reals > 0
        self._real = not counts
        self.space: spaces.Space[Any] = spaces.Tuple((whole, box)) if self._mixed else box if self._real else whole

    def theirs(self, chosen: Any) -> Any:
        """The server's action for RLlib's."""
        whole, reals = chosen if self._mixed else ([], chosen) if self._real else (chosen, [])
        return _assembled(self._theirs, iter(np.reshape(whole, -1)), iter(np.reshape(reals, -1)))


def _leaves(space: Any) -> Iterator[spaces.Space[Any]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from _leaves(part)
    else:
        yield space


def _counts(leaf: Any) -> list[int]:
    """How many values each number of a discrete part has."""
    if isinstance(leaf, spaces.Discrete):
        return [int(leaf.n)]
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.nvec.reshape(-1).tolist()
    return [2] * int(np.prod(leaf.shape))


def _assembled(space: Any, whole: Iterator[Any], reals: Iterator[Any]) -> Any:
    """An element of ``space`` from the next of these numbers."""
    if isinstance(space, spaces.Dict):
        return {key: _assembled(part, whole, reals) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assembled(part, whole, reals) for part in space.spaces)
    size = int(np.prod(space.shape))
    if isinstance(space, spaces.Box):
        at = np.clip(np.array([next(reals) for _ in range(size)], np.float64).reshape(space.shape), -1.0, 1.0)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        value = low + (at + 1.0) / 2.0 * (high - low)
        value = np.rint(value) if np.dtype(space.dtype).kind in "iu" else value
        return np.clip(value.astype(space.dtype), space.low, space.high)  # rounding may lead out of bounds
    if isinstance(space, spaces.Discrete):
        return np.asarray(next(whole) + space.start).astype(space.dtype)[()]
    numbers = np.array([next(whole) for _ in range(size)]).reshape(space.shape)
    return (numbers + getattr(space, "start", 0)).astype(space.dtype)


class LiveTraining:
    """Learns until the budget ends, and keeps the policy on disk. ``run`` raises what ``LiveAgent.run`` expects."""

    _algorithm: Algorithm

    def __init__(self, env: LiveEnv, name: str, config: LiveRllibPpoConfig | LiveRllibDqnConfig, seed: int) -> None:
        self._env = env
        self._name = name
        self._config = config
        self._files = PolicyFiles(env.folder, name, unit="step")
        self._draws = Draws(seed, name)
        self._most = env.experiment.most_trials
        self._horizon = self._most or HORIZON
        self._actions = ServerActions(env.action_space)
        flat = flatten_space(env.observation_space)
        self._observed = spaces.Box(-np.inf, np.inf, flat.shape or (1,), np.float32)
        # If no context is shown, a `final_observation` in the info is the server's own.
        self._shows = any(param.encoding is not None for param in env.experiment.env_params.params.values())
        self._saved = self._logged = env.taken
        self._returns = [(0.0, 0)] * env.slots
        self._ended: deque[tuple[float, int]] = deque(maxlen=EPISODES)
        self._close: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Learn to the end; the steps collected by then are learned from, whatever the end."""
        try:
            with self._draws.one_thread():
                with training():
                    self._prepare()
                cause = self._drive()
                with training():
                    self._finish()
        finally:
            self._close()
        if cause is not None:
            raise cause

    # before the first step ----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Build the algorithm, and bring it to where it was."""
        self._algorithm, saved = self._files.restored(self._build, Algorithm.restore)
        taken = self._env.taken
        if taken:
            remembered = self._remember() if self._algorithm.off_policy else None
            self._files.report_resume(taken, min(saved, taken), remembered)

    def _build(self, kind: str | None) -> Algorithm:
        del kind
        self._close()  # one whose checkpoint doesn't fit
        config, lanes = self._config, self._env.slots
        arguments = config, self._observed, self._actions.space, self._draws, lanes, self._horizon
        if isinstance(config, LiveRllibPpoConfig):
            built: Algorithm = PpoAlgorithm(*arguments, n_steps=config.n_steps * lanes)
        else:
            starts = min(STARTS, self._horizon // 10) if config.learning_starts is None else config.learning_starts
            replay = {"train_freq": config.train_freq * lanes, "capacity": min(config.buffer_size, self._horizon)}
            built = DqnAlgorithm(*arguments, starts=starts, **replay)
        self._close = built.close
        return built

    def _remember(self) -> int:
        """Fill the replay buffer from the record; returns the number of steps."""
        count = 0
        start = int(getattr(self._env.action_space, "start", 0))
        for one in self._env.transitions(self._algorithm.capacity):
            result = Result(0, self._vector(one.after), one.reward, one.terminated, one.truncated)
            self._algorithm.add(Shown(0, 0, self._vector(one.observation)), int(one.action) - start, result)
            count += 1
        return count

    def _vector(self, observation: Any) -> np.ndarray:
        flat = flatten(self._env.observation_space, observation)
        return np.asarray(flat, dtype=np.float32).reshape(self._observed.shape)

    # the loop -----------------------------------------------------------------------------------------

    def _drive(self) -> ServerLostError | None:
        """Take steps to the end of the budget; returns the loss of the server if that ended it."""
        env = self._env
        try:
            seen = {lane: self._vector(env.reset(lane)[0]) for lane in range(self._width())}
            while env.exhausted() is None and (width := self._width()):
                number = env.taken + 1
                epsilon = self._algorithm.epsilon(number)
                shown = [Shown(lane, number + lane, seen[lane], epsilon=epsilon) for lane in range(width)]
                with training():
                    chosen = self._algorithm.decide(shown)
                answers = env.step_all([self._actions.theirs(one) for one in chosen])
                for one, action, answer in zip(shown, chosen, answers, strict=True):
                    seen[one.lane] = self._take(one, action, answer)
                if self._algorithm.due():
                    with training():
                        self._learn()
        except BudgetError:
            return None
        except ServerLostError as error:
            return error
        except ActionError as error:  # only a diverged policy chooses such
            raise TrainingError(f"{DIVERGED} ({error.message})") from error
        return None

    def _width(self) -> int:
        """How many lanes take the next step."""
        left = self._env.slots if self._most is None else max(0, self._most - self._env.taken)
        return min(self._env.slots, left)

    def _take(self, shown: Shown, chosen: Any, answer: Sequence[Any]) -> np.ndarray:
        """Add a step, and start the next episode where it ended one; returns what the lane sees next."""
        observation, reward, terminated, truncated, info = answer
        lane, over = shown.lane, bool(terminated or truncated)
        # With a shown context, the returned observation is under the next episode's already.
        last = info.get("final_observation", observation) if self._shows and over else observation
        after = self._vector(last)
        self._algorithm.add(shown, chosen, Result(lane, after, float(reward), bool(terminated), bool(truncated)))
        total, length = self._returns[lane]
        self._returns[lane] = total + float(reward), length + 1
        if not over:
            return after
        self._ended.append(self._returns[lane])
        self._returns[lane] = 0.0, 0
        return self._vector(self._env.reset(lane)[0]) if self._env.exhausted() is None else after

    def _learn(self, last: bool = False) -> None:
        """One update; log and save after it."""
        taken, values = self._env.taken, self._algorithm.train(self._env.taken, last)
        if values and taken - self._logged >= max(self._horizon, taken) // LINES:
            self._logged = taken
            if self._ended:
                total, length = np.mean(self._ended, axis=0).tolist()
                values |= {"rollout/ep_rew_mean": total, "rollout/ep_len_mean": length}
            self._files.log(taken, values)
        if values and taken - self._saved >= self._config.checkpoint_every:
            self._save()

    def _save(self) -> None:
        self._saved = self._env.taken
        self._files.save(self._algorithm.actions, self._algorithm.state(), self._saved)
        self._algorithm.save_model(self._files)

    def _finish(self) -> None:
        """Learn from the rest, also of a stopped run: an on-policy agent couldn't do so later."""
        if not self._algorithm.off_policy:
            self._learn(last=True)
        if not self._algorithm.trained:
            logger.warning("%s has learned nothing: %d steps are too few for an update", self._name, self._env.taken)
        elif self._env.taken > self._saved:
            self._save()
