"""Random search: over a space of knobs, and over the action space of a live system.

Draws depend on the seed and the number of the trial or step alone, so that they are the same after a crash and at any
width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.base import BaseAgent, LiveAgent
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Scalar

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import spaces

    Draw = Callable[[np.random.Generator], list[Any]]

BLOCK = 256
"""Live actions are drawn in blocks: a generator is expensive to make and cheap to draw from."""


class RandomSearch(BaseAgent):
    """Draws every knob uniformly, on a log scale where the range says so."""

    supports_variable_environment: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveRandom"}

    def select_action(self, observation: Observation) -> dict[str, Scalar]:
        """The draw that belongs to the trial's number."""
        number = observation.number
        knobs = self.env.space.knobs
        if number == 1 and self.config.start_action == "first":
            return {name: knob.from_unit(0.0) for name, knob in knobs.items()}
        seed = self.seed
        return {name: knob.from_unit(unit(seed, "random_search", name, number)) for name, knob in knobs.items()}


class LiveRandom(LiveAgent):
    """Draws the action of every step, whatever its episode and lane."""

    name: ClassVar[str] = "random_search"

    def _drive(self) -> None:
        draws = ActionDraws(self.env.action_space, self.seed, self.name)
        if self.env.slots == 1:
            self._drive_one(draws)
        else:
            self._drive_all(draws)

    def _drive_one(self, draws: ActionDraws) -> None:
        env, step = self.env, self.env.step
        env.reset()
        while env.exhausted() is None:
            for action in draws.after(env.taken):
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    if env.exhausted() is not None:
                        return
                    env.reset()

    def _drive_all(self, draws: ActionDraws) -> None:
        env = self.env
        fresh = set(range(env.slots))
        actions = draws.since(env.taken)
        while env.exhausted() is None:
            left = self.left()
            width = env.slots if left is None else min(env.slots, left)
            for lane in range(width):
                if lane in fresh:
                    env.reset(lane)
            results = env.step_all(list(islice(actions, width)))
            fresh = {lane for lane, result in enumerate(results) if result[2] or result[3]}


class ActionDraws:
    """A random element of ``space`` for every number, which depends on the seed, the name and the number alone.

    Bounded numbers are uniform, half-bounded ones exponential and unbounded ones normal, as in Gymnasium's samples.
    """

    def __init__(self, space: spaces.Space[Any], seed: int, name: str) -> None:
        self._seed = seed
        self._name = name
        self._draw = _draw(space)

    def after(self, taken: int) -> list[Any]:
        """The actions of the numbers from ``taken + 1`` to the end of their block; never empty."""
        import numpy as np

        block, place = divmod(taken, BLOCK)
        rng = np.random.default_rng(integer(self._seed, 2**63, self._name, block))
        return self._draw(rng)[place:]

    def since(self, taken: int) -> Iterator[Any]:
        """The actions of all numbers from ``taken + 1`` on."""
        while True:
            block = self.after(taken)
            yield from block
            taken += len(block)


def _draw(space: spaces.Space[Any]) -> Draw:
    """The function that draws a block of elements."""
    import numpy as np
    from gymnasium import spaces

    from tunegym.tuning.spaces import describe

    if isinstance(space, spaces.Dict):
        parts = {key: _draw(one) for key, one in space.spaces.items()}
        return lambda rng: _dicts({key: draw(rng) for key, draw in parts.items()})
    if isinstance(space, spaces.Tuple):
        members = [_draw(one) for one in space.spaces]
        return lambda rng: list(zip(*(draw(rng) for draw in members), strict=True)) if members else [()] * BLOCK
    if isinstance(space, spaces.Discrete):
        first, count, kind = int(space.start), int(space.n), np.dtype(space.dtype)
        return lambda rng: list((rng.integers(count, size=BLOCK) + first).astype(kind))
    if isinstance(space, spaces.MultiDiscrete):
        counts, firsts, dtype = space.nvec, space.start, np.dtype(space.dtype)
        return lambda rng: list((rng.integers(counts, size=(BLOCK, *counts.shape)) + firsts).astype(dtype))
    if isinstance(space, spaces.MultiBinary):
        shape, dtype = (BLOCK, *space.shape), np.dtype(space.dtype)
        return lambda rng: list(rng.integers(2, size=shape).astype(dtype))
    if isinstance(space, spaces.Box):
        return _box(space)
    describe(space)  # raises, and says which spaces there may be
    raise AssertionError(space)


def _dicts(columns: dict[str, list[Any]]) -> list[Any]:
    return [{key: column[at] for key, column in columns.items()} for at in range(BLOCK)]


def _box(space: spaces.Box) -> Draw:
    import numpy as np

    low, high, shape, dtype = space.low, space.high, (BLOCK, *space.shape), np.dtype(space.dtype)
    if dtype.kind in "iub":
        kind: Any = dtype.type
        return lambda rng: list(rng.integers(low, high, size=shape, endpoint=True, dtype=kind))
    below, above = space.bounded_below, space.bounded_above

    def uniform(rng: np.random.Generator) -> np.ndarray:
        share = rng.random(size=shape)  # high - low may overflow
        return low.astype(np.float64) * (1.0 - share) + high.astype(np.float64) * share

    def draw(rng: np.random.Generator) -> list[Any]:
        if below.all() and above.all():
            values = uniform(rng)
        else:
            values = rng.standard_normal(size=shape)
            tails = rng.exponential(size=shape)
            values = np.where(below & ~above, low + tails, values)
            values = np.where(above & ~below, high - tails, values)
            with np.errstate(invalid="ignore"):  # infinite bounds, whose values are not taken
                values = np.where(below & above, uniform(rng), values)
        return list(np.clip(values.astype(dtype), low, high))  # rounding may lead just out of bounds

    return draw
