"""A live system as Stable-Baselines3 takes it: its spaces, and a vector of environments with one for each lane.

The library's spaces have one level, count from 0 and are bounded. Nothing is lost on the way: a nested observation
becomes a flat ``Dict`` whose keys are joined with slashes, other starts are shifted, and scalars become arrays of one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from torch.nn import ModuleDict

from tunegym.core.errors import BudgetError
from tunegym.tuning.ports import LiveEnv
from tunegym.tuning.spaces import Leaf, leaves

TAKES: Mapping[str, tuple[type[spaces.Space[Any]], ...]] = {
    "ppo": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    "a2c": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    "dqn": (spaces.Discrete,),
    "sac": (spaces.Box,),
}
"""Action spaces that each algorithm takes."""

Batch: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""Observations of all lanes in the library's form."""


def unfit(agent: str, actions: spaces.Space[Any], observations: spaces.Space[Any]) -> str | None:
    """Why an algorithm can't take these spaces, and which one can; None if it can."""
    if not isinstance(actions, TAKES[agent]):
        others = [name for name, kinds in TAKES.items() if isinstance(actions, kinds)] or ["random_search"]
        kinds = _listed([kind.__name__ for kind in TAKES[agent]], "or")
        takes = f"{_listed(others, 'and')} take{'s' if len(others) == 1 else ''} it"
        return f"{agent} needs a {kinds} action space, and the server's is {_short(actions)}: {takes}"
    if isinstance(actions, spaces.Box) and not actions.is_bounded():
        return (
            f"{agent} needs bounds to every number of a Box action space, and the server's is {_short(actions)}: "
            "random_search takes it"
        )
    if not leaves(observations):
        return f"{agent} needs something to observe, and the server's observation space is {_short(observations)}"
    return None


