"""Stable-Baselines3's algorithms with generators of their own, schedules over our budget, and a word after each update.

Nothing else of them is changed: they learn in their own loop. What is ours isn't saved, so the library's own ``load``
makes its own class of a saved model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3 import A2C, DQN, PPO, SAC


@dataclass
class Ours:
    """What an algorithm is given besides its settings.

    Attributes:
        rng: what it draws from.
        horizon: the steps of the whole budget, which schedules lead to the end of.
        updated: called after each update.
    """

    rng: np.random.Generator
    horizon: int
    updated: Callable[[], None]


_OURS = ["ours", "rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer_class", "replay_buffer_kwargs"]


class _Owned:
    """What all of them have in common."""

    ours: Ours

    def train(self, *args: Any, **kwargs: Any) -> None:
        """One update."""
        base: Any = super()
        base.train(*args, **kwargs)
        self.ours.updated()

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        del total_timesteps
        self._current_progress_remaining = max(0.0, 1.0 - num_timesteps / self.ours.horizon)

    def _excluded_save_params(self) -> list[str]:
        base: Any = super()
        return [*base._excluded_save_params(), *_OURS]


class OwnPpo(_Owned, PPO):
    """PPO."""


class OwnA2c(_Owned, A2C):
    """A2C."""


class _OffPolicy(_Owned):
    """Trains only once it remembers enough, which after a resume need not be so although it has learned before."""

    replay_buffer: Any
    learning_starts: int
    n_envs: int

    def train(self, *args: Any, **kwargs: Any) -> None:
        """One update."""
        remembered = self.replay_buffer.size() * self.n_envs
        if self.replay_buffer.full or remembered >= self.learning_starts:
            super().train(*args, **kwargs)


class OwnDqn(_OffPolicy, DQN):
    """DQN."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """What it values most, or, less and less often, anything."""
        if deterministic or self.ours.rng.random() >= self.exploration_rate:
            return self.policy.predict(observation, state, episode_start, deterministic)
        space: Any = self.action_space
        return self.ours.rng.integers(space.n, size=self.n_envs), state


class OwnSac(_OffPolicy, SAC):
    """SAC."""
