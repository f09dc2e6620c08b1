"""The settings among which the bandit chooses in one trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunegym.tuning.agents.bandit.axes import Axis
from tunegym.tuning.envs.actions import binned
from tunegym.tuning.model.space import Choice, Knob, Space
from tunegym.tuning.model.values import Action, Scalar

MOST_ENUMERATED = 512
"""Up to so many combinations are all looked at; of more, some are drawn."""
DRAWN = 192
STRIDES = (0.02, 0.1)
"""How far neighbours in a range are usually, as a share of it."""
NEIGHBOURS = 6
"""So many neighbours at most are looked at along each knob."""
MOST_NEAR = 512
"""So many neighbours at most are looked at in all: of many knobs, some are drawn."""


@dataclass(frozen=True)
class Candidates:
    """Settings for one trial, a row of places for each: first some of the grid, then those near good ones."""

    places: np.ndarray
    grid: dict[str, tuple[Scalar, ...]]
    indices: np.ndarray
    near: Sequence[dict[str, Scalar]]

    def __len__(self) -> int:
        return len(self.places)

    def action(self, row: int) -> dict[str, Scalar]:
        """The setting of a row."""
        if row >= len(self.indices):
            return self.near[row - len(self.indices)]
        return {name: values[at] for (name, values), at in zip(self.grid.items(), self.indices[row], strict=True)}


class CandidateSource:
    """Where candidates come from.

    All combinations where they are few, else a drawn part of them; and around good settings whatever differs in one
    knob, where that is not among them already: in a range also values between the bins.
    """

    def __init__(self, space: Space, bins: int) -> None:
        self._knobs = space.knobs
        self._grid = {name: binned(knob, bins) for name, knob in space.knobs.items()}
        self.axes = {name: Axis(knob) for name, knob in space.knobs.items()}
        self._places = [
            np.array([self.axes[name].place(value) for value in values]) for name, values in self._grid.items()
        ]
        self._sizes = [len(values) for values in self._grid.values()]
        self._neighbours = {
            name: min(NEIGHBOURS, knob.size - 1) if isinstance(knob, Choice) else NEIGHBOURS
            for name, knob in space.knobs.items()
        }
        self._all: np.ndarray | None = None
        if math.prod(self._sizes) <= MOST_ENUMERATED:
            self._all = np.indices(self._sizes).reshape(len(self._sizes), -1).T
        self.complete = self._all is not None and all(
            isinstance(knob, Choice) or knob.size == len(self._grid[name]) for name, knob in space.knobs.items()
        )
        """Whether there is nothing but the grid, and all of it is looked at."""

    def make(self, generator: np.random.Generator, good: Sequence[Action]) -> Candidates:
        """The candidates for one trial, near these settings among others."""
        indices = self._all
        if indices is None:
            indices = generator.integers(self._sizes, size=(DRAWN, len(self._sizes)))
        near: list[dict[str, Scalar]] = []
        if not self.complete:
            most = MOST_NEAR // max(len(good), 1)
            near = [one for action in good for one in self._around(action, most, generator)]
        places = np.empty((len(indices) + len(near), len(self._sizes)))
        for knob, (column, table) in enumerate(zip(indices.T, self._places, strict=True)):
            places[: len(indices), knob] = table[column]
        for row, action in enumerate(near, start=len(indices)):
            places[row] = self.place(action)
        return Candidates(places, self._grid, indices, near)

    def place(self, action: Action) -> list[float]:
        """Where a setting is."""
        return [axis.place(action[name]) for name, axis in self.axes.items()]

    def _around(self, action: Action, most: int, generator: np.random.Generator) -> Iterator[dict[str, Scalar]]:
        """The setting itself, and at most ``most`` that differ from it in one knob."""
        yield dict(action)
        names = list(self._knobs)
        if sum(self._neighbours.values()) > most:
            names = [names[at] for at in generator.permutation(len(names)).tolist()]
        for name in names:
            most -= self._neighbours[name]
            if most < 0:
                return
            for value in _neighbours(self._knobs[name], action[name], generator):
                yield {**action, name: value}


def _neighbours(knob: Knob, value: Any, generator: np.random.Generator) -> list[Scalar]:
    if isinstance(knob, Choice):
        others = [other for index, other in enumerate(knob.values) if index != knob.index(value)]
        if len(others) <= NEIGHBOURS:
            return others
        return [others[index] for index in generator.choice(len(others), NEIGHBOURS, replace=False).tolist()]
    away = generator.standard_normal((NEIGHBOURS // len(STRIDES), len(STRIDES))) * STRIDES
    here = knob.position(float(value))
    return [knob.at_position(here + step) for step in away.ravel().tolist()]
