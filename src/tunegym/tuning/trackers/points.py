"""A live experiment's episodes as a tracker is told of them: one by one at first, later some at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tunegym.tuning.stores import reader
from tunegym.tuning.stores.records import Record

FINE = 1000
"""Up to this step every episode is a point of its own; from there on each doubling has half as many points again."""
OWN_ENDS = ("terminated", "truncated")

RETURN, LENGTH, REWARD = "episode/return", "episode/length", "step/reward"
EPISODES, FAILED = "episodes", "failed"


@dataclass(frozen=True, slots=True)
class Point:
    """What a few episodes came to.

    Attributes:
        number: the step that they had come to; larger than in the point before.
        at: seconds since 1970.
        values: means over the episodes since the point before, and of the steps recorded in between; how many episodes
            were over, and how many steps had no measurement. ``episodes`` is always there, and the last.
    """

    number: int
    at: float
    values: dict[str, float]


class Points:
    """Makes points of records, in their order; the same ones every time. Ten million steps give less than 8,000.

    Only episodes that the server itself ended count.
    """

    def __init__(self) -> None:
        self._begin()
        self._episodes = self._failed = 0
        self._last = self._told = 0
        self._at = 0.0

    def _begin(self) -> None:
        self._number = 0
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._rewards = 0
        self._mean = 0.0

    def add(self, record: Record) -> list[Point]:
        """The points that a ``steps`` record completes."""
        found: list[Point] = []
        for episode in reader.ended(record):
            if episode.end not in OWN_ENDS:
                continue
            last = max(self._last, episode.last)
            if self._returns and last > _edge(self._number):
                found += self.flush()
            self._episodes += 1
            self._number, self._at = last, record["at"]
            self._returns.append(episode.total)
            self._lengths.append(episode.length)
        self._add_rewards(record)
        self._last, self._at = max(self._last, record["upto"]), record["at"]
        begun = self._number or self._told + 1
        if (self._returns or self._rewards) and self._last >= _edge(begun):
            found += self.flush()
        return found

    def flush(self) -> list[Point]:
        """The point that is not complete yet, if there is one."""
        if not self._returns and not self._rewards:
            return []
        number = max(self._number or self._last, self._told + 1)
        values: dict[str, float] = {}
        if self._returns:
            many = len(self._returns)
            values = {RETURN: sum(one / many for one in self._returns), LENGTH: sum(self._lengths) / many}
        if self._rewards:
            values[REWARD] = self._mean
        values |= {FAILED: float(self._failed), EPISODES: float(self._episodes)}
        self._told = number
        self._begin()
        return [Point(number, self._at, values)]

    def _add_rewards(self, record: Record) -> None:
        if not record["count"]:
            return
        others = {at for at, *_ in record.get("unmeasured", ())}
        self._failed += len(others)
        for at, reward in enumerate(record["reward"]):
            if at not in others and reward is not None:  # a penalty is no measurement
                self._rewards += 1
                self._mean += reward / self._rewards - self._mean / self._rewards


def _edge(number: int) -> int:
    """The last step of the window that ``number`` is in. It depends on the number alone, so a resume changes none."""
    width = 1 << ((max(number, 1) - 1) // FINE).bit_length()
    return -(-number // width) * width
