"""A live system as Stable-Baselines3 takes it: its spaces, and a vector of environments with one for each lane.

The library's spaces have one level, count from 0 and are bounded. Nothing is lost on the way: a nested observation
becomes a flat ``Dict`` whose keys are joined with slashes, other starts are shifted, and scalars become arrays of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from torch.nn import ModuleDict

from tunegym.core.errors import BudgetError
from tunegym.tuning.ports import LiveEnv
from tunegym.tuning.spaces import leaves

Batch: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""Observations of all lanes in the library's form."""


def _from_zero(space: Any) -> tuple[spaces.Space[Any], Any]:
    """A space that counts from 0 and has a level of one or more numbers, and the offset of ``space`` to it."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n)), int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.reshape(-1)), space.start.reshape(-1)
    if isinstance(space, spaces.Box) and space.shape == ():
        return spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type), 0
    return space, 0


class Actions:
    """The server's action space, and the one an algorithm chooses from."""

    def __init__(self, theirs: spaces.Space[Any], seed: int) -> None:
        self._theirs = theirs
        self._dtype = np.dtype(theirs.dtype)
        self.space, self._offset = _from_zero(theirs)
        if isinstance(self.space, spaces.Box):
            self.space = spaces.Box(self.space.low.astype(np.float32), self.space.high.astype(np.float32))
        elif isinstance(self.space, spaces.MultiBinary):
            self.space = spaces.MultiBinary(int(np.prod(self.space.shape)))
        self.space.seed(seed)

    def theirs(self, chosen: np.ndarray) -> list[Any]:
        """The servers' actions; ``chosen`` has a row for each lane."""
        theirs = self._theirs
        rows = (chosen + self._offset).reshape(-1, *(theirs.shape or ()))
        if isinstance(theirs, spaces.Box):
            rows = np.rint(rows) if self._dtype.kind in "iu" else rows
            return list(np.clip(rows.astype(self._dtype), theirs.low, theirs.high))  # rounding may lead out of bounds
        return list(rows.astype(self._dtype))

    def ours(self, taken: Sequence[Any]) -> np.ndarray:
        """The reverse of ``theirs``."""
        rows = np.stack([np.asarray(one) for one in taken]).reshape(len(taken), *(self.space.shape or ()))
        return (rows - self._offset).astype(self.space.dtype)


class Observations:
    """The server's observation space, and the one a policy sees."""

    def __init__(self, theirs: spaces.Space[Any]) -> None:
        self._leaves = leaves(theirs)
        found = [_from_zero(self._part(theirs, leaf.path)) for leaf in self._leaves]
        self._spaces, self._offsets = [space for space, _ in found], [offset for _, offset in found]
        self._keys = self._named()
        self._nested = bool(self._leaves[0].path)
        self.space = spaces.Dict(dict(zip(self._keys, self._spaces, strict=True))) if self._nested else self._spaces[0]

    def ours(self, observations: Sequence[Any]) -> Batch:
        """A row for each of the observations, in new memory."""
        columns: dict[str, np.ndarray] = {}
        for key, leaf, space, offset in zip(self._keys, self._leaves, self._spaces, self._offsets, strict=True):
            rows = np.array([leaf.of(one) for one in observations])
            columns[key] = (rows.reshape(len(rows), *(space.shape or ())) - offset).astype(space.dtype)
        return columns if self._nested else columns[self._keys[0]]

    def one(self, observation: Any) -> Any:
        """A single observation."""
        batch = self.ours([observation])
        return {key: rows[0] for key, rows in batch.items()} if isinstance(batch, dict) else batch[0]

    def _part(self, space: Any, path: Sequence[str | int]) -> spaces.Space[Any]:
        for place in path:
            space = space.spaces[place]
        return space

    def _named(self) -> list[str]:
        """A key for each leaf that torch takes as the name of a module: no dots, and no attribute of ``ModuleDict``."""
        taken = ModuleDict()
        keys: list[str] = []
        for leaf in self._leaves:
            key = "/".join(str(part) for part in leaf.path).replace(".", "/")
            while not key or key in keys or hasattr(taken, key):
                key += "_"
            keys.append(key)
        return keys


# the vector -----------------------------------------------------------------------------------------

_NOTHING: dict[str, Any] = {}
"""The info of a step that ends no episode; never written to."""


class LeftError(Exception):
    """Leaves the library's loop; ``cause`` is the live system's exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class LiveVector(VecEnv):
    """Steps all lanes at once, and starts the next episode where one ends, as the library's own vectors do.

    The live system's exceptions come out as ``LeftError``, to tell them from errors of the algorithm. So does the end
    of the budget: if fewer steps are left than there are lanes, only that many lanes are stepped.
    ``left`` is the budget in steps, None if it doesn't count steps.
    """

    def __init__(self, env: LiveEnv, actions: Actions, observations: Observations, left: int | None) -> None:
        super().__init__(env.slots, observations.space, actions.space)
        self._env = env
        self._actions = actions
        self._observations = observations
        self._left = left
        self._chosen = np.empty(0)
        # If no context is shown, a `final_observation` in the info is the server's own.
        self._shows = any(param.encoding is not None for param in env.experiment.env_params.params.values())

    def reset(self) -> Batch:
        """Start an episode in every lane that will be stepped."""
        lanes = self.num_envs if self._left is None else max(1, min(self.num_envs, self._left))
        try:
            seen = [self._env.reset(lane)[0] for lane in range(lanes)]
        except Exception as error:
            raise LeftError(error) from error
        return self._observations.ours(seen + [seen[0]] * (self.num_envs - lanes))

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions."""
        self._chosen = actions

    def step_wait(self) -> tuple[Batch, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step all lanes."""
        actions = self._actions.theirs(self._chosen)
        width = self.num_envs if self._left is None else min(self.num_envs, self._left)
        try:
            answers = self._env.step_all(actions[:width]) if width else []
            if width < self.num_envs:  # the last steps are too few to learn from
                raise BudgetError("the budget is used up")
            if self._left is not None:
                self._left -= width
            return self._results(answers)
        except Exception as error:
            raise LeftError(error) from error

    def _results(self, answers: list[Any]) -> tuple[Batch, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        rewards = np.empty(self.num_envs, dtype=np.float32)
        dones = np.zeros(self.num_envs, dtype=bool)
        infos: list[dict[str, Any]] = [_NOTHING] * self.num_envs
        seen = []
        for lane, (observation, reward, terminated, truncated, info) in enumerate(answers):
            rewards[lane] = reward
            if terminated or truncated:
                dones[lane] = True
                # With a shown context, the returned observation is under the next episode's already.
                last = info.get("final_observation", observation) if self._shows else observation
                success = {"is_success": info["is_success"]} if "is_success" in info else {}
                cut_off = bool(truncated and not terminated)
                ended = {"TimeLimit.truncated": cut_off, "terminal_observation": self._observations.one(last)}
                infos[lane] = {**success, **ended}
                if self._env.exhausted() is None:
                    observation, self.reset_infos[lane] = self._env.reset(lane)
                else:  # there is no next episode
                    self._left = 0
            seen.append(observation)
        return self._observations.ours(seen), rewards, dones, infos

    def close(self) -> None:
        """The app closes the live system."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """A lane has no attributes."""
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)

    def _refuse(self, *names: Any, **options: Any) -> Any:
        raise AttributeError(names[0])

    set_attr = env_method = _refuse

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """A lane has no wrappers."""
        return [False] * self.num_envs
