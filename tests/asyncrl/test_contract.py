"""``async_ppo`` passes the suites of all agents, but for exact repetition: collectors don't wait for each other."""

from __future__ import annotations

from pathlib import Path
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

    @pytest.mark.parametrize("slots", [1, 3])
    def test_resumes(self, tmp_path: Path, slots: int) -> None:
        """Stopped twice and resumed, as any agent; but lanes that stop before a step leave the numbers they hold.

        Others have taken later ones by then, so these numbers of the budget stay unused.
        """
        taken = stops = 0
        for stop_after in (39, 6, None):
            driven = self.drive(tmp_path / "parts", slots=slots, stop_after=stop_after)
            assert driven.code == 0, driven.failure
            assert stop_after in (None, len(driven.log.actions)), "a new step once it is stopping"
            taken, stops = taken + len(driven.log.actions), stops + (stop_after is not None)
            assert 0 <= driven.taken - taken <= stops * (slots - 1)
        assert driven.taken == self.steps
