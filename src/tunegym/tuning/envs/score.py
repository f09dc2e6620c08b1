"""Rewards, counts and the budget of an experiment in progress.

Only a measurement is scored; any other outcome gets a penalty as the reward itself.

``TrialScore`` scores trials, ``StepScore`` live steps. Both share one ``RewardScale``, so that an automatic penalty
means the same in every kind of experiment: ten times the largest reward below the worst one measured so far. A later
reward seldom falls below that, and a network trained on it still sees other rewards.

``Tally`` and ``StepTally`` count trials and steps for displays; ``BudgetClock`` says when no further one may start,
and ``FirstFailures`` that none should, as every one has failed so far.
"""

from __future__ import annotations

import logging
import math
import re
import statistics
import sys
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunegym.core.clock import Clock
from tunegym.core.text import error_text, escaped
from tunegym.tuning.model.scenario import Budget, Experiment, Penalties
from tunegym.tuning.model.space import EnvParams, Range
from tunegym.tuning.model.trial import (
    CONFIRM,
    FAILURES,
    SEARCH,
    Failed,
    Infeasible,
    Measured,
    Outcome,
    Trial,
)
from tunegym.tuning.model.values import Context, Metrics, counted, exact_key
from tunegym.tuning.ports import Reward
from tunegym.tuning.rewards import RewardError
from tunegym.tuning.servers.host import RAISED, ServerFailure
from tunegym.tuning.stores.reader import RECENT, Journal, mean_return

if TYPE_CHECKING:
    from tunegym.tuning.stores.steps import StepStore

logger = logging.getLogger(__name__)

_DIGITS = re.compile("[0-9]+")

NO_METRICS: Mapping[str, float] = {}
MARGIN = 10.0
"""An automatic penalty lies this many times the largest reward below the worst one."""
UNKNOWN_SCALE = -1e15
"""The automatic penalty of a trial before the first measurement: no reward to come should fall below it."""
BINS = 4
"""Draws of a range are taken for the same context in each of so many parts of it."""
FIRST_STEP = -1.0
"""The same of a live step: a network learns from it at once."""


class RewardScale:
    """The worst and the largest absolute reward measured so far, and the penalties that follow.

    Before the first measurement ``worst`` is infinity, and the automatic penalty ``unknown``.
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
    """Turns outcomes of trials into rewards; ``name`` is the reward's, for messages."""

    def __init__(self, reward: Reward, penalties: Penalties, name: str | None = None) -> None:
        self._reward = reward
        self._name = "the reward" if name is None else f"reward {name}"
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

    def _scored(self, found: Measured | Metrics) -> float:
        try:
            metrics = found.mean() if isinstance(found, Measured) else found
            if self._remember is not None and isinstance(found, Measured):
                self._remember(metrics)
            reward = float(self._reward(metrics))
        except RewardError:
            raise
        except (Exception, SystemExit) as error:  # a user's reward may raise anything
            raise RewardError(f"{self._name} raised {type(error).__name__}: {error}") from error
        if not math.isfinite(reward):
            raise RewardError(f"{self._name} gave {reward}")
        return reward

    def intermediate(self, metrics: Metrics) -> float | None:
        """The reward of a running trial's report; None, and a warning, if it has none."""
        try:
            return self._scored(metrics)
        except RewardError as error:  # a function that needs more than the one metric there is
            if not self._warned:
                self._warned = True
                logger.warning("a reported value can't be judged, so its trial isn't pruned there: %s", error)
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
        reward = _number("the reward", found)
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
        except (Exception, SystemExit) as error:  # a user's reward may raise anything
            raise ServerFailure(f"the reward function: {error_text(error)}") from error

    def _read(self, info: dict[str, Any]) -> dict[str, float]:
        missing = next((name for name in self._metrics if name not in info), None)
        if missing is not None:
            there = ", ".join(map(str, info)) or "nothing"
            raise ServerFailure(f"step: its info has no metric {missing} (there is: {there})")
        return {name: _number(f"metric {name}", info[name]) for name in self._metrics}


def _number(what: str, found: Any) -> float:
    """A reward or metric of a step. Raises ``ServerFailure``; a text is no number, whatever it spells."""
    value = found
    if type(found) is not float:
        try:
            value = math.nan if isinstance(found, str | bytes | bytearray) else float(found)
        except RAISED:
            value = math.nan
    if not math.isfinite(value):
        kind = "" if isinstance(found, float) else f", of type {type(found).__name__}"
        raise ServerFailure(f"step: {what} is {found!r:.60}{kind}; only a finite number is allowed")
    return value


