"""Search without learning: at random, over a live system's actions too, or over the whole grid.

Choices depend on the seed and the number of the trial or step alone, so that they are the same after a crash and at any
width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tunegym.core.errors import Problem
from tunegym.core.randomness import integer
from tunegym.tuning.agents.base import AgentConfig, BaseAgent, LiveAgent
from tunegym.tuning.model.space import Range, Space
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Context, Scalar
from tunegym.tuning.ports import Env

if TYPE_CHECKING:
    from gymnasium import spaces

BLOCK = 256
"""Live actions are drawn in blocks: a generator is expensive to seed and cheap to draw from."""


class RandomSearch(BaseAgent):
    """Draws every knob uniformly, on a log scale where the range says so."""

    supports_variable_environment: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveRandom"}

    def select_action(self, observation: Observation) -> dict[str, Scalar]:
        """The draw that belongs to the trial's number; a refused one only where no other was found."""
        number, context, experiment = observation.number, observation.context, self.env.experiment
        if self.starts_first(observation):
            return self.first_action()
        action = experiment.draw_allowed(context, self.seed, "random_search", number)
        return action or experiment.space.draw(self.seed, "random_search", number)


class LiveRandom(LiveAgent):
    """Draws the action of every step, whatever its episode and lane."""

    name: ClassVar[str] = "random_search"

    def _drive(self) -> None:
        env = self.env
        fresh = set(range(env.slots))
        actions = draw_actions(env.action_space, self.seed, self.name, env.taken)
        while env.exhausted() is None:
            left = self.left()
            width = env.slots if left is None else min(env.slots, left)
            for lane in range(width):
                if lane in fresh:
                    env.reset(lane)
            results = env.step_all(list(islice(actions, width)))
            fresh = {lane for lane, result in enumerate(results) if result[2] or result[3]}


def draw_actions(space: spaces.Space[Any], seed: int, name: str, taken: int = 0) -> Iterator[Any]:
    """A random element of ``space`` for every number after ``taken``, which depends on seed, name and number alone."""
    own = copy.deepcopy(space)
    while True:
        block, place = divmod(taken, BLOCK)
        own.seed(integer(seed, 2**31, name, block))
        drawn = [own.sample() for _ in range(BLOCK)][place:]
        yield from drawn
        taken += len(drawn)


@dataclass(frozen=True, kw_only=True)
class GridConfig(AgentConfig):
    """Settings of ``grid_search``: it starts at the first point, or with ``random`` at a drawn one."""

    start_action: Literal["random", "first"] = "first"


class GridSearch(BaseAgent):
    """Trial n is the n-th point of the grid; the last knob varies fastest. The grid is never held in memory.

    With env_params each point is tried in every represented context, one after another.
    """

    Config: ClassVar[type[AgentConfig]] = GridConfig
    finite: ClassVar[bool] = True
    supports_variable_environment: ClassVar[bool] = True
    plans_contexts: ClassVar[bool] = True

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        size = env.space.size
        assert size is not None, "configuration refuses a grid over a range without a step"
        self._size = size
        self._contexts = [context for context, _ in env.experiment.env_params.represented()]
        self._start = 0
        if self.config.start_action == "random":
            self._start = integer(self.seed, size, "grid_search", "start")

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """A range needs a step."""
        for name, knob in space.knobs.items():
            if isinstance(knob, Range) and knob.step is None:
                where = name if name.startswith("extra_env_vars.") else f"cmd_args.{name}"
                what, allowed = "grid_search needs a step for a range", "a list, or a range with a `step`"
                hint = "add a step that divides the range, or use random_search"
                return Problem(where, what, found=knob.describe(), allowed=allowed, hint=hint)
        return None

    @classmethod
    def ends_after(cls, space: Space) -> int | None:
        """Every point once."""
        return space.size

    def plan_context(self, number: int) -> Context | None:
        """The context that belongs to the trial's number."""
        return self._contexts[(number - self.env.first) % len(self._contexts)] if self._contexts[0] else None

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """The point that belongs to the trial's number; None past the last."""
        place = (observation.number - self.env.first) // len(self._contexts)
        if place >= self._size:
            self.ended = "every setting was tried"
            return None
        return self.env.space.point((self._start + place) % self._size)
