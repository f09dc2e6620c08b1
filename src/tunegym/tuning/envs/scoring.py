"""Step 6 of the walk: only a measurement is scored; anything else gets a penalty as the reward itself."""

from __future__ import annotations

import logging
import math
import sys

from tunegym.tuning.model.outcome import Failed, Infeasible, Measured, Outcome
from tunegym.tuning.model.scenario import Penalties, Penalty
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Metrics
from tunegym.tuning.ports import Reward
from tunegym.tuning.rewards import RewardError

logger = logging.getLogger(__name__)

UNKNOWN_SCALE = -1e15
"""The automatic penalty while nothing was measured: no measured reward should ever be below it."""

MARGIN = 1000.0
"""How many times the scale of the rewards an automatic penalty lies below the worst one. Wide, because a
reward that is still to come must not fall below a penalty that was already given."""


class Scoring:
    """Turns outcomes into rewards and remembers the worst one measured."""

    def __init__(self, reward: Reward, penalties: Penalties) -> None:
        self._reward = reward
        self._remember = getattr(reward, "remember", None)
        self._penalties = penalties
        self._worst = math.inf
        self._largest = 1.0
        self._warned: set[str] = set()

    def score(self, outcome: Outcome) -> tuple[Outcome, float]:
        """The outcome and its reward. A measurement that can't be scored is a failure with its reason."""
        if isinstance(outcome, Measured):
            try:
                reward = self._scored(outcome)
            except RewardError as error:
                outcome = Failed(str(error))
            else:
                self._learn(reward)
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
        except Exception as error:  # anybody's reward may raise whatever it likes
            raise RewardError(f"the reward raised {type(error).__name__}: {error}") from error
        if not math.isfinite(reward):
            raise RewardError(f"the reward is {reward}")
        return reward

    def intermediate(self, metrics: Metrics) -> float | None:
        """The reward of what a running trial reported; None, and a warning, if it has none."""
        try:
            reward = float(self._reward(metrics))
        except Exception as error:  # a function that wants more than the one metric there is
            reason = str(error) or type(error).__name__
        else:
            if math.isfinite(reward):
                return reward
            reason = f"the reward is {reward}"
        if "intermediate" not in self._warned:
            self._warned.add("intermediate")
            logger.warning("a reported value can't be judged, so its trial isn't pruned there: %s", reason)
        return None

    def remember(self, trial: Trial) -> None:
        """Take in a trial of an earlier session."""
        if trial.measured:
            if self._remember is not None:
                self._remember(trial.metrics)
            self._learn(trial.reward)

    def penalty(self, outcome: Outcome) -> float:
        """The reward of an outcome without a measurement."""
        name = "constraint_failure" if isinstance(outcome, Infeasible) else "metric_failure"
        penalty = getattr(self._penalties, name)
        if penalty == "auto":
            if self._worst == math.inf:
                return UNKNOWN_SCALE
            return max(self._worst - MARGIN * self._largest, -sys.float_info.max)
        return float(penalty)

    def _learn(self, reward: float) -> None:
        self._largest = max(self._largest, abs(reward))
        if reward < self._worst:
            self._worst = reward
            self._warn_if_attractive("constraint_failure", self._penalties.constraint_failure)
            self._warn_if_attractive("metric_failure", self._penalties.metric_failure)

    def _warn_if_attractive(self, name: str, penalty: Penalty) -> None:
        if penalty != "auto" and penalty > self._worst and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "rewards.%s = %g is above a measured reward (%g): a failure looks better than a measurement; "
                'use "auto" or a lower number',
                name,
                penalty,
                self._worst,
            )
