"""The contract of every agent, for those that learn a policy."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tunegym.testing.agents import AgentSuite
from tunegym.tuning.agents.sb3.agents import A2c, Dqn, Ppo, Sac
from tunegym.tuning.model.space import Choice, Knob, Range

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import


class TestPpo(AgentSuite):
    agent = Ppo
    config: ClassVar[dict[str, Any]] = {"n_steps": 6, "checkpoint_every": 6, "joint": True}


class TestPpoOneKnobAtATime(AgentSuite):
    agent = Ppo
    config: ClassVar[dict[str, Any]] = {"n_steps": 6, "joint": False, "bins": 3, "start_action": "first"}
    knobs: ClassVar[dict[str, Knob]] = {
        "algorithm": Choice(("cubic", "reno", "bbr")),
        "depth": Range(0, 30, "int", step=10),
        "wide": Range(1.0, 1e9, log=True),
        "n": Range(1, 1_000_000, "int"),
    }


class TestA2c(AgentSuite):
    agent = A2c
    config: ClassVar[dict[str, Any]] = {"n_steps": 5, "checkpoint_every": 5}


class TestDqn(AgentSuite):
    agent = Dqn
    config: ClassVar[dict[str, Any]] = {"learning_starts": 6, "train_freq": 2, "checkpoint_every": 4}


class TestSac(AgentSuite):
    agent = Sac
    config: ClassVar[dict[str, Any]] = {"learning_starts": 6, "train_freq": 2, "checkpoint_every": 4}
    knobs: ClassVar[dict[str, Knob]] = {
        "depth": Range(0, 30, "int", step=10),
        "share": Range(0.0, 0.3, step=0.1),
        "wide": Range(1e-3, 1e3, log=True),
    }
