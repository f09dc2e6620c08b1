"""Training on a live system, in the library's own loop (ADR 22), from the last checkpoint to the end of the budget.

The algorithms are the library's with seeded draws, schedules over our budget and a callback after each update. None of
this is saved, so that the library's ``load`` reads a saved model as its own class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.utils import LinearSchedule, obs_as_tensor
from stable_baselines3.common.vec_env import VecMonitor, VecTransposeImage

from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.live_learner import DIVERGED, STARTS, Draws, LiveTraining, check_memory, training
from tunegym.tuning.agents.sb3 import algorithms
from tunegym.tuning.agents.sb3.config import FEWEST, LiveOffPolicyConfig, LiveOnPolicyConfig, LivePolicyConfig
from tunegym.tuning.agents.sb3.vector import Actions, LeftError, LiveVector, Observations
from tunegym.tuning.ports import LiveEnv, Transition

ENDLESS = 2**62
SMALLEST_IMAGE = 36
"""In each direction, for the library's network for images."""


@dataclass
class Hooks:
    """An algorithm's randomness, the whole budget in steps for its schedules, and a call after each update."""

    draws: Draws
    horizon: int
    updated: Callable[[], None]


class _Hooked:
    """The library's algorithm with our hooks."""

    hooks: Hooks
    num_timesteps: int

    def train(self, *args: Any, **kwargs: Any) -> None:
        """One update."""
        base: Any = super()
        with self.hooks.draws.stream("train", self.num_timesteps):
            base.train(*args, **kwargs)
        self.hooks.updated()

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        self._current_progress_remaining = max(0.0, 1.0 - num_timesteps / self.hooks.horizon)

    def _excluded_save_params(self) -> list[str]:
        base: Any = super()
        return [*base._excluded_save_params(), "hooks"]


class _LiveOnPolicy(_Hooked):
    policy: Any

    def seed_choices(self) -> None:
        """Draw the actions of a step by its number."""
        forward = self.policy.forward

        def seeded(*args: Any, **kwargs: Any) -> Any:
            with self.hooks.draws.torch_stream("act", self.num_timesteps):
                return forward(*args, **kwargs)

        self.policy.forward = seeded


class _OffPolicy(_Hooked):
    """Trains only once its buffer holds enough, which may not be so after a resume."""

    replay_buffer: Any
    learning_starts: int
    n_envs: int

    def train(self, *args: Any, **kwargs: Any) -> None:
        """One update."""
        remembered = self.replay_buffer.size() * self.n_envs
        if self.replay_buffer.full or remembered >= self.learning_starts:
            super().train(*args, **kwargs)

    def _sample_action(self, *args: Any, **kwargs: Any) -> Any:
        base: Any = super()
        with self.hooks.draws.torch_stream("act", self.num_timesteps):
            return base._sample_action(*args, **kwargs)


class _Dqn(_OffPolicy, DQN):
    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Epsilon-greedy, without numpy's shared generator."""
        explores = self.hooks.draws.unit("explore", self.num_timesteps) < self.exploration_rate
        if deterministic or not explores:
            return self.policy.predict(observation, state, episode_start, deterministic)
        return np.array([self.action_space.sample() for _ in range(self.n_envs)]), state


_KINDS: dict[str, Any] = {
    "ppo": type("_Ppo", (_LiveOnPolicy, PPO), {}),
    "a2c": type("_A2c", (_LiveOnPolicy, A2C), {}),
    "dqn": _Dqn,
    "sac": type("_Sac", (_OffPolicy, SAC), {}),
}


