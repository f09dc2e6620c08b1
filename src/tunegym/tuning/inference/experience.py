"""Closed trials as learners see them: rewards on a scale that doesn't depend on units, and settings that work.

A reward counts beside what is typical in its context, in units of the better half's spread there: the best setting of a
context doesn't depend on other contexts. The record keeps rewards as they are.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tunegym.tuning.inference.coordinates import Floats
from tunegym.tuning.inference.observations import CostScale, Observations, Question, Row
from tunegym.tuning.inference.surrogate import Standard
from tunegym.tuning.model.scenario import Judged
from tunegym.tuning.model.trial import Pruned, Trial
from tunegym.tuning.model.values import Context

LOWEST = -5.0
"""The lowest scaled reward of a measured trial."""


class Experience:
    """Trials in the order in which they were added, cached ones too. Settings are those of ``observations``."""

    def __init__(self, question: Question) -> None:
        self.observations = Observations(question)
        self._rows: list[Row] = []

    def __len__(self) -> int:
        """Return the number of trials."""
        return len(self._rows)

    def add(self, trial: Trial) -> int:
        """Add a closed trial, and return its setting."""
        setting = self.observations.setting(trial.action)
        context = self.observations.question.contexts.index(trial.context)
        self._rows.append(Row(trial, setting, context, trial.measured))
        return setting

    def working(self, context: Context) -> set[int]:
        """Return the settings that were measured somewhere, and in this context failed no more often than not."""
        index = self.observations.question.contexts.index(context)
        balance: Counter[int] = Counter()
        for row in self._rows:
            if row.context == index and row.trial.status != Pruned.status:
                balance[row.setting] += 1 if row.worked else -1
        return {row.setting for row in self._rows if row.worked and balance[row.setting] >= 0}

    def rewards(self) -> Floats:
        """Return the rewards of all trials, on the scale that all of them give.

        A failed trial is one unit below the worst measured one, whatever its penalty: bad enough, and no reason to
        unlearn the rest. A pruned trial didn't fail, and is as bad as the worst.
        """
        measured = [row for row in self._rows if row.worked]
        costs = self.observations.costs(measured, CostScale(Judged(), is_ratio=False))
        settings, contexts = np.array([(row.setting, row.context) for row in measured], dtype=np.intp).reshape(-1, 2).T
        scaled = np.zeros(len(measured))
        for context in np.unique(contexts):
            own = np.flatnonzero(contexts == context)
            # Repeating the best setting must not shrink the differences between the others.
            _, first = np.unique(settings[own], return_index=True)
            standard = Standard.of(costs[own[first]], np.zeros_like(first), 1)
            scaled[own] = -standard.compressed(costs[own], np.zeros_like(own))
        scaled = np.maximum(scaled, LOWEST)
        pruned = np.array([row.trial.status == Pruned.status for row in self._rows], dtype=float)
        rewards = scaled.min(initial=0.0) - 1.0 + pruned
        rewards[[row.worked for row in self._rows]] = scaled
        return rewards
