"""What the bandit was told, by cell: a context and a setting."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from tunegym.tuning.agents.bandit.belief import Told
from tunegym.tuning.agents.scaling import RewardScale
from tunegym.tuning.model.values import Action, Context, exact_key


class Evidence:
    """Every trial that taught something. Cells are numbered in the order in which they came up."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.worked: list[bool] = []
        self._balance: list[int] = []  # how often it was measured, less how often it failed
        self._working: set[bytes] = set()
        self._cells: dict[bytes, int] = {}
        self._owners = array("q")
        self._scale = RewardScale()
        self._summed, self._version = 0, 0
        self._sums = np.zeros((3, 64))

    def __len__(self) -> int:
        """How many trials there were."""
        return len(self._owners)

    def add(self, context: Context, action: Action, reward: float, status: str) -> int:
        """Take in a trial; returns its cell, which is ``len(actions) - 1`` if it is new."""
        cell = self._cells.setdefault(exact_key(context, action), len(self.actions))
        if cell == len(self.actions):
            self.actions.append(action)
            self.worked.append(False)
            self._balance.append(0)
        measured, pruned = status == "measured", status == "pruned"
        # A cell weighs once: the more often the best one is repeated, the less would all others differ.
        self._scale.add(context, reward, measured=measured, pruned=pruned, weighs=not self.worked[cell])
        if measured:
            self.worked[cell] = True
            self._working.add(exact_key(action))
        self._balance[cell] += 0 if pruned else 1 if measured else -1
        self._owners.append(cell)
        return cell

    def standing(self, context: Context, action: Action) -> int | None:
        """How a setting can be expected to end there, the more the better; None if it never worked anywhere.

        Below 0 it failed there more often than not, and at 0 or above nothing speaks against it.
        """
        if exact_key(action) not in self._working:
            return None
        cell = self._cells.get(exact_key(context, action))
        return 0 if cell is None else self._balance[cell]

    def of(self, cells: Iterable[int]) -> Told:
        """What these cells gave, on the scale of all of them."""
        self._sum_up()
        counts, sums, squares = self._sums[:, np.fromiter(cells, np.int64)]
        means = sums / counts
        return Told(means, counts, float(np.maximum(squares - sums * means, 0.0).sum()))

    def _sum_up(self) -> None:
        """By cell: the number of trials, the sum of their rewards, and that of their squares.

        Only the trials since the last time, unless the scale has moved. One after the other in their order, so that
        it doesn't matter when that was.
        """
        if self._version != self._scale.version:
            self._summed, self._version = 0, self._scale.version
            self._sums = np.zeros_like(self._sums)
        if self._summed == len(self):
            return
        if len(self.actions) > self._sums.shape[1]:
            more = np.zeros((3, 2 * len(self.actions)))
            more[:, : self._sums.shape[1]] = self._sums
            self._sums = more
        owners = np.array(self._owners[self._summed :])
        rewards = self._scale.scaled(last=len(owners))
        for column, values in zip(self._sums, (np.ones(len(owners)), rewards, rewards * rewards), strict=True):
            np.add.at(column, owners, values)
        self._summed = len(self)
