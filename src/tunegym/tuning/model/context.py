"""Contexts: parameters that the environment draws for each trial instead of the agent choosing them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from tunegym.core.randomness import unit
from tunegym.tuning.model.space import Choice, Knob
from tunegym.tuning.model.values import Context, Scalar


@dataclass(frozen=True)
class EnvParam:
    """One parameter of the environment.

    Attributes:
        domain: its candidates, or a range.
        weights: how often each candidate is drawn; None for equally often.
        encoding: how the agent sees it.
        every_step: in a live experiment, draw for each step instead of each episode.
    """

    domain: Knob
    weights: tuple[float, ...] | None = None
    encoding: str | None = None
    every_step: bool = False

    @cached_property
    def _edges(self) -> list[float]:
        return list(accumulate(self.weights or ()))

    def draw(self, seed: int, name: str, number: int) -> Scalar:
        """Draw the value of trial ``number``. It depends on these three arguments and nothing else."""
        u = unit(seed, "env_params", name, number)
        if self.weights is None:
            return self.domain.from_unit(u)
        assert isinstance(self.domain, Choice)
        edges = self._edges
        index = bisect_right(edges, u * edges[-1])
        return self.domain.values[min(index, len(edges) - 1)]


@dataclass(frozen=True)
class EnvParams:
    """All env_params of an experiment; draws the context of any trial number."""

    params: Mapping[str, EnvParam]
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.params)

    def context(self, number: int) -> dict[str, Scalar]:
        """The context of trial ``number``, the same in any process and at any width."""
        seed = self.seed
        return {name: param.draw(seed, name, number) for name, param in self.params.items()}

    @cached_property
    def vary_in_episodes(self) -> bool:
        """Whether a parameter is drawn for each step of an episode."""
        return any(param.every_step for param in self.params.values())

    def step_context(self, first: int, number: int) -> dict[str, Scalar]:
        """The context of step ``number`` in an episode whose first number is ``first``."""
        seed = self.seed
        return {
            name: param.draw(seed, name, number if param.every_step else first) for name, param in self.params.items()
        }

    def next_context(self, context: Context, number: int) -> Context:
        """The context of step ``number`` in an episode that has had a step under ``context``."""
        if not self.vary_in_episodes:
            return context
        drawn = {name: one.draw(self.seed, name, number) for name, one in self.params.items() if one.every_step}
        return {**context, **drawn}


@dataclass(frozen=True, slots=True)
class ObsLeafDescriptor:
    """Shape of one leaf of a structured observation: the result of an encoding.

    Attributes:
        kind: ``box``, a float32 vector, or ``discrete``, one of the integers from 0.
        dim: a box's length; 1 for a discrete leaf.
        n: number of integers of a discrete leaf; None for a box.
        low: a box's smallest number.
        high: a box's largest number.

    Raises:
        ValueError: the values contradict each other.
    """

    kind: Literal["box", "discrete"]
    dim: int = 1
    n: int | None = None
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.kind not in ("box", "discrete"):
            raise ValueError(f'kind must be "box" or "discrete", not {self.kind!r}')
        if not _positive(self.dim):
            raise ValueError(f"dim must be an integer of at least 1, not {self.dim!r}")
        if self.kind == "box":
            if self.n is not None:
                raise ValueError(f"a box has a dim and no n, here n={self.n!r}")
            if not (_number(self.low) and _number(self.high) and self.low < self.high):
                raise ValueError(f"low must be below high, here {self.low!r} and {self.high!r}")
            return
        if not _positive(self.n):
            raise ValueError(f"a discrete leaf needs n, an integer of at least 1, not {self.n!r}")
        if self.dim != 1 or (self.low, self.high) != (-math.inf, math.inf):
            raise ValueError("a discrete leaf has an n, and neither dim nor bounds")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
