"""Every sampler of the ``optuna`` agent keeps the contract of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tunegym.testing.agents import AgentSuite
from tunegym.tuning.agents.optuna import OptunaAgent
from tunegym.tuning.model.space import Choice, Knob, Range

pytestmark = pytest.mark.slow  # samplers that fit a model take their time


class OptunaSuite(AgentSuite):
    """Past its start-up within 24 trials."""

    agent = OptunaAgent
    resumes_exactly = True


class TestTpe(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "tpe", "startup_trials": 5}


class TestGp(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "gp", "startup_trials": 20}


class TestCmaes(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "cmaes", "population": 4}
    knobs: ClassVar[Mapping[str, Knob]] = {
        "depth": Range(0, 30, "int"),
        "rate": Range(1e-4, 1.0, "float", log=True),
        "algorithm": Choice(("cubic", "reno", "bbr")),
    }


class TestNsgaii(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "nsgaii", "population": 6}


class TestQmc(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "qmc"}


class TestRandom(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "random"}
