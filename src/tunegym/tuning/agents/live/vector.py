"""A live system as the vector of environments that Stable-Baselines3 learns from: one for each lane."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from tunegym.core.errors import BudgetError
from tunegym.tuning.agents.live.fitting import Actions, Batch, Observations
from tunegym.tuning.ports import LiveEnv

_NOTHING: dict[str, Any] = {}
"""What there is to say of a step that ends no episode. Nobody writes into it."""


class LeftError(Exception):
    """The library's loop is to be left; ``cause`` is what the live system raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class LiveVector(VecEnv):
    """Steps all lanes at once, and begins the next episode where one ends, as the library's own vectors do.

    What the live system raises comes out as a ``LeftError``, so that it can be told from an error of the algorithm. So
    does the end of the budget: when fewer steps are left than there are lanes, so many lanes are stepped, and then the
    loop is left. No step is taken past the budget, and none is left over.

    Args:
        env: the live system.
        actions: its action space.
        observations: its observation space.
        left: how many steps there may be; None for any number.
    """

    def __init__(self, env: LiveEnv, actions: Actions, observations: Observations, left: int | None) -> None:
        super().__init__(env.slots, observations.space, actions.space)
        self._env = env
        self._actions = actions
        self._observations = observations
        self._left = left
        self._chosen: np.ndarray | None = None
        # Without contexts to be shown, a key of this name is the server's own.
        self._shows = any(param.encoding is not None for param in env.experiment.env_params.params.values())
        self._begun = time.perf_counter()
        self._returns = [0.0] * env.slots
        self._lengths = [0] * env.slots

    def reset(self) -> Batch:
        """Begin an episode in every lane that will be stepped."""
        lanes = self.num_envs if self._left is None else max(1, min(self.num_envs, self._left))
        try:
            seen = [self._env.reset(lane)[0] for lane in range(lanes)]
        except Exception as error:
            raise LeftError(error) from error
        return self._observations.ours(seen + [seen[0]] * (self.num_envs - lanes))

    def step_async(self, actions: np.ndarray) -> None:
        """Note what is to be done."""
        self._chosen = actions

    def step_wait(self) -> tuple[Batch, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Do it in all lanes."""
        assert self._chosen is not None
        actions = self._actions.theirs(self._chosen)
        if self._left is not None:
            if self._left < self.num_envs:
                self._finish(actions[: self._left])
            self._left -= self.num_envs
        try:
            answers = self._env.step_all(actions)
            return self._taken_in(answers)
        except Exception as error:
            raise LeftError(error) from error

    def _finish(self, actions: list[Any]) -> None:
        """The last steps, which are too few to learn from."""
        self._left = 0
        try:
            if actions:
                self._env.step_all(actions)
        except Exception as error:
            raise LeftError(error) from error
        raise LeftError(BudgetError("the budget is used up"))

    def _taken_in(self, answers: list[Any]) -> tuple[Batch, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        rewards = np.empty(self.num_envs, dtype=np.float32)
        dones = np.zeros(self.num_envs, dtype=bool)
        infos: list[dict[str, Any]] = [_NOTHING] * self.num_envs
        returns, lengths = self._returns, self._lengths
        seen = []
        for lane, (observation, reward, terminated, truncated, info) in enumerate(answers):
            rewards[lane] = reward
            returns[lane] += reward
            lengths[lane] += 1
            if terminated or truncated:
                dones[lane] = True
                infos[lane] = self._ended(lane, observation, bool(truncated and not terminated), info)
                if self._env.exhausted() is None:
                    observation, self.reset_infos[lane] = self._env.reset(lane)
                else:  # nobody will look at its next episode
                    self._left = 0
            seen.append(observation)
        return self._observations.ours(seen), rewards, dones, infos

    def _ended(self, lane: int, observation: Any, cut_off: bool, info: dict[str, Any]) -> dict[str, Any]:
        seconds = round(time.perf_counter() - self._begun, 6)
        episode = {"r": self._returns[lane], "l": self._lengths[lane], "t": seconds}
        self._returns[lane], self._lengths[lane] = 0.0, 0
        if self._shows:  # what was returned is under the next episode's context already
            observation = info.get("final_observation", observation)
        said = {"TimeLimit.truncated": cut_off, "terminal_observation": self._observations.one(observation)}
        success = {"is_success": info["is_success"]} if "is_success" in info else {}
        return {**said, **success, "episode": episode}

    # what the library asks besides ------------------------------------------------------------------------

    def close(self) -> None:
        """The live system is closed by whoever made it."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """There is nothing behind a lane that could be asked."""
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Nor set."""
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Nor called."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Nor wrapped."""
        return [False] * self.num_envs
