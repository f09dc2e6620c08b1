"""What the bandit was told, by cell: a context and a setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunegym.tuning.agents.bandit.belief import Told
from tunegym.tuning.agents.scaling import RewardScale
from tunegym.tuning.model.values import Action, Context, exact_key


class Evidence:
    """Every trial that taught something. Cells are numbered in the order in which they came up."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.worked: list[bool] = []
        self._cells: dict[bytes, int] = {}
        self._owners: list[int] = []
        self._pruned: list[int] = []
        self._scale = RewardScale()
        self._summed: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        """How many trials there were."""
        return len(self._owners)

    def add(self, context: Context, action: Action, reward: float, status: str) -> int:
        """Take in a trial; returns its cell, which is ``len(actions) - 1`` if it is new."""
        cell = self._cells.setdefault(exact_key(context, action), len(self.actions))
        if cell == len(self.actions):
            self.actions.append(action)
            self.worked.append(False)
        measured = status == "measured"
        # A cell weighs once: the more often the best one is repeated, the less would all others differ.
        self._scale.add(context, reward, measured=measured, weighs=not self.worked[cell])
        self.worked[cell] |= measured
        if status == "pruned":
            self._pruned.append(len(self))
        self._owners.append(cell)
        self._summed = None
        return cell

    def of(self, cells: Sequence[int]) -> Told:
        """What these cells gave, on the scale of all of them."""
        if self._summed is None:
            self._summed = self._sums()
        chosen = np.array(cells, dtype=np.int64)
        means, counts, within = (column[chosen] for column in self._summed)
        return Told(means, counts, float(within.sum()))

    def _sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By cell: the mean, the number of trials, and the sum of their squared distances from the mean."""
        rewards = self._scale.scaled()
        rewards[np.array(self._pruned, dtype=np.int64)] += 1.0  # given up on: as bad as the worst, but no failure
        owners = np.array(self._owners, dtype=np.int64)
        size = len(self.actions)
        counts = np.bincount(owners, minlength=size).astype(np.float64)
        means = np.bincount(owners, weights=rewards, minlength=size) / counts
        within = np.bincount(owners, weights=(rewards - means[owners]) ** 2, minlength=size)
        return means, counts, within