def _listed(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _short(space: spaces.Space[Any]) -> str:
    text = " ".join(repr(space).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


class Actions:
    """The server's action space, and the one an algorithm chooses from."""

    def __init__(self, theirs: spaces.Space[Any], seed: int) -> None:
        self._theirs = theirs
        self._offset: Any = 0
        self._dtype = np.dtype(theirs.dtype)
        self._shape = tuple(theirs.shape or ())
        if isinstance(theirs, spaces.Discrete):
            self.space: spaces.Space[Any] = spaces.Discrete(int(theirs.n), seed=seed)
            self._offset = int(theirs.start)
        elif isinstance(theirs, spaces.MultiDiscrete):
            self.space = spaces.MultiDiscrete(theirs.nvec.reshape(-1), seed=seed)
            self._offset = theirs.start.reshape(-1)
        elif isinstance(theirs, spaces.MultiBinary):
            self.space = spaces.MultiBinary(int(np.prod(self._shape)), seed=seed)
        else:
            assert isinstance(theirs, spaces.Box)
            low, high = (bound.reshape(self._shape or (1,)).astype(np.float32) for bound in (theirs.low, theirs.high))
            self.space = spaces.Box(low, high, dtype=np.float32, seed=seed)
        self._shifted = bool(np.any(self._offset))

    def theirs(self, chosen: np.ndarray) -> list[Any]:
        """The servers' actions; ``chosen`` has a row for each lane."""
        theirs = self._theirs
        if isinstance(theirs, spaces.Discrete):
            return list(chosen + self._offset if self._shifted else chosen)
        chosen = (chosen + self._offset if self._shifted else chosen).reshape(-1, *self._shape)
        if isinstance(theirs, spaces.Box):
            if self._dtype.kind in "iu":
                chosen = np.rint(chosen)
            return list(np.clip(chosen.astype(self._dtype), theirs.low, theirs.high))  # rounding may lead out of bounds
        return list(chosen.astype(self._dtype))

    def ours(self, taken: Sequence[Any]) -> np.ndarray:
        """The reverse of ``theirs``."""
        rows = np.stack([np.asarray(one) for one in taken]).reshape(len(taken), *(self.space.shape or ()))
        return (rows - self._offset).astype(self.space.dtype)


class Observations:
    """The server's observation space, and the one a policy sees."""

    def __init__(self, theirs: spaces.Space[Any]) -> None:
        found = leaves(theirs)
        self._parts = [_Part(theirs, leaf, key) for leaf, key in zip(found, _keys(found), strict=True)]
        self._single = self._parts[0] if not self._parts[0].leaf.path else None
        if self._single is not None:
            self.space: spaces.Space[Any] = self._single.space
            self._plain = self._single.offset is None and isinstance(theirs, spaces.Box) and theirs.shape != ()
        else:
            self.space = spaces.Dict({part.key: part.space for part in self._parts})
            self._plain = False

    def ours(self, observations: Sequence[Any]) -> Batch:
        """A row for each of the observations, in new memory."""
        if self._single is not None:
            rows = self._single.rows(len(observations))
            if self._plain:
                for at, one in enumerate(observations):
                    rows[at] = one
            else:
                self._single.fill(rows, observations)
            return rows
        batch = {part.key: part.rows(len(observations)) for part in self._parts}
        for part in self._parts:
            part.fill(batch[part.key], observations)
        return batch

    def one(self, observation: Any) -> Any:
        """A single observation."""
        batch = self.ours([observation])
        return {key: rows[0] for key, rows in batch.items()} if isinstance(batch, dict) else batch[0]


def _keys(found: Sequence[Leaf]) -> list[str]:
    """A key for each leaf that torch takes as the name of a module: no dots, and no attribute of ``ModuleDict``."""
    taken = ModuleDict()
    keys: list[str] = []
    for leaf in found:
        key = "/".join(str(part) for part in leaf.path).replace(".", "/")
        while not key or key in keys or hasattr(taken, key):
            key += "_"
        keys.append(key)
    return keys


class _Part:
    """One array of an observation."""

    def __init__(self, whole: spaces.Space[Any], leaf: Leaf, key: str) -> None:
        space: Any = whole
        for place in leaf.path:
            space = space.spaces[place]
        self.leaf = leaf
        self.key = key
        self.offset: Any = None
        if isinstance(space, spaces.Discrete):
            self.offset = int(space.start) or None
            space = spaces.Discrete(int(space.n))
        elif isinstance(space, spaces.MultiDiscrete):
            self.offset = space.start.reshape(-1) if space.start.any() else None
            space = spaces.MultiDiscrete(space.nvec.reshape(-1))
        elif isinstance(space, spaces.Box) and space.shape == ():
            space = spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type)
        self.space: spaces.Space[Any] = space
        self._shape = tuple(space.shape or ())
        self._dtype = np.dtype(space.dtype)

    def rows(self, count: int) -> np.ndarray:
        return np.empty((count, *self._shape), dtype=self._dtype)

    def fill(self, rows: np.ndarray, observations: Sequence[Any]) -> None:
        for at, observation in enumerate(observations):
            found = np.reshape(self.leaf.of(observation), self._shape)
            rows[at] = found if self.offset is None else found - self.offset


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

    Args:
        env: the live system.
        actions: its action space.
        observations: its observation space.
        left: the budget in steps; None if it doesn't count steps.
    """

    def __init__(self, env: LiveEnv, actions: Actions, observations: Observations, left: int | None) -> None:
        super().__init__(env.slots, observations.space, actions.space)
        self._env = env
        self._actions = actions
        self._observations = observations
        self._left = left
        self._chosen: np.ndarray | None = None
        # If no context is shown, a `final_observation` in the info is the server's own.
        self._shows = any(param.encoding is not None for param in env.experiment.env_params.params.values())
        self._begun = time.perf_counter()
        self._returns = [0.0] * env.slots
        self._lengths = [0] * env.slots

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
        assert self._chosen is not None
        actions = self._actions.theirs(self._chosen)
        if self._left is not None:
            if self._left < self.num_envs:
                self._finish(actions[: self._left])
            self._left -= self.num_envs
        try:
            answers = self._env.step_all(actions)
            return self._results(answers)
        except Exception as error:
            raise LeftError(error) from error

    def _finish(self, actions: list[Any]) -> None:
        """The last steps, too few to learn from."""
        self._left = 0
        try:
            if actions:
                self._env.step_all(actions)
        except Exception as error:
            raise LeftError(error) from error
        raise LeftError(BudgetError("the budget is used up"))

    def _results(self, answers: list[Any]) -> tuple[Batch, np.ndarray, np.ndarray, list[dict[str, Any]]]:
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
                else:  # there is no next episode
                    self._left = 0
            seen.append(observation)
        return self._observations.ours(seen), rewards, dones, infos

    def _ended(self, lane: int, observation: Any, cut_off: bool, info: dict[str, Any]) -> dict[str, Any]:
        seconds = round(time.perf_counter() - self._begun, 6)
        episode = {"r": self._returns[lane], "l": self._lengths[lane], "t": seconds}
        self._returns[lane], self._lengths[lane] = 0.0, 0
        if self._shows:  # the returned one shows the next episode's context already
            observation = info.get("final_observation", observation)
        said = {"TimeLimit.truncated": cut_off, "terminal_observation": self._observations.one(observation)}
        success = {"is_success": info["is_success"]} if "is_success" in info else {}
        return {**said, **success, "episode": episode}

    def close(self) -> None:
        """The app closes the live system."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """A lane has no attributes."""
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """A lane has no attributes."""
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """A lane has no methods."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """A lane has no wrappers."""
        return [False] * self.num_envs
