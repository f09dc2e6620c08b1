"""The bandit's belief about rewards: a Gaussian process over contexts and settings.

A cell is a context and a setting. Knobs and env_params are axes; the covariance of two cells is a product over all axes
of how similar their places are. Nothing here is random: the caller brings the normal numbers of a draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tunegym.tuning.model.space import Choice, Knob

FLOORS = (0.02, 0.25, 0.5, 0.75, 0.9, 0.98)
REACHES = (0.08, 0.2, 0.5, 1.2)
"""Candidate values of a fit."""


class Shape(NamedTuple):
    """Covariance of rewards along one axis.

    Attributes:
        floor: covariance of values far apart; at 1 the axis would not matter.
        reach: length scale, as a share of the axis; None if every two values are equally far apart.
    """

    floor: float
    reach: float | None

    def likeness(self, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Covariances from ``floor`` to 1, a row for each of ``ones``. A NaN is far from everything."""
        if self.reach is None:
            return np.where(ones[:, None] == others, 1.0, self.floor)
        # Many candidates share few places, and the exponential is the expensive part.
        one_places, one_of = np.unique(ones, return_inverse=True)
        other_places, other_of = np.unique(others, return_inverse=True)
        apart = (one_places[:, None] - other_places) / self.reach
        near = self.floor + (1.0 - self.floor) * np.exp(-0.5 * apart * apart)
        near[np.isnan(near)] = self.floor
        return near[one_of].take(other_of, axis=1)


@dataclass(frozen=True)
class Axis:
    """A knob or env_param as numbers from 0 to 1: the position in its list or range."""

    domain: Knob

    @cached_property
    def reaches(self) -> tuple[float | None, ...]:
        """Candidate reaches: a range has neighbours, and so has a monotonic list of at least three numbers."""
        if not isinstance(self.domain, Choice):
            return REACHES
        values = self.domain.values
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        rising = sorted(set(numbers))
        ordered = len(values) >= 3 and list(values) in (rising, rising[::-1])
        return (None, *REACHES) if ordered else (None,)

    @property
    def prior(self) -> Shape:
        """The shape before any fit."""
        return Shape(0.5, None) if isinstance(self.domain, Choice) else Shape(0.25, 0.2)

    def moves(self, shape: Shape) -> tuple[Shape, ...]:
        """``shape`` and those that differ from it in one attribute."""
        floors = (Shape(floor, shape.reach) for floor in FLOORS)
        reaches = (Shape(shape.floor, reach) for reach in self.reaches)
        return tuple(dict.fromkeys((shape, *floors, *reaches)))

    def place(self, value: object) -> float:
        """The place of ``value``; NaN if it isn't on this axis."""
        if isinstance(self.domain, Choice):
            index = self.domain.index(value)
            return math.nan if index is None else index / max(self.domain.size - 1, 1)
        try:
            return self.domain.position(float(self.domain.accept(value)))
        except ValueError:
            return math.nan


# the process --------------------------------------------------------------------------------------

