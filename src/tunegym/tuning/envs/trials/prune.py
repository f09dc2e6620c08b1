"""The reports of running trials, and the pruner that ends some of them early."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from functools import partial

from tunegym.tuning.model.job import Watch
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import OpenTrial, Reports, Trial
from tunegym.tuning.model.values import Context, Metrics, exact_key
from tunegym.tuning.ports import Pruner

logger = logging.getLogger(__name__)

MOST_VALUES = 1000
"""About how many values of one trial are kept; of more, every second, fourth, eighth, ... is."""


class Curve:
    """Values by step, thinned where there are many. The newest is always the last one."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []
        self._stride = 1
        self._count = 0
        self._passing = False

    def add(self, step: int, value: float) -> None:
        """Take in the newest."""
        if self._passing:
            self.points.pop()
        self._passing = self._count % self._stride != 0
        self._count += 1
        self.points.append((step, value))
        if len(self.points) > MOST_VALUES and not self._passing:
            self.points = self.points[::2]
            self._stride *= 2


class _Running:
    """A trial that is being measured."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.values = Curve()
        self.rewards = Curve()
        self.reason: str | None = None
        self.error: Exception | None = None


class PruneWatch:
    """Collects the intermediate values of running trials, and asks a pruner about them. Thread-safe.

    Trials are compared under the same context only: there is a pruner for each.

    Args:
        experiment: whose trials they are.
        reward: of metrics, or None where they have none.
        pruner: makes one; None if nothing is pruned. Values are collected all the same.
    """

    def __init__(
        self,
        experiment: Experiment,
        reward: Callable[[Metrics], float | None],
        pruner: Callable[[], Pruner] | None,
    ) -> None:
        self._metric = experiment.judged_metric
        self._reward = reward
        self._make = pruner if self._metric is not None else None
        self._pruners: dict[bytes, Pruner] = {}
        self._running: dict[int, _Running] = {}
        self._lock = threading.Lock()
        self._warned = False

    def watch(self, trial: OpenTrial) -> Watch:
        """What is to be called with each intermediate value of a trial that begins."""
        running = _Running(trial.context)
        with self._lock:
            self._running[trial.number] = running
        return partial(self._reported, trial.number, running)

    def reason(self, number: int) -> str:
        """Why a running trial was ended; raises what its pruner raised instead of an answer."""
        running = self._running[number]
        if running.error is not None:
            raise running.error
        return running.reason or "pruned"

    def take(self, number: int) -> Reports:
        """What a trial reported that runs no longer; it is forgotten here."""
        if not self._running:
            return ()
        with self._lock:
            running = self._running.pop(number, None)
        return () if running is None else tuple(running.values.points)

    def closed(self, trial: Trial) -> None:
        """Take in a closed trial, of this session or an earlier one."""
        if self._make is None or not trial.reports:
            return
        with self._lock:
            rewards = [(step, self._reward_of(value)) for step, value in trial.reports]
            curve = [(step, reward) for step, reward in rewards if reward is not None]
            self._pruner(trial.context).closed(trial.number, curve, trial.status)

    def _reported(self, number: int, running: _Running, step: int, value: float) -> bool:
        if not math.isfinite(value):
            self._warn_of(number, step, value)
            return False
        with self._lock:
            if self._running.get(number) is not running:  # a thread that goes on after its function has ended
                return False
            if running.reason is not None or running.error is not None:
                return True
            running.values.add(step, value)
            return self._make is not None and self._hopeless(number, running, step, value)

    def _hopeless(self, number: int, running: _Running, step: int, value: float) -> bool:
        reward = self._reward_of(value)
        if reward is None:
            return False
        running.rewards.add(step, reward)
        try:
            reason = self._pruner(running.context).judge(number, running.rewards.points)
        except Exception as error:  # a user's pruner may raise anything; it is not an error of the job
            running.error = error
            return True
        if reason is not None:
            running.reason = f"pruned at step {step}: {reason}"
        return reason is not None

    def _reward_of(self, value: float) -> float | None:
        assert self._metric is not None
        return self._reward({self._metric: value})

    def _pruner(self, context: Context) -> Pruner:
        assert self._make is not None
        key = exact_key(context)
        if key not in self._pruners:
            self._pruners[key] = self._make()
        return self._pruners[key]

    def _warn_of(self, number: int, step: int, value: float) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("trial %d reported %g at step %d: such values are left out", number, value, step)
