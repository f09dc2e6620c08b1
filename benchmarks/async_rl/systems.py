"""A live system that takes its time, for the benchmark and its tests."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
from gymnasium import spaces


class Slow:
    """Steps of ``step_s`` seconds; with ``spread`` they are exponential with this mean."""

    action_space: spaces.Space[Any] = spaces.Discrete(2)
    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, step_s: float = 0.02, spread: bool = False) -> None:
        self._step_s, self._spread = step_s, spread
        self._random = random.Random(0)
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of 50 steps."""
        del options
        self._random.seed(seed)
        self._at = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait."""
        self._at += 1
        time.sleep(self._random.expovariate(1.0 / self._step_s) if self._spread else self._step_s)
        return np.zeros(4, np.float32), float(action), False, self._at >= 50, {}

    def close(self) -> None:
        """Nothing is open."""
