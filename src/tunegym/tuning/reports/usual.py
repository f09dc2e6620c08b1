"""What is usual in a context: the bar that a setting is measured against."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import orjson

from tunegym.tuning.model.values import Context, Scalar, exact_key

OFTEN = 2
"""How often contexts, or a parameter's values, must come on average for each to have a mean of its own."""
MOST_CELLS = 8
"""Into how many cells a parameter's values are cut at most when they come less often."""


class Tries(NamedTuple):
    """Trials in one context, under its exact key: how many were drawn, how many measured, the sum of rewards."""

    context: bytes
    drawn: int
    measured: int
    rewards: float


class UsualReward:
    """The reward that the average measured trial gets in a context.

    Where contexts come again and again it is the context's own mean. Where they hardly do (a range, or many
    parameters) that would compare each trial with itself; then every parameter shifts the mean on its own account.
    They are drawn independently of each other, so their effects may be added.

    Attributes:
        contexts: how many different ones were measured in.
        varies: whether there is anything but the empty context.
        recurs: whether contexts come often enough for each to count on its own.
    """

    def __init__(self, tries: Iterable[Tries]) -> None:
        tries = list(tries)
        measured = [one for one in tries if one.measured]
        self._drawn: Counter[bytes] = Counter()
        for one in tries:
            self._drawn[one.context] += one.drawn
        self._means = _means((one.context, one) for one in measured)
        self.contexts = len(self._means)
        self.varies = any(context != exact_key({}) for context in self._means)
        count = sum(one.measured for one in measured)
        self.recurs = count >= OFTEN * self.contexts or not self.varies
        self._overall = math.fsum(one.rewards for one in measured) / max(count, 1)
        self._effects: list[Callable[[Context], float]] = []
        if not self.recurs:
            runs = [(_context(one.context), one) for one in measured]
            self._effects = [self._effect(name, runs) for name in runs[0][0]]

    def share(self, context: bytes) -> float:
        """The share of all trials, however they ended, that were drawn in a context."""
        return self._drawn[context] / self._drawn.total()

    def __call__(self, context: bytes) -> float:
        """The usual reward in a context that a measured trial had."""
        if self.recurs:
            return self._means[context]
        values = _context(context)
        return self._overall + math.fsum(effect(values) for effect in self._effects)

    def _effect(self, name: str, runs: list[tuple[Context, Tries]]) -> Callable[[Context], float]:
        cell = _cells([context[name] for context, one in runs for _ in range(one.measured)])
        means = _means((cell(context[name]), one) for context, one in runs)
        return lambda context: means[cell(context[name])] - self._overall


def _context(key: bytes) -> Context:
    """An exact key of one context is JSON of it."""
    return orjson.loads(key)[0]


def _means(tries: Iterable[tuple[Hashable, Tries]]) -> dict[Hashable, float]:
    """The mean reward of each kind."""
    sums: dict[Hashable, tuple[float, int]] = {}
    for key, one in tries:
        total, count = sums.get(key, (0.0, 0))
        sums[key] = total + one.rewards, count + one.measured
    return {key: total / count for key, (total, count) in sums.items()}


def _cells(values: list[Scalar]) -> Callable[[Scalar], Hashable]:
    """Which cell a value is in: its own if values come often, else one of a few equally full ones."""
    if len(values) >= OFTEN * len({(type(value), value) for value in values}):
        return lambda value: (type(value), value)
    numbers = sorted(value for value in values if isinstance(value, int | float))
    if len(numbers) < len(values):  # names have no order to cut: nothing can be said about them
        return lambda _: None
    count = min(MOST_CELLS, max(1, len(numbers) // (2 * OFTEN)))
    return lambda value: bisect_left(numbers, value) * count // len(numbers)
