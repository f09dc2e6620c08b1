"""``async_ppo`` passes the suites of all agents, but for exact repetition: collectors don't wait for each other."""

from __future__ import annotations

from typing import Any

import pytest

from tunegym.asyncrl.agents import AsyncPpo, LiveAsyncPpo
from tunegym.testing.agents import AgentSuite, LiveAgentSuite

pytestmark = pytest.mark.slow


class TestTrials(AgentSuite):
    agent = AsyncPpo
    config: Any = {"batch": 8, "minibatch": 8, "checkpoint_every": 1}  # noqa: RUF012
    test_same_seed_same_actions = None
    test_same_actions_at_any_width = None


class TestLive(LiveAgentSuite):
    agent = LiveAsyncPpo
    config: Any = {"batch": 4, "n_steps": 8, "minibatch": 32, "checkpoint_every": 1}  # noqa: RUF012
    test_same_seed_same_actions = None