NOISES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Candidate noises of a fit: variance of one measurement as a share of the variance of all rewards."""
MOST_FITTED = 256
"""A fit uses at most this many cells."""
BELIEVED = 4.0
"""Weight, in trials, of the prior that the scaled rewards have variance 1."""
QUIET = 0.01
"""Noise up to ``QUIET`` has no penalty; ten times as much costs ``LOUD`` of log-likelihood. Where no cell was measured
twice, noise and a landscape without a pattern look the same."""
LOUD = 4.0
JITTER = 1e-6


class Told(NamedTuple):
    """Mean and number of each cell's rewards, and the sum of squared distances of rewards from their cell's mean."""

    means: np.ndarray
    counts: np.ndarray
    within: float


class Belief:
    """A Gaussian process over cells whose covariance is a product over all axes.

    The product covers every interaction of knobs and env_params. A high floor along an axis lets a reward at one value
    count for the others; ``fit`` chooses it from the rewards.
    """

    def __init__(self, conditions: Sequence[Axis], knobs: Sequence[Axis]) -> None:
        self._axes = (*conditions, *knobs)
        self._conditions = range(len(conditions))
        self._knobs = range(len(conditions), len(self._axes))
        self.shapes: list[Shape] = [axis.prior for axis in self._axes]
        self.noise = 0.1
        self.places = np.empty((0, len(self._axes)))
        self._alike: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.places)

    # cells --------------------------------------------------------------------------------------------

    def add(self, places: np.ndarray) -> None:
        """Add a cell: the places of its context, then those of its setting."""
        self.places, self._alike = np.vstack([self.places, places]), None

    def keep(self, cells: np.ndarray) -> None:
        """Forget all cells but these."""
        self.places, self._alike = self.places[cells], None

    def _cells_alike(self) -> tuple[np.ndarray, np.ndarray]:
        """Covariances of the cells' contexts and of their settings; the covariance of two cells is the product."""
        if self._alike is None:
            contexts, settings = (
                self._likeness(one, self.places, self.places) for one in (self._conditions, self._knobs)
            )
            for alike in (contexts, settings):
                np.fill_diagonal(alike, 1.0)  # also where a place is NaN
            self._alike = contexts, settings
        return self._alike

    def _likeness(self, axes: Iterable[int], ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        product = np.ones((len(ones), len(others)))
        for axis in axes:
            product *= self.shapes[axis].likeness(ones[:, axis], others[:, axis])
        return product

    def _like(self, context: np.ndarray) -> np.ndarray:
        """Covariance of every cell's context with ``context``."""
        return self._likeness(self._conditions, context[None], self.places)[0]

    # predictions -------------------------------------------------------------------------------------------

    def weights(self, told: Told) -> np.ndarray:
        """The weights that ``expected`` takes, the same for all contexts."""
        alike = np.multiply(*self._cells_alike())
        np.einsum("ii->i", alike)[:] += self.noise / told.counts + JITTER
        return np.linalg.solve(alike, told.means - _centre(told))

    def expected(self, context: np.ndarray, told: Told, weights: np.ndarray) -> np.ndarray:
        """Expected reward of every cell's setting under a context."""
        return _centre(told) + self._cells_alike()[1] @ (self._like(context) * weights)

    def drawn(self, context: np.ndarray, settings: np.ndarray, told: Told, normal: np.ndarray) -> np.ndarray:
        """Draws of the rewards of ``settings`` under a context: a row each, a joint draw per column of ``normal``."""
        count, asked = len(self), len(settings)
        rows = np.hstack([np.broadcast_to(context, (asked, len(context))), settings])
        joint = np.zeros((count + asked + 1, count + asked + 1))
        joint[:count, :count] = np.multiply(*self._cells_alike())
        joint[count:-1, :count] = self._likeness(self._knobs, rows, self.places) * self._like(context)
        joint[count:-1, count:-1] = self._likeness(self._knobs, rows, rows)
        diagonal = np.einsum("ii->i", joint)
        diagonal[:count] += self.noise / told.counts
        diagonal[:-1] += JITTER
        # One decomposition gives it all: the last row holds the whitened rewards, the block below the cells gives the
        # expectation, and the block beside that is the root of the posterior covariance.
        centre = _centre(told)
        root = _bordered(joint, told.means - centre)
        seen = root[-1, :count]
        expected = centre + root[count:-1, :count] @ seen
        # Repeats of a cell don't count: they say nothing about others.
        spread = math.sqrt((BELIEVED + float(seen @ seen)) / (BELIEVED + len(seen)))
        return expected[:, None] + spread * (root[count:-1, count:-1] @ normal)

    # fit ------------------------------------------------------------------------------------------

    def fit(self, told: Told) -> None:
        """Coordinate ascent of the likelihood of ``told`` over each axis' shape and the noise."""
        places = self.places
        if len(places) > MOST_FITTED:
            some = np.linspace(0, len(places) - 1, MOST_FITTED).astype(int)
            counts = told.counts[some]
            told = Told(told.means[some], counts, told.within * float(counts.sum() / told.counts.sum()))
            places = places[some]
        columns = list(places.T)
        alike = [shape.likeness(column, column) for shape, column in zip(self.shapes, columns, strict=True)]
        whole = math.prod(alike[1:], start=alike[0]) if alike else np.ones((len(places), len(places)))
        for axis, column in enumerate(columns):
            rest = whole / alike[axis]  # no covariance is below its floor
            moves = self._axes[axis].moves(self.shapes[axis])
            factors = [shape.likeness(column, column) for shape in moves]
            likely = [_likelihood(rest * factor, self.noise, told) for factor in factors]
            best = int(np.argmax(likely))
            self.shapes[axis], alike[axis] = moves[best], factors[best]
            whole = rest * factors[best]
        self.noise = max(NOISES, key=lambda noise: _likelihood(whole, noise, told))
        self._alike = None


def _centre(told: Told) -> float:
    """The prior mean: the mean over cells, however often each was tried."""
    return float(told.means.mean()) if len(told.means) else 0.0


def _bordered(square: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The Cholesky root of ``square`` with ``values`` in its last row, which becomes the root's inverse times them."""
    square[-1, : len(values)] = values
    square[-1, -1] = 1e12 * (1.0 + float(values @ values))  # large enough to stay positive; unused
    return np.linalg.cholesky(square)


def _likelihood(alike: np.ndarray, noise: float, told: Told) -> float:
    """Log-likelihood of ``told``, up to a constant."""
    count = len(alike)
    square = np.zeros((count + 1, count + 1))
    square[:count, :count] = alike
    np.einsum("ii->i", square)[:count] = 1.0 + noise / told.counts + JITTER
    root = _bordered(square, told.means - _centre(told))
    total = float(told.counts.sum())
    seen = root[-1, :count]
    variance = (BELIEVED + float(seen @ seen) + told.within / noise) / (BELIEVED + total)
    size = 2.0 * float(np.log(np.einsum("ii->i", root)[:count]).sum())
    unusual = LOUD * max(math.log10(noise / QUIET), 0.0) ** 2
    return -unusual - 0.5 * ((total + BELIEVED) * math.log(variance) + size + (total - count) * math.log(noise))
