"""The contract of every agent of live experiments."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.testing.live_agents import LiveAgentSuite
from tunegym.tuning.agents.live.agents import LiveA2c, LiveDqn, LivePpo, LiveSac
from tunegym.tuning.agents.live.random import LiveRandom

pytest.importorskip("stable_baselines3")

NESTED = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]), "b": spaces.Box(0, 1)})
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))


class TestRandom(LiveAgentSuite):
    agent = LiveRandom
    learns = False


class TestRandomNested(LiveAgentSuite):
    agent = LiveRandom
    learns = False
    actions: ClassVar[spaces.Space[Any]] = NESTED
    steps: ClassVar[int] = 700  # more than two blocks


@pytest.mark.slow  # torch takes seconds to import
class TestPpo(LiveAgentSuite):
    agent = LivePpo
    config: ClassVar[dict[str, Any]] = {"n_steps": 16, "batch_size": 8, "n_epochs": 2, "checkpoint_every": 20}


@pytest.mark.slow
class TestPpoBox(LiveAgentSuite):
    agent = LivePpo
    config: ClassVar[dict[str, Any]] = {"n_steps": 16, "learning_rate_schedule": "linear", "random_seed": None}
    actions: ClassVar[spaces.Space[Any]] = BOX


@pytest.mark.slow
class TestA2c(LiveAgentSuite):
    agent = LiveA2c
    config: ClassVar[dict[str, Any]] = {"checkpoint_every": 30, "net_arch": [8]}
    actions: ClassVar[spaces.Space[Any]] = spaces.MultiDiscrete([3, 2], start=[-1, 5])


@pytest.mark.slow
class TestDqn(LiveAgentSuite):
    agent = LiveDqn
    config: ClassVar[dict[str, Any]] = {"learning_starts": 20, "checkpoint_every": 30, "buffer_size": 100}
    actions: ClassVar[spaces.Space[Any]] = spaces.Discrete(3, start=-1)


@pytest.mark.slow
class TestSac(LiveAgentSuite):
    agent = LiveSac
    config: ClassVar[dict[str, Any]] = {
        "checkpoint_every": 30,
        "batch_size": 16,
        "net_arch": [16],
        "gradient_steps": -1,
    }
    actions: ClassVar[spaces.Space[Any]] = BOX
