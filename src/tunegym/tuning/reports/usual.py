"""What is usual in a context: the bar that a setting is measured against."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Context, Scalar, exact_key

OFTEN = 2
"""How often contexts, or a parameter's values, must come on average for each to have a mean of its own."""
MOST_CELLS = 8
"""Into how many cells a parameter's values are cut at most when they come less often."""

Run: TypeAlias = tuple[Context, float]


class UsualReward:
    """The reward that the average measured trial gets in a context.

    Where contexts come again and again it is the context's own mean. Where they hardly do (a range, or many
    parameters) that would compare each trial with itself; then every parameter shifts the mean on its own account.
    They are drawn independently of each other, so their effects may be added.

    Attributes:
        contexts: how many different ones there are.
    """

    def __init__(self, trials: Iterable[Trial]) -> None:
        own, self._means = _means((exact_key(context), reward) for context, reward in _runs(trials))
        self._drawn = Counter(exact_key(trial.context) for trial in trials)
        self.contexts = len(self._means)
        self._overall = 0.0
        self._effects: list[Callable[[Context], float]] | None = None
        if own < OFTEN * self.contexts and self.varies:
            runs = list(_runs(trials))
            self._overall = math.fsum(reward for _, reward in runs) / len(runs)
            self._effects = [self._effect(name, runs) for name in runs[0][0]]

    @property
    def varies(self) -> bool:
        """Whether there is anything but the empty context."""
        return any(key != exact_key({}) for key in self._means)

    @property
    def recurs(self) -> bool:
        """Whether contexts come often enough for each to count on its own."""
        return self._effects is None

    def share(self, context: bytes) -> float:
        """The share of all trials, however they ended, that were drawn in a context (by its exact key)."""
        return self._drawn[context] / self._drawn.total()

    def __call__(self, context: Context) -> float:
        """The usual reward in a context that a measured trial had."""
        if self._effects is None:
            return self._means[exact_key(context)]
        return self._overall + math.fsum(effect(context) for effect in self._effects)

    def _effect(self, name: str, runs: list[Run]) -> Callable[[Context], float]:
        cell = _cells([context[name] for context, _ in runs])
        _, means = _means((cell(context[name]), reward) for context, reward in runs)
        return lambda context: means[cell(context[name])] - self._overall


def _runs(trials: Iterable[Trial]) -> Iterable[Run]:
    return ((trial.context, trial.reward) for trial in trials if trial.measured and trial.cached_from is None)


def _means(rewards: Iterable[tuple[Hashable, float]]) -> tuple[int, dict[Hashable, float]]:
    """How many there are, and the mean of each kind."""
    sums: dict[Hashable, tuple[float, int]] = {}
    for key, reward in rewards:
        total, count = sums.get(key, (0.0, 0))
        sums[key] = total + reward, count + 1
    return sum(count for _, count in sums.values()), {key: total / count for key, (total, count) in sums.items()}


def _cells(values: list[Scalar]) -> Callable[[Scalar], Hashable]:
    """Which cell a value is in: its own if values come often, else one of a few equally full ones."""
    if len(values) >= OFTEN * len({(type(value), value) for value in values}):
        return lambda value: (type(value), value)
    numbers = sorted(value for value in values if isinstance(value, int | float))
    if len(numbers) < len(values):  # names have no order to cut: nothing can be said about them
        return lambda _: None
    count = min(MOST_CELLS, max(1, len(numbers) // (2 * OFTEN)))
    return lambda value: bisect_left(numbers, value) * count // len(numbers)
