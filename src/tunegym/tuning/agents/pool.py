"""Trials of all contexts as evidence for one of them.

Values from different contexts are never compared. What counts is a trial's rank: the share of trials in its own context
that it beats. In a range no context comes twice, so "its own context" has soft edges: a kernel over positions.

Other contexts are a prior, and may mislead. Where contexts come again, each counts by how well it predicts the acting
one's ranks, beside how well the acting one does that itself: every trial's rank is predicted from similar settings, in
its own context and in each other one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tunegym.tuning.agents.belief import Axis, Shape
from tunegym.tuning.model.space import Choice, EnvParam, Space
from tunegym.tuning.model.values import Action, Context

REACH = 0.15
"""Length scale of a range's kernel, as a share of the range."""
FADING = 10.0
"""A trial in another context weighs as much as an own one while there are none of these, and half at this many."""
FIRST_COMPARED = 12
GROWTH = 1.2
"""Contexts are compared first after this many trials, then whenever their number has grown by this factor."""
MOST_COMPARED = 1000
"""Trials that a comparison uses."""
BELIEVED = 0.25
"""Evidence before any trial that contexts are alike: the covariance of ranks and predictions in about six trials."""
NAMES, NUMBERS = Shape(0.35, None), Shape(0.1, 0.15)
"""How similar settings are, by knob: lists and ranges."""


class Pool:
    """Closed trials with ranks within their contexts. Updated incrementally.

    Attributes:
        rows: the settings as the caller gave them, one row for each trial, in the order in which they were added.
    """

    def __init__(self, params: Mapping[str, EnvParam], space: Space, width: int) -> None:
        self._axes = {name: Axis(param.domain) for name, param in params.items()}
        self._knobs = {name: Axis(knob) for name, knob in space.knobs.items()}
        self._settings = np.empty((0, len(self._knobs)))
        self._groups = np.empty(0, dtype=np.intp)  # of contexts, where they come again
        self._numbers: dict[bytes, int] = {}
        self._alike = np.ones((0, 0))
        self._recur = all(isinstance(axis.domain, Choice) for axis in self._axes.values())
        self._next = FIRST_COMPARED
        self.rows = np.empty((0, width))
        self._places = np.empty((0, len(params)))
        self._values = np.empty(0)
        self._beaten = np.empty(0)
        self._mass = np.empty(0)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, context: Context, action: Action, row: np.ndarray, value: float) -> None:
        """Add a trial; larger values are better, and minus infinity is a failure."""
        near = self.near(context)
        beats = np.where(self._values > value, 1.0, np.where(self._values == value, 0.5, 0.0))
        self._beaten = np.append(self._beaten + near * beats, float(near @ (1.0 - beats)))
        self._mass = np.append(self._mass + near, float(near.sum()))
        self.rows = np.vstack([self.rows, row])
        place = self._place(context)
        self._places = np.vstack([self._places, place])
        self._values = np.append(self._values, value)
        self._settings = np.vstack([self._settings, [axis.place(action[name]) for name, axis in self._knobs.items()]])
        self._groups = np.append(self._groups, self._numbers.setdefault(place.tobytes(), len(self._numbers)))
        if self._recur and len(self) >= self._next:
            self._next = math.ceil(len(self) * GROWTH)
            self._compare()

    def ranks(self) -> np.ndarray:
        """The share of trials in its context that each trial beats, from 0 to 1; half for the only one there."""
        return (self._beaten + 1.0) / (self._mass + 2.0)

    def near(self, context: Context) -> np.ndarray:
        """How near each trial's context is, from 0 to 1."""
        near = np.ones(len(self))
        for axis, here, column in zip(self._axes.values(), self._place(context), self._places.T, strict=True):
            if isinstance(axis.domain, Choice):
                near *= column == here
            else:
                near *= np.exp(-0.5 * ((column - here) / REACH) ** 2)
        return near

    def weights(self, context: Context) -> np.ndarray:
        """How much each trial counts in ``context``. Other contexts are a prior: own trials take over."""
        near = self.near(context)
        group = self._numbers.get(self._place(context).tobytes(), len(self._alike))
        if self._recur and group < len(self._alike):
            known = np.append(self._alike[group], np.ones(len(self._numbers) - len(self._alike)))
            alike = known[self._groups]
        else:
            alike = np.ones(len(self))
        return near + (1.0 - near) * alike / (1.0 + near.sum() / FADING)

    def _compare(self) -> None:
        """How well each context's ranks predict those of each other one, from 0 to 1."""
        some = np.unique(np.linspace(0, len(self) - 1, min(len(self), MOST_COMPARED)).astype(int))
        near = np.ones((len(some), len(some)))
        for axis, column in zip(self._knobs.values(), self._settings[some].T, strict=True):
            near *= (NAMES if isinstance(axis.domain, Choice) else NUMBERS).likeness(column, column)
        np.fill_diagonal(near, 0.0)  # no trial predicts itself
        member = self._groups[some][:, None] == np.arange(len(self._numbers))
        ranks = member * (self.ranks()[some] - 0.5)[:, None]
        predicted = near @ ranks / (near @ member + 0.05)  # of each trial, by each context
        found = ranks.T @ predicted  # of each context, by each context: the covariance, times the number of trials
        own = np.maximum(np.diag(found), 0.0)
        # A context that was hardly tried is as like the others as contexts are in general.
        others = (found.sum() - np.trace(found)) / max(len(found) - 1, 1)
        overall = min((others + BELIEVED) / (own.sum() + BELIEVED), 1.0)
        self._alike = np.clip((found + BELIEVED * overall) / (own[:, None] + BELIEVED), 0.0, 1.0)

    def _place(self, context: Context) -> np.ndarray:
        return np.array([axis.place(context.get(name)) for name, axis in self._axes.items()], dtype=np.float64)
