"""Step 6 of the walk: only a measurement is scored; any other outcome gets a penalty as the reward itself.

``TrialScore`` scores trials, ``StepScore`` live steps. Both share one ``RewardScale``, so that an automatic penalty
means the same in every kind of experiment: ten times the largest reward below the worst one measured so far. A later
reward seldom falls below that, and a network trained on it still sees other rewards.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunegym.tuning.model.scenario import Experiment, Penalties
from tunegym.tuning.model.trial import Failed, Infeasible, Measured, Outcome, Trial
from tunegym.tuning.model.values import Metrics
from tunegym.tuning.ports import Reward
from tunegym.tuning.rewards import RewardError
from tunegym.tuning.servers.host import RAISED, ServerFailure, error_text

if TYPE_CHECKING:
    from tunegym.tuning.stores.steps import StepStore

logger = logging.getLogger(__name__)

NO_METRICS: Mapping[str, float] = {}
MARGIN = 10.0
"""An automatic penalty lies this many times the largest reward below the worst one."""
UNKNOWN_SCALE = -1e15
"""The automatic penalty of a trial before the first measurement: no reward to come should fall below it."""
FIRST_STEP = -1.0
"""The same of a live step: a network learns from it at once."""


class RewardScale:
    """The worst and the largest reward measured so far, and the penalties that follow.

    Attributes:
        worst: infinity before the first measurement; the automatic penalty is ``unknown`` until then.
        largest: the largest absolute reward, at least 1.
    """

    def __init__(self, penalties: Penalties, unknown: float, worst: float | None = None, largest: float = 1.0) -> None:
        self._penalties = penalties
        self._unknown = unknown
        self.worst = math.inf if worst is None else worst
        self.largest = largest
        self._warned: set[str] = set()

    def learn(self, reward: float) -> None:
        """Take in a measured reward."""
        self.largest = max(self.largest, abs(reward))
        if reward < self.worst:
            self.worst = reward
            for name in ("constraint_failure", "metric_failure"):
                self._warn_if_attractive(name)

    def penalty(self, name: str = "metric_failure") -> float:
        """The reward of an outcome without a measurement; ``name`` is that of the setting."""
        penalty = getattr(self._penalties, name)
        if penalty != "auto":
            return float(penalty)
        if self.worst == math.inf:
            return self._unknown
        return max(self.worst - MARGIN * self.largest, -sys.float_info.max)

    def _warn_if_attractive(self, name: str) -> None:
        penalty = getattr(self._penalties, name)
        if penalty != "auto" and penalty > self.worst and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "rewards.%s = %g is above a measured reward (%g): a failure looks better than a measurement; "
                'use "auto" or a lower number',
                *(name, penalty, self.worst),
            )


class TrialScore:
    """Turns outcomes of trials into rewards."""

    def __init__(self, reward: Reward, penalties: Penalties) -> None:
        self._reward = reward
        self._remember = getattr(reward, "remember", None)
        self._scale = RewardScale(penalties, UNKNOWN_SCALE)
        self._warned = False

    def score(self, outcome: Outcome) -> tuple[Outcome, float]:
        """The outcome and its reward. A measurement that can't be scored is a failure with its reason."""
        if isinstance(outcome, Measured):
            try:
                reward = self._scored(outcome)
            except RewardError as error:
                outcome = Failed(str(error))
            else:
                self._scale.learn(reward)
                return outcome, reward
        return outcome, self.penalty(outcome)

    def _scored(self, outcome: Measured) -> float:
        try:
            metrics = outcome.mean()
            if self._remember is not None:
                self._remember(metrics)
            reward = float(self._reward(metrics))
        except RewardError:
            raise
        except Exception as error:  # a user's reward may raise anything
            raise RewardError(f"the reward raised {type(error).__name__}: {error}") from error
        if not math.isfinite(reward):
            raise RewardError(f"the reward is {reward}")
        return reward

    def intermediate(self, metrics: Metrics) -> float | None:
        """The reward of a running trial's report; None, and a warning, if it has none."""
        try:
            reward = float(self._reward(metrics))
        except Exception as error:  # a function that needs more than the one metric there is
            reason = str(error) or type(error).__name__
        else:
            if math.isfinite(reward):
                return reward
            reason = f"the reward is {reward}"
        if not self._warned:
            self._warned = True
            logger.warning("a reported value can't be judged, so its trial isn't pruned there: %s", reason)
        return None

    def remember(self, trial: Trial) -> None:
        """Take in a trial of an earlier session."""
        if trial.measured:
            if self._remember is not None:
                self._remember(trial.metrics)
            self._scale.learn(trial.reward)

    def penalty(self, outcome: Outcome) -> float:
        """The reward of an outcome without a measurement."""
        return self._scale.penalty("constraint_failure" if isinstance(outcome, Infeasible) else "metric_failure")


class StepScore:
    """Turns answers of a live server into rewards; the scale is kept in the store.

    A server's own reward from ``low`` to ``high`` changes no scale and needs no scoring.
    """

    def __init__(self, experiment: Experiment, reward: Reward | None, store: StepStore) -> None:
        self._reward = reward
        self._metrics = experiment.agent_metrics
        self._store = store
        self._scale = RewardScale(experiment.penalties, FIRST_STEP, store.worst, store.largest)
        self._own = reward is None and not experiment.agent_metrics
        self.low, self.high = math.inf, -math.inf
        if self._own and store.worst is not None:
            self.low, self.high = self._scale.worst, self._scale.largest

    def score(self, found: Any, info: dict[str, Any]) -> tuple[float, Mapping[str, float]]:
        """Reward and metrics of a step. Raises ``ServerFailure`` if there is no measurement."""
        metrics = self._read(info) if self._metrics else NO_METRICS
        if self._reward is not None:
            found = self._computed(metrics)
        reward = found
        if type(reward) is not float:
            try:
                reward = float(reward)
            except RAISED:
                raise ServerFailure(f"step: the reward is {found!r:.60}, not a number") from None
        if not math.isfinite(reward):
            raise ServerFailure(f"step: the reward is {reward}")
        scale = self._scale
        if reward < scale.worst or abs(reward) > scale.largest:
            scale.learn(reward)
            self._store.worst, self._store.largest = scale.worst, scale.largest
            if self._own:
                self.low, self.high = scale.worst, scale.largest
        return reward, metrics

    def penalty(self) -> float:
        """The reward of a step without a measurement."""
        return self._scale.penalty()

    def _computed(self, metrics: Mapping[str, float]) -> float:
        assert self._reward is not None
        try:
            return self._reward(metrics)
        except Exception as error:  # a user's reward may raise anything
            raise ServerFailure(f"the reward function: {error_text(error)}") from error

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
        return "step: a metric in its info is not a number"
