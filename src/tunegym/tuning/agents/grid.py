"""Grid search: every combination once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tunegym.core.errors import Problem
from tunegym.core.randomness import integer
from tunegym.tuning.agents.base import AgentConfig, BaseAgent
from tunegym.tuning.model.space import Range, Space
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Scalar
from tunegym.tuning.ports import Env


@dataclass(frozen=True, kw_only=True)
class GridConfig(AgentConfig):
    """Settings of ``grid_search``: it starts at the first point, or with ``random`` at a drawn one."""

    start_action: Literal["random", "first"] = "first"


class GridSearch(BaseAgent):
    """Trial n is the n-th point of the grid; the last knob varies fastest. The grid is never held in memory."""

    Config: ClassVar[type[AgentConfig]] = GridConfig
    finite: ClassVar[bool] = True

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        size = env.space.size
        assert size is not None, "configuration refuses a grid over a range without a step"
        self._size = size
        self._start = 0
        if self.config.start_action == "random":
            self._start = integer(self.seed, size, "grid_search", "start")

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """A range needs a step."""
        for name, knob in space.knobs.items():
            if isinstance(knob, Range) and knob.step is None:
                where = name if name.startswith("extra_env_vars.") else f"cmd_args.{name}"
                return Problem(
                    where,
                    "grid_search needs a step for a range",
                    found=knob.describe(),
                    allowed="a list, or a range with a `step`",
                    hint="add a step that divides the range, or use random_search",
                )
        return None

    @classmethod
    def ends_after(cls, space: Space) -> int | None:
        """Every point once."""
        return space.size

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """The point that belongs to the trial's number; None past the last."""
        if observation.number > self._size:
            return None
        return self.env.space.point((self._start + observation.number - 1) % self._size)
