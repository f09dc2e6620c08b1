"""The ``contextual_bandit`` keeps the contract of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tunegym.testing.agents import AgentSuite
from tunegym.tuning.agents.bandit.agent import ContextualBandit
from tunegym.tuning.model.context import EnvParam
from tunegym.tuning.model.space import Choice, Knob, Range


class BanditSuite(AgentSuite):
    """Past its first fits within 24 trials."""

    agent = ContextualBandit
    resumes_exactly = True


class TestLists(BanditSuite):
    """All combinations are candidates."""


@pytest.mark.slow
class TestFromTheFirst(BanditSuite):
    config: ClassVar[Mapping[str, Any]] = {"start_action": "first", "rewards": {"metric_failure": -5.0}}


@pytest.mark.slow
class TestRanges(BanditSuite):
    """More than can be enumerated, and values between the bins."""

    config: ClassVar[Mapping[str, Any]] = {"bins": 4}
    knobs: ClassVar[Mapping[str, Knob]] = {
        "algorithm": Choice(("cubic", "reno", "bbr", "vegas", "westwood", "dctcp", "htcp", "illinois")),
        "threads": Range(1, 64, "int", log=True),
        "ratio": Range(0.0, 1.0),
        "rate": Range(1e-4, 1.0, log=True),
        "only": Choice((True,)),
    }


@pytest.mark.slow
class TestContinuousContexts(BanditSuite):
    @property
    def env_params(self) -> Mapping[str, EnvParam]:
        return {"load": EnvParam(Range(1.0, 100.0, log=True)), "kind": EnvParam(Choice(("a", "b")), (0.7, 0.3))}
