"""Where a live experiment stands."""

from __future__ import annotations

from collections import Counter, deque

from tunegym.tuning.stores.reader import RECENT, Journal, mean_return


class LiveTally:
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
