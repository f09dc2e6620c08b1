"""Hyperband: successive halving in brackets that give trials less or more time before they are compared.

After Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization" (2018), asynchronous
as in Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2020): no trial waits for a rung to fill.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import ClassVar

from tunegym.core.randomness import unit


@dataclass(frozen=True, kw_only=True)
class HyperbandConfig:
    """The settings of ``hyperband``."""

    min_steps: int = 1  # the first rung of the first bracket
    reduction: int = 3  # one in this many continues from a rung; each rung is this many times the one before
    max_steps: int | None = None  # the step at which a trial is complete; None for the longest measured one so far

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if self.min_steps < 1:
            raise ValueError("min_steps must be at least 1")
        if self.reduction < 2:
            raise ValueError("reduction must be at least 2")
        if self.max_steps is not None and self.max_steps <= self.min_steps:
            raise ValueError("max_steps must be above min_steps")


class HyperbandPruner:
    """Ends a trial that is not among the best of those that reached the same rung in its bracket.

    Bracket *b* has rungs at ``min_steps * reduction ** k`` for k = b, b + 1, ... below ``max_steps``, and the last
    one has none: its trials run to their end. A trial's bracket is drawn by its number. No trial
    is judged before the length of a trial is known.
    """

    Config: ClassVar[type[HyperbandConfig]] = HyperbandConfig

    def __init__(self, config: HyperbandConfig, seed: int = 0) -> None:
        self._config = config
        self._seed = seed
        self._longest = config.max_steps or 0
        self._brackets: dict[int, int] = {}
        self._rungs: dict[tuple[int, int], dict[int, float]] = {}

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        """See ``Pruner.judge``."""
        step = curve[-1][0]
        for bracket, rung in self._rungs_of(number):
            if rung > step:
                break
            there = self._rungs.setdefault((bracket, rung), {})
            reward = _at(curve, rung)
            if number in there or reward is None:  # None where the steps jump back and forth
                continue
            there[number] = reward
            places = len(there) // self._config.reduction
            if 0 < places <= sum(other > reward for other in there.values()):
                best = "the best" if places == 1 else f"the best {places}"
                return f"{reward:.6g} is not among {best} of {len(there)} trials at rung {rung}"
        return None

    def closed(self, number: int, curve: Sequence[tuple[int, float]], status: str) -> None:
        """See ``Pruner.closed``."""
        for there in self._rungs.values():
            there.pop(number, None)
        if status in ("measured", "pruned"):
            if self._longest:  # the bracket is the one from before this trial showed how long a trial is
                self._bracket(number)
            if status == "measured" and self._config.max_steps is None:
                self._longest = max(self._longest, *(step for step, _ in curve), 0)
            for place in self._rungs_of(number):
                if (reward := _at(curve, place[1])) is not None:
                    self._rungs.setdefault(place, {})[number] = reward
        self._brackets.pop(number, None)

    def _rungs_of(self, number: int) -> Iterator[tuple[int, int]]:
        """The rungs that a trial comes to, each with its bracket, lowest first; none while the length is unknown."""
        if not self._longest:
            return
        bracket = self._bracket(number)
        rung = self._config.min_steps * self._config.reduction**bracket
        while rung < self._longest:
            yield bracket, rung
            rung *= self._config.reduction

    def _bracket(self, number: int) -> int:
        """A trial's bracket, which it keeps, by the paper's shares: each bracket uses about as many steps."""
        if number not in self._brackets:
            reduction = self._config.reduction
            count = 1
            while self._config.min_steps * reduction**count <= self._longest:
                count += 1
            shares = [ceil(count * reduction**halvings / (halvings + 1)) for halvings in reversed(range(count))]
            edges = list(accumulate(shares))
            self._brackets[number] = bisect_right(edges, unit(self._seed, "hyperband", number) * edges[-1])
        return self._brackets[number]


def _at(curve: Sequence[tuple[int, float]], rung: int) -> float | None:
    """A trial's best until it first reached a rung; None if it never did."""
    for at, (step, _) in enumerate(curve, 1):
        if step >= rung:
            return max(reward for _, reward in curve[:at])
    return None
