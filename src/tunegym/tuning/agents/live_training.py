"""Training on a live system, from the last checkpoint to the end of the budget, with the algorithm of any library."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunegym.core.errors import ActionError, BudgetError, ServerLostError
from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.agents.training import DIVERGED, Draws, training
from tunegym.tuning.ports import LiveEnv

logger = logging.getLogger(__name__)

HORIZON = 100_000
"""Assumed budget where only time bounds it."""
LINES = 1000
"""Approximate number of points in the training curves of a budget."""
STARTS = 100
"""Random steps of off-policy algorithms before they learn, at most a tenth of the budget."""
EPISODE = {"rew": "r", "len": "l"}
"""Return and length of an episode: in the curves' names, and in its record."""


class LiveTraining(ABC):
    """Learns until the budget ends, and keeps the policy on disk. ``run`` raises what ``LiveAgent.run`` expects."""

    def __init__(self, env: LiveEnv, name: str, config: Any, seed: int) -> None:
        self._env = env
        self._name = name
        self._config = config
        self._files = PolicyFiles(env.folder, name, unit="step")
        self._draws = Draws(seed, name)
        self._most = env.experiment.most_trials
        self._horizon = self._most or HORIZON
        self._trained = False
        self._first = self._saved = self._logged = env.taken

    def run(self) -> None:
        """Learn to the end; the steps collected by then are learned from, whatever the end."""
        with self._draws.one_thread():
            with training():
                self._prepare()
            cause = self._learn()
            if isinstance(cause, ActionError):  # only a diverged policy chooses such
                raise TrainingError(f"{DIVERGED} ({cause.message})") from cause
            if cause is not None and not isinstance(cause, BudgetError | ServerLostError):
                raise cause
            with training():
                self._finish()
        if isinstance(cause, ServerLostError):
            raise cause

    @abstractmethod
    def _restore(self) -> int:
        """Build the algorithm; returns how many steps its checkpoint has seen, 0 without one."""

    @abstractmethod
    def _remember(self) -> int | None:
        """Fill the replay buffer from the record; returns the number of steps, None if there is no such buffer."""

    @abstractmethod
    def _learn(self) -> Exception | None:
        """Train to the end of the budget; returns the live system's exception that ended it, if any."""

    @abstractmethod
    def _train_on_rest(self) -> None:
        """Learn from steps that no update had: an on-policy algorithm couldn't do so later."""

    @abstractmethod
    def _save_policy(self, taken: int) -> None:
        """Write the checkpoint after so many steps, and the model. Raises ``TrainingError`` if the network diverged."""

    def _prepare(self) -> None:
        saved = self._restore()
        self._trained = saved > 0
        if self._first:
            self._files.report_resume(self._first, min(saved, self._first), self._remember())

    def _record_update(self, values: Mapping[str, float], episodes: Sequence[Mapping[str, float]]) -> None:
        """Log and save after an update; ``episodes`` are the records of the last ones."""
        self._trained = True
        taken = self._env.taken
        if taken - self._logged >= max(self._horizon, taken) // LINES:
            self._logged = taken
            means = {f"rollout/ep_{name}_mean": [one[key] for one in episodes] for name, key in EPISODE.items()}
            known = {name: float(np.mean(column)) for name, column in means.items() if column}
            self._files.log(taken, {**known, **values})
        if taken - self._saved >= self._config.checkpoint_every:
            self._save()

    def _save(self) -> None:
        self._saved = self._env.taken
        self._save_policy(self._saved)

    def _finish(self) -> None:
        """Learn from the rest, also of a stopped run."""
        self._train_on_rest()
        if not self._trained:
            logger.warning("%s has learned nothing: %d steps are too few for an update", self._name, self._env.taken)
        elif self._env.taken > self._saved:
            self._save()
