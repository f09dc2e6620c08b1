"""The reward of a live step: the server's own, or a function of its metrics; a penalty where there is neither."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from typing import Any

from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.ports import Reward
from tunegym.tuning.servers.hosting import RAISED, ServerFailure, told
from tunegym.tuning.stores.live import LiveStore

logger = logging.getLogger(__name__)

_INFINITY = math.inf
NO_METRICS: Mapping[str, float] = {}


class LiveScoring:
    """Scores steps, and remembers the scale of what it measured in the store.

    A reward of the server's own that lies between ``low`` and ``high`` tells nothing new, and needs not be scored.

    An automatic penalty lies below the worst reward measured so far, by as much as the largest: low enough to be the
    worst, and not so low that a network which is trained on it sees nothing else.
    """

    def __init__(self, experiment: Experiment, reward: Reward | None, store: LiveStore) -> None:
        self._reward = reward
        self._metrics = experiment.agent_metrics
        self._penalty = experiment.penalties.metric_failure
        self._store = store
        self._worst = _INFINITY if store.worst is None else store.worst
        self._largest = store.largest
        self._warned = False
        self._own = reward is None and not experiment.agent_metrics
        self.low, self.high = _INFINITY, -_INFINITY
        if self._own and store.worst is not None:
            self.low, self.high = self._worst, self._largest

    def scored(self, found: Any, info: dict[str, Any]) -> tuple[float, Mapping[str, float]]:
        """Reward and metrics of a step. Raises ``ServerFailure`` for what is no measurement."""
        metrics = self._read(info) if self._metrics else NO_METRICS
        if self._reward is not None:
            found = self._computed(metrics)
        reward = found
        if type(reward) is not float:
            try:
                reward = float(reward)
            except RAISED:
                raise ServerFailure(f"step: the reward is {found!r:.60}, not a number") from None
        if not -_INFINITY < reward < _INFINITY:
            raise ServerFailure(f"step: the reward is {reward}")
        if reward < self._worst or reward > self._largest or reward < -self._largest:
            self._learn(reward)
        return reward, metrics

    def penalty(self) -> float:
        """The reward of a step without a measurement."""
        if self._penalty != "auto":
            return float(self._penalty)
        return -1.0 if self._worst == _INFINITY else max(-sys.float_info.max, self._worst - self._largest)

    def _computed(self, metrics: Mapping[str, float]) -> float:
        assert self._reward is not None
        try:
            return self._reward(metrics)
        except Exception as error:  # anybody's reward may raise whatever it likes
            raise ServerFailure(f"the reward function: {told(error)}") from error

    def _read(self, info: dict[str, Any]) -> dict[str, float]:
        try:
            metrics = {name: float(info[name]) for name in self._metrics}
        except RAISED:
            raise ServerFailure(self._missing(info)) from None
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise ServerFailure(f"step: metric {name} is {value}")
        return metrics

    def _missing(self, info: dict[str, Any]) -> str:
        for name in self._metrics:
            if name not in info:
                return f"step: its info has no metric {name} (there is: {', '.join(map(str, info)) or 'nothing'})"
        return "step: a metric in its info is no number"

    def _learn(self, reward: float) -> None:
        self._worst = self._store.worst = min(self._worst, reward)
        self._largest = self._store.largest = max(self._largest, abs(reward))
        if self._own:
            self.low, self.high = self._worst, self._largest
        if not isinstance(self._penalty, str) and self._penalty > self._worst and not self._warned:
            self._warned = True
            logger.warning(
                "rewards.metric_failure = %g is above a measured reward (%g): a failure looks better than a "
                'measurement; use "auto" or a lower number',
                *(self._penalty, self._worst),
            )