def build_model(name: str, config: LivePolicyConfig, vector: Any, hooks: Hooks) -> Any:
    """The algorithm of an agent. Raises ``TrainingError`` if its replay buffer doesn't fit into memory."""
    settings: dict[str, Any] = {}
    for setting in ("learning_rate", "clip_range"):
        if getattr(config, f"{setting}_schedule", "constant") == "linear":
            settings[setting] = LinearSchedule(getattr(config, setting), 0.0, 1.0)
    if isinstance(config, LiveOffPolicyConfig):
        lanes = vector.num_envs
        settings["buffer_size"] = min(config.buffer_size, -(-hooks.horizon // lanes) * lanes)
        check_memory(vector.observation_space, settings["buffer_size"])
        if config.learning_starts is None:
            settings["learning_starts"] = min(STARTS, hooks.horizon // 10)
    model = algorithms.build(_KINDS[name], _policy(vector.observation_space), vector, config, hooks.draws, **settings)
    model.hooks = hooks
    if isinstance(model, _LiveOnPolicy):
        model.seed_choices()
    return model


def _policy(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    if is_image_space(space) and sorted(space.shape or ())[1] >= SMALLEST_IMAGE:
        return "CnnPolicy"
    return "MlpPolicy"


class Sb3LiveTraining(LiveTraining):
    """The library's loop on a live system."""

    def __init__(self, env: LiveEnv, name: str, config: LivePolicyConfig, seed: int) -> None:
        super().__init__(env, name, config, seed)
        self._actions = Actions(env.action_space, self._draws.integer(2**31, "random", self._first))
        self._observations = Observations(env.observation_space)
        self._model: Any = None

    # before the first step ----------------------------------------------------------------------------

    def _restore(self) -> int:
        self._model, saved = self._files.restored(self._build, algorithms.restore)
        self._model.num_timesteps = self._first
        self._model._update_current_progress_remaining(self._first, self._horizon)
        return saved

    def _build(self, kind: str | None) -> Any:
        left = None if self._most is None else max(0, self._most - self._first)
        vector = VecMonitor(LiveVector(self._env, self._actions, self._observations, left))
        return build_model(self._name, self._config, vector, Hooks(self._draws, self._horizon, self._updated))

    def _remember(self) -> int | None:
        if not isinstance(self._config, LiveOffPolicyConfig):
            return None
        buffer = self._model.replay_buffer
        lanes = self._model.n_envs
        steps = iter(self._env.transitions(buffer.buffer_size * lanes))
        count = 0
        while len(row := list(islice(steps, lanes))) == lanes:
            self._add(row)
            count += lanes
        return count

    def _add(self, row: list[Transition]) -> None:
        model = self._model
        seen, after = ([getattr(step, name) for step in row] for name in ("observation", "after"))
        batches = [self._observations.ours(one) for one in (seen, after)]
        if isinstance(model.env, VecTransposeImage):
            batches = [model.env.transpose_observations(one) for one in batches]
        chosen = self._actions.ours([step.action for step in row])
        if self._name == "sac":
            chosen = model.policy.scale_action(chosen)
        ended = np.array([step.terminated or step.truncated for step in row])
        infos = [{"TimeLimit.truncated": step.truncated and not step.terminated} for step in row]
        model.replay_buffer.add(*batches, chosen, np.array([step.reward for step in row]), ended, infos)

    # the loop -----------------------------------------------------------------------------------------

    def _learn(self) -> Exception | None:
        steps = ENDLESS if self._most is None else self._most - self._first
        with training():
            try:
                self._model.learn(steps, log_interval=None, reset_num_timesteps=False)
            except LeftError as left:
                return left.cause
        return None

    def _updated(self) -> None:
        """Log and save after an update."""
        values: dict[str, Any] = self._model.logger.name_to_value
        if not all(math.isfinite(value) for name, value in values.items() if name.endswith("loss")):
            raise TrainingError(DIVERGED)
        self._record_update(values, self._model.ep_info_buffer)

    def _save_policy(self, taken: int) -> None:
        if not algorithms.is_finite(self._model):
            raise TrainingError(DIVERGED)
        self._files.save(type(self._actions.space).__name__, algorithms.state_of(self._model), taken)
        self._files.save_model(self._model.save)

    def _train_on_rest(self) -> None:
        """An update on an incomplete rollout."""
        if not isinstance(self._config, LiveOnPolicyConfig):
            return
        model, buffer = self._model, self._model.rollout_buffer
        model._update_current_progress_remaining(model.num_timesteps, self._horizon)
        if buffer.full or buffer.pos * buffer.n_envs < FEWEST:
            return
        for name, rows in vars(buffer).items():
            if isinstance(rows, np.ndarray):
                setattr(buffer, name, rows[: buffer.pos])
            elif name == "observations":
                buffer.observations = {key: column[: buffer.pos] for key, column in rows.items()}
        buffer.buffer_size, buffer.full = buffer.pos, True
        with torch.no_grad():
            values = model.policy.predict_values(obs_as_tensor(model._last_obs, model.device))
        buffer.compute_returns_and_advantage(last_values=values, dones=model._last_episode_starts)
        model.train()
