"""Knobs and env_params as the bandit sees them: places along axes, and how alike two places are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tunegym.tuning.model.space import Choice, Knob

FLOORS = (0.02, 0.25, 0.5, 0.75, 0.9, 0.98)
REACHES = (0.08, 0.2, 0.5, 1.2)
"""What shapes are made of."""


class Shape(NamedTuple):
    """How alike rewards are along one axis.

    Attributes:
        floor: what remains when two values have nothing to do with each other; 1 would mean that the axis is no matter.
        reach: how far, as a share of the axis, values are neighbours; None if each stands for itself.
    """

    floor: float
    reach: float | None

    def likeness(self, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        """From ``floor`` to 1, a row for each of ``ones``. A place that is NaN is unlike any other."""
        if self.reach is None:
            return np.where(ones[:, None] == others, 1.0, self.floor)
        # There are many candidates and few different places: the exponential is what costs.
        one_places, one_of = np.unique(ones, return_inverse=True)
        other_places, other_of = np.unique(others, return_inverse=True)
        apart = (one_places[:, None] - other_places) / self.reach
        near = self.floor + (1.0 - self.floor) * np.exp(-0.5 * apart * apart)
        near[np.isnan(near)] = self.floor
        return near[one_of].take(other_of, axis=1)


@dataclass(frozen=True)
class Axis:
    """A knob or an env_param as numbers from 0 to 1: where a candidate stands in its list, or a value in its range."""

    domain: Knob

    @cached_property
    def reaches(self) -> tuple[float | None, ...]:
        """Neighbours may be alike in a range, and in a list of at least three numbers that rise or fall."""
        if not isinstance(self.domain, Choice):
            return REACHES
        values = self.domain.values
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        rising = sorted(set(numbers))
        ordered = len(values) >= 3 and list(values) in (rising, rising[::-1])
        return (None, *REACHES) if ordered else (None,)

    @property
    def usual(self) -> Shape:
        """The shape before anything is known."""
        return Shape(0.5, None) if isinstance(self.domain, Choice) else Shape(0.25, 0.2)

    def moves(self, shape: Shape) -> tuple[Shape, ...]:
        """``shape`` and those that differ from it in one thing."""
        floors = (Shape(floor, shape.reach) for floor in FLOORS)
        reaches = (Shape(shape.floor, reach) for reach in self.reaches)
        return tuple(dict.fromkeys((shape, *floors, *reaches)))

    def place(self, value: object) -> float:
        """Where ``value`` is; NaN if it is no value of this axis."""
        if isinstance(self.domain, Choice):
            index = self.domain.index(value)
            return math.nan if index is None else index / max(self.domain.size - 1, 1)
        try:
            return self.domain.position(float(self.domain.accept(value)))
        except ValueError:
            return math.nan
