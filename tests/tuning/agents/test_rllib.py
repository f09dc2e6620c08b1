"""RLlib's agents: the contract suites, what is particular to them, and what they learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.testing.agents import AgentSuite, LiveAgentSuite
from tunegym.tuning.agents.rllib.agents import LiveRllibDqn, LiveRllibPpo, RllibDqn, RllibPpo
from tunegym.tuning.model.space import Choice, Range

pytest.importorskip("ray")
pytest.importorskip("torch")
slow = pytest.mark.slow

NESTED = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]), "b": spaces.Box(0, 1)})
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
LIVE_PPO = {"n_steps": 16, "batch_size": 8, "n_epochs": 2, "checkpoint_every": 20}


def suite(tested: Any, **attributes: Any) -> Any:
    """A test class for an agent."""
    base = LiveAgentSuite if tested.__name__.startswith("Live") else AgentSuite
    return type("Suite", (base,), {"agent": tested, "pytestmark": [slow], "__module__": __name__, **attributes})


TestPpo = suite(RllibPpo, config={"n_steps": 6, "checkpoint_every": 6, "joint": True})
TestPpoOneKnobAtATime = suite(
    RllibPpo,
    config={"n_steps": 6, "joint": False, "bins": 3, "start_action": "first", "batch_size": 4},
    knobs={"algorithm": Choice(("cubic", "reno")), "wide": Range(1.0, 1e9, log=True), "n": Range(1, 10**6, "int")},
)
TestDqn = suite(RllibDqn, config={"learning_starts": 6, "train_freq": 2, "checkpoint_every": 4})
TestLivePpo = suite(LiveRllibPpo, config=LIVE_PPO)
TestLivePpoNested = suite(
    LiveRllibPpo, config={**LIVE_PPO, "learning_rate_schedule": "linear", "net_arch": [8]}, actions=NESTED
)
TestLivePpoBox = suite(LiveRllibPpo, config=LIVE_PPO, actions=BOX)
TestLiveDqn = suite(
    LiveRllibDqn,
    config={"learning_starts": 20, "checkpoint_every": 30, "buffer_size": 100, "gradient_steps": -1},
    actions=spaces.Discrete(3, start=-1),
)
