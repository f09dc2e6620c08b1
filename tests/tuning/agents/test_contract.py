from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tunegym.core.randomness import unit
from tunegym.testing.agents import AgentSuite
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.agents.grid import GridSearch
from tunegym.tuning.agents.random import RandomSearch
from tunegym.tuning.model.space import Choice, Range
from tunegym.tuning.model.trial import Feedback, Observation


@dataclass(frozen=True, kw_only=True)
class ClimberConfig(AgentConfig):
    explore: float = 0.3


class Climber(BaseAgent):
    """Tries at random, and more and more often the best it knows with one knob turned."""

    Config: ClassVar[type[AgentConfig]] = ClimberConfig
    supports_variable_environment: ClassVar[bool] = True

    def __init__(self, env: Any, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        self.best: Feedback | None = None

    def select_action(self, observation: Observation) -> dict[str, Any]:
        def draw(name: str) -> float:
            return unit(self.seed, "climber", name, observation.number)

        knobs = self.env.space.knobs
        if self.best is None or draw("explore") < self.config.explore:
            return {name: knob.from_unit(draw(name)) for name, knob in knobs.items()}
        turned = list(knobs)[int(draw("which") * len(knobs))]
        return {**self.best.action, turned: knobs[turned].from_unit(draw("to"))}

    def update_policy(self, feedback: Feedback) -> None:
        if feedback.status == "measured" and (self.best is None or feedback.value > self.best.value):
            self.best = feedback


class TestGrid(AgentSuite):
    agent = GridSearch


class TestGridFromARandomPoint(AgentSuite):
    agent = GridSearch
    config: ClassVar = {"start_action": "random", "random_seed": 5}


class TestRandom(AgentSuite):
    agent = RandomSearch


class TestRandomOverRanges(AgentSuite):
    agent = RandomSearch
    config: ClassVar = {"start_action": "first", "rewards": {"metric_failure": -5.0}}
    knobs: ClassVar = {
        "mode": Choice(("a", "b")),
        "threads": Range(1, 64, "int", log=True),
        "ratio": Range(0.0, 1.0),
    }


class TestClimber(AgentSuite):
    agent = Climber
    config: ClassVar = {"explore": 0.2}


def test_the_suite_knows_who_learns() -> None:
    assert TestClimber().learns
    assert not TestGrid().learns
