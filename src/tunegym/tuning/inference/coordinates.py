"""Settings and contexts as the model sees them.

A setting is a point with a column for each knob. Knobs with an order lie in [0, 1]; other candidates are numbers that
are only equal or not. A context is an index into the represented contexts, of which there are at most twelve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tunegym.tuning.model.space import MOST_REPRESENTED, Choice, EnvParams, Knob, Space
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]

Allowed = Callable[[Action, Context], bool]
"""Whether the constraints allow a setting in a context."""


def is_ordered(knob: Knob) -> bool:
    """Whether the knob's values have an order that means something: numbers, and more than two of them."""
    if not isinstance(knob, Choice):
        return True
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in knob.values)
    return numeric and knob.size > 2


class Coordinates:
    """Points of settings."""

    def __init__(self, space: Space) -> None:
        self.knobs: Mapping[str, Knob] = space.knobs
        self.categorical = np.array([not is_ordered(knob) for knob in space.knobs.values()], dtype=bool)
        self._columns = {name: _positions(knob) for name, knob in space.knobs.items() if isinstance(knob, Choice)}

    def point(self, action: Action) -> list[float]:
        """Return the point of a setting."""
        return [self._coordinate(name, action[name]) for name in self.knobs]

    def points(self, actions: Iterable[Action]) -> Floats:
        """Return the points of settings, one in each row."""
        rows = [self.point(action) for action in actions]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.knobs))

    def _coordinate(self, name: str, value: Scalar) -> float:
        column = self._columns.get(name)
        if column is not None:
            return column[type(value), value]
        knob = self.knobs[name]
        assert not isinstance(knob, Choice)
        return knob.position(float(value))


def _positions(knob: Choice) -> dict[tuple[type, Scalar], float]:
    """Return the coordinate of each candidate: its rank on [0, 1], or its index where there is no order."""
    if not is_ordered(knob):
        return {(type(value), value): float(index) for index, value in enumerate(knob.values)}
    ranks = sorted(float(value) for value in knob.values)
    return {(type(value), value): ranks.index(float(value)) / (len(ranks) - 1) for value in knob.values}


class ContextIndex:
    """The represented contexts, their weights, and which of them a context belongs to.

    Where contexts come from ranges, or there are too many to represent each, a context belongs to the nearest one.

    Attributes:
        contexts: the represented contexts.
        weights: how often each is drawn; they sum to 1.
        exact: whether every context that can be drawn is represented.
    """

    def __init__(self, params: EnvParams) -> None:
        represented = params.represented()
        self.contexts: tuple[Context, ...] = tuple(context for context, _ in represented)
        self.weights: Floats = np.array([weight for _, weight in represented])
        self.exact = params.size is not None and params.size <= MOST_REPRESENTED
        self._index = {exact_key(context): index for index, context in enumerate(self.contexts)}
        self._coordinates = Coordinates(Space({name: param.domain for name, param in params.params.items()}))

    def __len__(self) -> int:
        return len(self.contexts)

    def index(self, context: Context) -> int:
        """Return the represented context that is nearest to a whole context."""
        key = exact_key(context)
        if key not in self._index:
            distances = self._distances(context)
            self._index[key] = distances.index(min(distances))
        return self._index[key]

    def distance(self, first: Context, second: Context) -> float:
        """Return how far two contexts are apart; 1 or more if a parameter without an order differs."""
        return math.dist(self._partial(first, first), self._partial(second, first))

    def matching(self, part: Context) -> list[int]:
        """Return the represented contexts that have, or are nearest to, the values of a part of a context."""
        distances = self._distances(part)
        nearest = min(distances)
        return [index for index, distance in enumerate(distances) if distance <= nearest + 1e-9]

    def is_represented(self, part: Context) -> bool:
        """Return whether a represented context has just these values."""
        return min(self._distances(part)) < 1e-5

    def _distances(self, part: Context) -> list[float]:
        return [math.dist(self._partial(part, part), self._partial(context, part)) for context in self.contexts]

    def _partial(self, context: Context, names: Iterable[str]) -> list[float]:
        return [self._coordinates._coordinate(name, context[name]) for name in names]

    @cached_property
    def _points(self) -> Floats:
        return self._coordinates.points(self.contexts)

    def offsets(self, contexts: Sequence[Context]) -> tuple[Floats, Floats]:
        """Return regressors of contexts, and of the represented ones that they belong to.

        A level that changes along a range would look like noise of the settings. Each ordered parameter gives a linear
        and a quadratic column.
        """
        ordered = np.flatnonzero(~self._coordinates.categorical)
        drawn = self._coordinates.points(contexts)[:, ordered]
        nearest = self._points[[self.index(context) for context in contexts]][:, ordered]
        return np.hstack([drawn, drawn**2]), np.hstack([nearest, nearest**2])


def changes_from(baseline: Action, action: Action) -> dict[str, Scalar]:
    """Return the values of a setting that differ from the baseline's."""
    return {name: value for name, value in action.items() if exact_key({"": value}) != exact_key({"": baseline[name]})}
