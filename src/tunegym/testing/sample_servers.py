"""Sample servers for tests of hosts and agents; importable, so that other processes can build them, too."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

_KINDS: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "wide_box": spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 5.0]), dtype=np.float64),
    "image": spaces.Box(0, 255, (64, 64, 3), np.uint8),
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "discrete": spaces.Discrete(5),
    "discrete_from_3": spaces.Discrete(4, start=3),
    "multi_discrete": spaces.MultiDiscrete([2, 3, 4], dtype=np.int32),
    "multi_discrete_2d": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(0.0, 1.0, (2,))]),
    "nested": spaces.Dict(
        [
            ("b", spaces.Dict({"deep": spaces.Box(-1.0, 1.0, (2, 2)), "kind": spaces.Discrete(3, start=-1)})),
            ("a", spaces.Tuple([spaces.MultiBinary(3), spaces.MultiDiscrete([2, 2])])),
        ]
    ),
}
SPACES: Mapping[str, spaces.Space[Any]] = {
    "box": _KINDS["box"],
    "discrete": _KINDS["discrete_from_3"],
    "multi_discrete": _KINDS["multi_discrete"],
    "tuple": _KINDS["tuple"],
    "everything": spaces.Dict(list(_KINDS.items())),
}
"""By name; ``everything`` holds every kind, and its keys are not sorted."""

INFO: Mapping[str, Any] = {
    "nan": float("nan"),
    "infinite": float("-inf"),
    "tiny": 5e-324,
    "count": 7,
    "big": 2**80,
    "yes": True,
    "none": None,
    "text": "\u20ac \n \x00",
    "list": [1, 2.5, "a", [None]],
    "pair": (1, "b"),
    "deep": {"a": {"b": [{"c": 1}]}},
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "empty": np.zeros((0, 2), np.float32),
    "nans": np.array([np.nan, 1.0]),
    "scalar": np.float32(0.1),
}
"""An ``info`` with every kind of value that must arrive unchanged."""


class Echo:
    """Returns actions as observations; both spaces are ``SPACES[kind]``."""

    def __init__(self, kind: str = "box") -> None:
        self.action_space = SPACES[kind]
        self.observation_space = SPACES[kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return a drawn element of the space; ``info`` has the arguments."""
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"seed": seed, "options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the action, with ``INFO``."""
        if not self.action_space.contains(action):
            raise TypeError(f"{action!r} ({type(action).__name__}) is none of {self.action_space}")
        return action, -0.1, False, True, dict(INFO)

    def close(self) -> None:
        """Nothing to close."""


class Unruly:
    """Does what the action says, an index of ``DEEDS``; an observation is (steps since it was built, load)."""

    DEEDS = ("count", "raise", "exit", "hang", "unfit")

    def __init__(self, build: str = "fine", close: str = "fine", start: int = 0) -> None:
        if build == "raise":
            raise OSError("the port is taken")
        self.action_space = spaces.Discrete(len(self.DEEDS))
        self.observation_space = spaces.Box(0.0, 1e6, (2,), np.float64)
        self._close = close
        self._count = start
        self._load = 1.0

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """Set ``load``."""
        if params.keys() != {"load"}:
            raise KeyError(f"no such parameters: {sorted(params)}")
        self._load = params["load"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Raises if ``options`` say so."""
        if options:
            raise ValueError(f"no such options: {sorted(options)}")
        return np.array([self._count, self._load]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act."""
        deed = self.DEEDS[action]
        self._count += 1
        if deed == "raise":
            raise ValueError("boom\nin two lines")
        if deed == "exit":
            os._exit(3)
        if deed == "hang":
            time.sleep(600)
        info = {"what": object(), "fine": 1} if deed == "unfit" else {"pid": os.getpid()}
        return np.array([self._count, self._load]), float(self._count), False, False, info

    def close(self) -> None:
        """Raises if it was built to."""
        if self._close == "raise":
            raise RuntimeError("I stay")
