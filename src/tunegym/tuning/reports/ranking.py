"""How good each action is: within a context, and over all of them.

Where the environment varies, a lucky context must not win: actions are ranked by how much better they did than
the average trial *in the same context*, shrunk towards zero when they were measured only a few times. Over all,
each context counts as often as it was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.reports.usual import Tries, UsualReward

SHRINK = 1.0
LARGEST = 1e290

OVER_ALL = b""
"""The group of those who compete over all contexts; the others compete within one, under its exact key."""

Key: TypeAlias = tuple[bytes, bytes]
"""An action and a context, or ``OVER_ALL``."""


class Standing(NamedTuple):
    """How an action did in one respect: the score that ranks it, and the plain mean behind it."""

    score: float
    mean: float


@dataclass(slots=True)
class Cell:
    """One action in one context. A cached trial is drawn, and no further measurement.

    Attributes:
        first: the number of its first measured trial; of its first trial while none was measured.
        totals: of the measurements, added up: the reward, then each metric that was asked for.
    """

    first: int
    drawn: int = 0
    measured: int = 0
    failed: int = 0
    totals: list[float] = field(default_factory=list)


class Column:
    """One respect in which actions are compared: the reward (0), or one of the metrics."""

    def __init__(self, cells: Mapping[Key, Cell], index: int) -> None:
        self._index = index
        self._by_action: dict[bytes, list[tuple[bytes, Cell]]] = {}
        for (action, context), cell in cells.items():
            if cell.measured:
                self._by_action.setdefault(action, []).append((context, cell))
        self.usual = UsualReward(self._tries(cells))

    def _tries(self, cells: Mapping[Key, Cell]) -> Iterator[Tries]:
        for (_, context), cell in cells.items():
            yield Tries(context, cell.drawn, cell.measured, cell.totals[self._index] if cell.measured else 0.0)

    def within(self, context: bytes, cell: Cell) -> Standing:
        """How an action did in one context."""
        total = cell.totals[self._index]
        return Standing(self._advantages(context, cell) / (cell.measured + SHRINK), total / cell.measured)

    def over_all(self, action: bytes) -> Standing:
        """How an action did over all contexts.

        Where contexts come again, each counts as often as it was drawn, and one that the action never met counts
        as no better than usual there. Where they don't, and where there is only one, all measurements count alike.
        """
        met = self._by_action[action]
        standing = self._weighted(met) if self.usual.recurs else self._pooled(met)
        return standing if self.usual.varies else Standing(standing.mean, standing.mean)

    def _advantages(self, context: bytes, cell: Cell) -> float:
        """By how much its measurements were better than usual in the context, added up."""
        return cell.totals[self._index] - cell.measured * self.usual(context)

    def _weighted(self, met: list[tuple[bytes, Cell]]) -> Standing:
        shares = [self.usual.share(context) for context, _ in met]
        each = [self.within(context, cell) for context, cell in met]
        score = sum(share * one.score for share, one in zip(shares, each, strict=True))
        return Standing(score, sum(share * one.mean for share, one in zip(shares, each, strict=True)) / sum(shares))

    def _pooled(self, met: list[tuple[bytes, Cell]]) -> Standing:
        count = sum(cell.measured for _, cell in met)
        advantages = sum(self._advantages(context, cell) for context, cell in met)
        return Standing(advantages / (count + SHRINK), sum(cell.totals[self._index] for _, cell in met) / count)


def gather(trials: Iterable[Trial], metrics: Sequence[str] = ()) -> dict[Key, Cell]:
    """Every action in every context it was tried in. A metric that a measurement lacks counts as 0."""
    cells: dict[Key, Cell] = {}
    for trial in trials:
        key = exact_key(trial.action), exact_key(trial.context)
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = Cell(trial.number)
        cell.drawn += 1
        if not isinstance(trial.outcome, Measured):
            cell.failed += 1
        elif trial.cached_from is None:
            cell.first = min(cell.first, trial.number) if cell.measured else trial.number
            cell.measured += 1
            found = trial.outcome.mean() if metrics else {}
            values = [_bounded(value) for value in (trial.reward, *(found.get(name, 0.0) for name in metrics))]
            cell.totals = [a + b for a, b in zip(cell.totals, values, strict=True)] if cell.totals else values
    return cells


def _bounded(value: float) -> float:
    """Small enough for any number of them to be added up; beyond that all are equally large."""
    return min(max(value, -LARGEST), LARGEST)


def front(vectors: Mapping[bytes, Sequence[float]]) -> list[bytes]:
    """The keys whose vectors no other one dominates (more is better); of equal vectors, all."""
    # Sorted downwards, nothing that comes later can dominate what is in already.
    ranked = sorted(vectors, key=lambda key: tuple(vectors[key]), reverse=True)
    points = np.array([vectors[key] for key in ranked], dtype=float)
    if not len(points):
        return []
    if points.shape[1] == 2:
        # In this order a point is dominated if an earlier one is at least as good in the second respect and is
        # not the same point; one pass over the best so far shows that.
        best = np.maximum.accumulate(points[:, 1])
        before = np.concatenate(([-np.inf], best[:-1]))
        kept = points[:, 1] > before
        same = np.concatenate(([False], (points[1:] == points[:-1]).all(axis=1)))
        for index in np.flatnonzero(same):
            kept[index] = kept[index - 1]
        return [key for key, keep in zip(ranked, kept, strict=True) if keep]
    front_points = np.empty_like(points)
    count = 0
    found: list[bytes] = []
    for key, point in zip(ranked, points, strict=True):
        others = front_points[:count]
        if not ((others >= point).all(axis=1) & (others > point).any(axis=1)).any():
            front_points[count] = point
            count += 1
            found.append(key)
    return found