class Tally:
    """Counts closed trials. Read by progress displays and the budget.

    Rewards of different contexts are not compared: each has its own best trial. Rounds that confirm a search
    don't count for that.
    """

    def __init__(self, params: EnvParams | None = None) -> None:
        self.statuses: Counter[str] = Counter()
        self.cached = 0
        self.done = 0
        self.phase = SEARCH  # of the latest trial
        self.idle = 0  # trials of the search since one was the best in its context
        self.failure = ""  # why the latest failed or timed-out trial did
        self.best: Trial | None = None  # of those measured in the context of the latest one; the earliest of equals
        self._bests: dict[bytes, Trial] = {}
        self._ranges = {
            name: one.domain
            for name, one in (params.params if params is not None else {}).items()
            if isinstance(one.domain, Range)
        }
        self._repeats: dict[bytes, list[float]] = {}

    def add(self, trial: Trial) -> None:
        """Count a closed trial."""
        self.done += 1
        self.statuses[trial.outcome.status] += 1
        if trial.cached_from is not None:
            self.cached += 1
        if trial.status in FAILURES:
            self.failure = trial.reason
        self.phase = trial.phase
        if trial.measured and trial.cached_from is None:
            self._repeats.setdefault(exact_key(trial.action, trial.context), []).append(trial.reward)
        if trial.phase == CONFIRM:
            return
        best = self.best_in(trial.context)
        self.idle += 1
        if trial.measured:
            if best is None or trial.reward > best.reward:
                best = self._bests[self._place(trial.context)] = trial
                self.idle = 0
            self.best = best

    def best_in(self, context: Context) -> Trial | None:
        """The best trial in a context; None before one was measured there."""
        return self._bests.get(self._place(context))

    def _place(self, context: Context) -> bytes:
        bins = {name: int(one.position(float(context[name])) * BINS) for name, one in self._ranges.items()}
        return exact_key({**context, **bins})

    def noise(self, reward: float) -> float | None:
        """The standard deviation of a reward, by the setting that was measured most often; None if unknown."""
        samples = max(self._repeats.values(), key=len, default=[])
        if len(samples) < 2:
            return None
        mean, deviation = statistics.fmean(samples), statistics.stdev(samples)
        # Noise mostly grows with the value, as long as it is small beside it.
        return deviation * abs(reward / mean) if abs(mean) > 2 * deviation else deviation


class StepTally:
    """Counts steps and episodes, of all sessions. Read by progress displays and the budget."""

    idle: int = 0
    """A live experiment is not ended for want of improvement."""

    def __init__(self, past: Journal) -> None:
        self.done = past.upto
        self.others: Counter[str] = Counter(
            {status: count for status, count in past.statuses.items() if status != "measured"}
        )
        self.episodes = past.over
        self.returns: deque[float] = deque(past.returns, maxlen=RECENT)  # of episodes that the server itself ended
        self.restarts = 0  # of servers, in this session
        self.failure = ""  # why the latest failed step of this session did

    @property
    def statuses(self) -> Counter[str]:
        """Steps by status."""
        return Counter({"measured": self.done - self.others.total(), **self.others})

    @property
    def mean_return(self) -> float | None:
        """Of the newest episodes, at most a hundred; None before the first is over."""
        return mean_return(self.returns)


class FirstFailures:
    """Says that a session's first trials, or steps, all failed for the same reason: a typo must not cost a budget.

    Numbers in a reason may differ. An infeasible or cancelled trial tells nothing. Any other outcome, also one of an
    earlier session, shows that the system works.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: Counter[str] = Counter()
        self.verdict: str | None = None

    def add(self, status: str, reason: str = "") -> None:
        """Count the end of a trial or step, by its status."""
        if status in FAILURES and self._limit:
            self._seen[_DIGITS.sub("#", reason)] += 1
            if len(self._seen) == 1 and self._seen.total() >= self._limit:
                self.verdict = f"all of the first {self._limit} failed: {escaped(reason)}"
        elif status not in ("infeasible", "cancelled"):
            self._limit, self.verdict = 0, None


class BudgetClock:
    """Says why no further trial may start.

    It stands still until the first trial begins, and whenever it is paused: the time that an agent takes to get ready
    doesn't count.
    """

    def __init__(self, budget: Budget, tally: Tally | StepTally, clock: Clock, spent_s: float = 0.0) -> None:
        self.budget = budget
        self._tally = tally
        self._clock = clock
        self._spent = spent_s
        self._since: float | None = None
        self._paused = clock.monotonic()
        self.failures = FirstFailures(budget.stop_after_failures)
        self.kept = 0  # trials that the search leaves to the confirmation, and its share of the time
        self.kept_share = 0.0

    def start(self) -> float:
        """Let it run from here; for how long it stood still, or 0 if it ran already."""
        if self._since is not None:
            return 0.0
        self._since = self._clock.monotonic()
        return self._since - self._paused

    def pause(self) -> None:
        """Let it stand still."""
        self._spent = self.elapsed_s
        self._since = None
        self._paused = self._clock.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Time spent, earlier sessions included."""
        return self._spent + (self._clock.monotonic() - self._since if self._since is not None else 0.0)

    def exhausted(self, number: int, *, search: bool = True) -> str | None:
        """Why trial ``number`` may not start, of the search or of another phase; None if it may."""
        budget = self.budget
        kept, share = (self.kept, self.kept_share) if search else (0, 0.0)
        if budget.agent_steps is not None and number > budget.agent_steps - kept:
            rest = f", but for {kept} to confirm the best" if kept else ""
            return f"agent_steps = {budget.agent_steps} are used up{rest}"
        if budget.max_time_s is not None and self.elapsed_s >= budget.max_time_s * (1.0 - share):
            return f"max_time = {budget.max_time_s:g} s is over{', but for the confirmation' if share else ''}"
        idle = budget.stop_after_no_improvement
        if search and idle is not None and self._tally.idle >= idle:
            return f"no improvement in {counted(idle, 'trial')}"
        return self.failures.verdict
