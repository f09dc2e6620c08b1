"""What tests of the algorithms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.tuning.agents.reward_scale import RewardScale
from tunegym.tuning.agents.sb3.config import A2cConfig, DqnConfig, PpoConfig, SacConfig

pytest.importorskip("stable_baselines3")

CONFIGS = {"ppo": PpoConfig, "a2c": A2cConfig, "dqn": DqnConfig, "sac": SacConfig}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "ppo": spaces.MultiDiscrete([3, 4]),
    "a2c": spaces.Discrete(5),
    "dqn": spaces.Discrete(5),
    "sac": spaces.Box(-1.0, 1.0, shape=(2,), dtype=np.float32),
}


@pytest.fixture
def learner() -> Callable[..., Any]:
    """Build an agent's algorithm over three observed numbers; settings as in ``agent_config``."""

    def build(agent: str, *, seed: int = 0, trials: int | None = 100, **settings: Any) -> Any:
        from tunegym.tuning.agents.sb3.learners import build_learner

        seen = spaces.Box(-10.0, 10.0, shape=(3,), dtype=np.float32)
        return build_learner(CONFIGS[agent](**settings), seen, ACTIONS[agent], RewardScale(), seed, trials)

    return build


@pytest.fixture
def step() -> Callable[..., Any]:
    """A closed trial of a learner's own choice; its reward goes to the learner's scale."""

    def make(learner: Any, number: int, reward: float | None, **more: Any) -> Any:
        from tunegym.tuning.agents.sb3.learners import Step

        rng = np.random.default_rng(number)
        seen, after = rng.normal(size=(2, 3)).astype(np.float32)
        learner.scale.add({}, -1e15 if reward is None else reward, measured=reward is not None)
        decision = more.get("decision") or learner.act(seen, number)
        terminated, truncated = more.get("terminated", False), more.get("truncated", False)
        index = len(learner.scale) - 1
        return Step(index, more.get("lane", 0), seen, decision, after, terminated, truncated)

    return make
