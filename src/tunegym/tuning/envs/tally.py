"""The counts of an experiment in progress, for displays and the budget, and the clock that ends it."""

from __future__ import annotations

from collections import Counter, deque

from tunegym.core.clock import Clock
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.stores.reader import RECENT, Journal, mean_return


class Tally:
    """Counts closed trials. Read by progress displays and the budget.

    Attributes:
        statuses: closed trials by status.
        cached: how many of them were served from the cache.
        best: the measured trial with the highest reward; the earliest of equals. Never any other kind.
        idle: closed trials since the best one.
    """

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.cached = 0
        self.done = 0
        self.best: Trial | None = None
        self.idle = 0

    def add(self, trial: Trial) -> None:
        """Count a closed trial."""
        self.done += 1
        self.statuses[trial.outcome.status] += 1
        if trial.cached_from is not None:
            self.cached += 1
        if trial.measured and (self.best is None or trial.reward > self.best.reward):
            self.best = trial
            self.idle = 0
        else:
            self.idle += 1


class StepTally:
    """Counts steps and episodes. Read by progress displays and the budget.

    Attributes:
        done: steps taken, those of earlier sessions included.
        statuses: those without a measurement, by status; all others are measured.
        episodes: how many episodes are over.
        returns: of the newest episodes that the server itself ended.
        restarts: how often a server was started again in this session.
    """

    idle: int = 0
    """A live experiment is not ended for want of improvement."""

    def __init__(self, past: Journal) -> None:
        self.done = past.upto
        self.others: Counter[str] = Counter(
            {status: count for status, count in past.statuses.items() if status != "measured"}
        )
        self.episodes = past.over
        self.returns: deque[float] = deque(past.returns, maxlen=RECENT)
        self.restarts = 0

    @property
    def statuses(self) -> Counter[str]:
        """Steps by status."""
        return Counter({"measured": self.done - self.others.total(), **self.others})

    @property
    def mean_return(self) -> float | None:
        """Of the newest episodes, at most a hundred; None before the first is over."""
        return mean_return(self.returns)


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

    def exhausted(self, number: int) -> str | None:
        """Why trial ``number`` may not start, or None if it may."""
        budget = self.budget
        if budget.agent_steps is not None and number > budget.agent_steps:
            return f"agent_steps = {budget.agent_steps} are used up"
        if budget.max_time_s is not None and self.elapsed_s >= budget.max_time_s:
            return f"max_time = {budget.max_time_s:g} s is over"
        idle = budget.stop_after_no_improvement
        if idle is not None and self._tally.idle >= idle:
            return f"no improvement in {idle} trials"
        return None
