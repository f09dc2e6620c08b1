"""What the bandit believes of rewards: a Gaussian process over contexts and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tunegym.tuning.agents.bandit.axes import Axis, Shape

NOISES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""What a fit chooses the noise from: the variance of one measurement, as a share of that of all rewards."""
MOST_FITTED = 256
"""So many cells say what the shapes are."""
BELIEVED = 4.0
"""As so many trials counts the belief, before any, that the variance of the rewards is 1 on their scale."""
QUIET = 0.01
"""Up to here noise is nothing unusual; ten times as much must make what was seen so much more likely (as a logarithm)
as ``LOUD`` says. Where no cell was measured twice, noise and a landscape without a pattern look the same."""
LOUD = 4.0
JITTER = 1e-6


class Told(NamedTuple):
    """What is known of each cell.

    Attributes:
        means: its mean reward.
        counts: how many rewards there were.
        within: the squared distances of all rewards from their cells' means, summed up.
    """

    means: np.ndarray
    counts: np.ndarray
    within: float


class Belief:
    """A Gaussian process over cells (a context and a setting) whose likeness is a product over all axes.

    The product holds every interaction of knobs and env_params, and a high floor along an axis lets what was seen at
    one value count for the others: how much is chosen by ``fit``, from what was told alone. Nothing here is random;
    the caller brings the normal numbers of a draw.
    """

    def __init__(self, conditions: Sequence[Axis], knobs: Sequence[Axis]) -> None:
        self._axes = (*conditions, *knobs)
        self._conditions = range(len(conditions))
        self._knobs = range(len(conditions), len(self._axes))
        self.shapes: list[Shape] = [axis.usual for axis in self._axes]
        self.noise = 0.1
        self.places = np.empty((0, len(self._axes)))
        # Of every two cells; the likeness of the cells is the product of the two.
        self._contexts_alike = np.empty((0, 0))
        self._settings_alike = np.empty((0, 0))

    def __len__(self) -> int:
        return len(self.places)

    # cells --------------------------------------------------------------------------------------------

    def add(self, places: np.ndarray) -> None:
        """Take in a cell: the places of its context, then those of its setting."""
        row = places[None, :]
        self._contexts_alike = _grown(self._contexts_alike, self._likeness(self._conditions, row, self.places)[0])
        self._settings_alike = _grown(self._settings_alike, self._likeness(self._knobs, row, self.places)[0])
        self.places = np.vstack([self.places, row])

    def keep(self, cells: np.ndarray) -> None:
        """Forget all cells but these."""
        self.places = self.places[cells]
        self._contexts_alike = self._contexts_alike[np.ix_(cells, cells)]
        self._settings_alike = self._settings_alike[np.ix_(cells, cells)]

    def _likeness(self, axes: Iterable[int], ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        product = np.ones((len(ones), len(others)))
        for axis in axes:
            product *= self.shapes[axis].likeness(ones[:, axis], others[:, axis])
        return product

    def _like(self, context: np.ndarray) -> np.ndarray:
        """How alike every cell's context and ``context`` are."""
        alike = np.ones(len(self))
        for axis in self._conditions:
            alike *= self.shapes[axis].likeness(context[axis : axis + 1], self.places[:, axis])[0]
        return alike

    # asking -------------------------------------------------------------------------------------------

    def weights(self, told: Told) -> np.ndarray:
        """What ``expected`` takes, for any number of contexts."""
        alike = self._contexts_alike * self._settings_alike
        np.einsum("ii->i", alike)[:] += self.noise / told.counts + JITTER
        return np.linalg.solve(alike, told.means - _centre(told))

    def expected(self, context: np.ndarray, told: Told, weights: np.ndarray) -> np.ndarray:
        """The mean reward of every cell's setting under the context with these places."""
        return _centre(told) + self._settings_alike @ (self._like(context) * weights)

    def drawn(self, context: np.ndarray, settings: np.ndarray, told: Told, normal: np.ndarray) -> np.ndarray:
        """Possible rewards of ``settings`` under a context: a row for each, a joint draw per column of ``normal``."""
        count, asked = len(self), len(settings)
        rows = np.hstack([np.broadcast_to(context, (asked, len(context))), settings])
        joint = np.zeros((count + asked + 1, count + asked + 1))
        joint[:count, :count] = self._contexts_alike * self._settings_alike
        joint[count:-1, :count] = self._likeness(self._knobs, rows, self.places) * self._like(context)
        joint[count:-1, count:-1] = self._likeness(self._knobs, rows, rows)
        diagonal = np.einsum("ii->i", joint)
        diagonal[:count] += self.noise / told.counts
        diagonal[:-1] += JITTER
        # One decomposition gives it all: the last row is what was seen, below the cells stands what follows from it,
        # and the block beside that is the root of what remains unknown.
        centre = _centre(told)
        root = _bordered(joint, told.means - centre)
        seen = root[-1, :count]
        expected = centre + root[count:-1, :count] @ seen
        spread = math.sqrt(_believed_variance(seen))
        return expected[:, None] + spread * (root[count:-1, count:-1] @ normal)

    # fitting ------------------------------------------------------------------------------------------

    def fit(self, told: Told) -> None:
        """Move the noise and each axis' shape, one after the other, to where ``told`` is the most likely."""
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
            rest = whole / alike[axis]  # no likeness is below its floor
            moves = self._axes[axis].moves(self.shapes[axis])
            factors = [shape.likeness(column, column) for shape in moves]
            likely = [_likelihood(rest * factor, self.noise, told) for factor in factors]
            best = int(np.argmax(likely))
            self.shapes[axis], alike[axis] = moves[best], factors[best]
            whole = rest * factors[best]
        self.noise = max(NOISES, key=lambda noise: _likelihood(whole, noise, told))
        self._contexts_alike = _on_itself(self._likeness(self._conditions, self.places, self.places))
        self._settings_alike = _on_itself(self._likeness(self._knobs, self.places, self.places))


def _grown(square: np.ndarray, row: np.ndarray) -> np.ndarray:
    size = len(square)
    grown = np.ones((size + 1, size + 1))
    grown[:size, :size] = square
    grown[size, :size] = grown[:size, size] = row
    return grown


def _on_itself(alike: np.ndarray) -> np.ndarray:
    """A cell is like itself even where its place is NaN."""
    np.einsum("ii->i", alike)[:] = 1.0
    return alike


def _centre(told: Told) -> float:
    """What is expected where nothing was seen: what a cell gives on average, however often it was tried."""
    return float(told.means.mean()) if len(told.means) else 0.0


def _bordered(square: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The Cholesky root of ``square`` with ``values`` in its last row: there it holds the root's inverse times them."""
    square[-1, : len(values)] = values
    square[-1, -1] = 1e12 * (1.0 + float(values @ values))  # so large that it stays positive; nothing depends on it
    return np.linalg.cholesky(square)


def _believed_variance(seen: np.ndarray) -> float:
    """The variance of what cells give, by what was seen of each and what was believed before.

    However often a cell gave the same, that says nothing of those that were never tried.
    """
    return (BELIEVED + float(seen @ seen)) / (BELIEVED + len(seen))


def _variance(seen: np.ndarray, told: Told, noise: float) -> float:
    """The variance of all rewards, by what was seen and what was believed before."""
    total = float(told.counts.sum())
    return (BELIEVED + float(seen @ seen) + told.within / noise) / (BELIEVED + total)


def _likelihood(alike: np.ndarray, noise: float, told: Told) -> float:
    """The logarithm of how likely ``told`` is, up to a constant."""
    count = len(alike)
    square = np.zeros((count + 1, count + 1))
    square[:count, :count] = alike
    np.einsum("ii->i", square)[:count] = 1.0 + noise / told.counts + JITTER
    root = _bordered(square, told.means - _centre(told))
    total = float(told.counts.sum())
    variance = _variance(root[-1, :count], told, noise)
    size = 2.0 * float(np.log(np.einsum("ii->i", root)[:count]).sum())
    unusual = LOUD * max(math.log10(noise / QUIET), 0.0) ** 2
    return -unusual - 0.5 * ((total + BELIEVED) * math.log(variance) + size + (total - count) * math.log(noise))
