"""Random search: every knob drawn by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tunegym.core.randomness import unit
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Scalar


class RandomSearch(BaseAgent):
    """Draws every knob uniformly (on a log scale where the range says so), for any trial by its number."""

    supports_variable_environment: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": "tunegym.tuning.agents.live.random:LiveRandom"}

    def select_action(self, observation: Observation) -> dict[str, Scalar]:
        """The draw that belongs to the trial's number."""
        number = observation.number
        knobs = self.env.space.knobs
        if number == 1 and self.config.start_action == "first":
            return {name: knob.from_unit(0.0) for name, knob in knobs.items()}
        seed = self.seed
        return {name: knob.from_unit(unit(seed, "random_search", name, number)) for name, knob in knobs.items()}
