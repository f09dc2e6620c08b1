"""Servers for tests of hosts and agents; importable, so that other processes can build them, too."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
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
    "numbers": [float("nan"), float("-inf"), 5e-324, 2**80, True, None, np.float32(0.1)],
    "text": "\u20ac \n \x00",
    "deep": {"pair": (1, [{"c": 1}])},
    "arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 2), np.float32), np.array([np.nan, 1.0])],
}
"""An ``info`` with every kind of value that must arrive unchanged."""


class Echo:
    """Returns actions as observations; both spaces are ``SPACES[kind]``."""

    def __init__(self, kind: str = "box") -> None:
        self.action_space = SPACES[kind]
        self.observation_space = SPACES[kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"seed": seed, "options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise TypeError(f"{action!r} ({type(action).__name__}) is none of {self.action_space}")
        return action, -0.1, False, True, dict(INFO)

    def close(self) -> None:
        pass


DEEDS = ["fine", "raise", "exit", "leave", "hang", "spin", "stop", "die", "fork", "mute", "unfit", "large", "garbage"]


def deed(name: str) -> np.int64:
    """The action that makes ``Trouble`` do something."""
    return np.int64(DEEDS.index(name))


class Trouble:
    """Does as the action says, one of ``DEEDS``; an observation is (steps since it was built, load)."""

    def __init__(self, size: int = 2, start: int = 0, build: str = "", close: str = "") -> None:
        if build:
            raise OSError(build)
        self.action_space = spaces.Discrete(len(DEEDS))
        self.observation_space = spaces.Box(0.0, 1e6, (size,), np.float64)
        self._steps, self._load, self._close = start, 1.0, close

    def _seen(self) -> np.ndarray:
        seen = np.zeros(self.observation_space.shape)
        seen[:2] = self._steps, self._load
        return seen

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        if params.keys() != {"load"}:
            raise KeyError(f"no such parameters: {sorted(params)}")
        self._load = params["load"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options:
            raise ValueError(f"no such options: {sorted(options)}")
        return self._seen(), {"token": os.environ.get("TUNEGYM_SERVER_TOKEN")}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if DEEDS[action] == "raise":
            raise ValueError("boom\nin two lines")
        info = {"pid": os.getpid()}
        return self._seen(), float(self._steps), False, False, info | (self._act(DEEDS[action]) or {})

    def _act(self, what: str) -> dict[str, Any] | None:
        match what:
            case "exit":
                os._exit(3)
            case "leave":
                sys.exit("enough")
            case "hang":
                time.sleep(1000)
            case "spin":
                re.match("(a*)*b", "a" * 100)
            case "stop" | "die":
                os.kill(os.getpid(), signal.SIGSTOP if what == "stop" else signal.SIGKILL)
            case "fork":
                if os.fork() == 0:
                    time.sleep(1000)
                subprocess.Popen(["setsid", "sleep", "1000"])
            case "mute":
                os.closerange(3, 100)
                time.sleep(1000)
            case "unfit":
                return {"what": object(), "fine": 1}
            case "large":
                return {"large": np.zeros(70 << 20, np.uint8)}
            case "garbage":
                _write_everywhere(b"GET / HTTP/1.0\r\n\r\n........")
        return None

    def close(self) -> None:
        if self._close == "raise":
            raise RuntimeError("I stay")
        if self._close:
            time.sleep(float(self._close))
            sys.stdout.write("closed in good order\n")


def _write_everywhere(content: bytes) -> None:
    """The connection's number is what it was in the driver, which may have many."""
    for fd in range(3, 1000):
        with contextlib.suppress(OSError):
            os.write(fd, content)


class Other(Trouble):
    """Another class."""


class NoClose:
    """No server."""

    reset, step = Trouble.reset, Trouble.step
