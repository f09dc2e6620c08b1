"""The items that a tracker gets from a journal while it is being written: one per trial, or per few episodes.

Items come in the order of the journal and are the same every time it is read, so a tracker that was away, or a resumed
session, starts over and passes over the numbers that are there already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunegym.tuning.model.head import Head
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.stores.reader import OWN_ENDS, ClosedTrial, Reader
from tunegym.tuning.stores.records import EndRecord, SessionRecord, Steps

FINE = 1000
"""Up to this step every episode is an item; from there on each doubling has half as many items again."""

RETURN, LENGTH, REWARD = "episode/return", "episode/length", "step/reward"
EPISODES, FAILED = "episodes", "failed"


@dataclass(frozen=True, slots=True)
class Item:
    """The data that a tracker stores under one number."""

    number: int  # the trial's, or the step that the episodes had come to; no two items share one
    at: float  # when, in seconds since 1970
    values: Mapping[str, float]  # metrics by name
    trial: Trial | None = None  # the closed trial; None for a mean over episodes
    opened_at: float = 0.0  # when the trial was opened


class Feed:
    """The items of a journal, as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rewind()

    def rewind(self) -> None:
        """Start over with the first item."""
        self._reader = Reader(self._path)
        self._episodes = EpisodeMeans()

    @property
    def head(self) -> Head | None:
        """The journal's first record; None before it was read."""
        return self._reader.journal.head

    def read(self, most: float = math.inf) -> list[Item]:
        """The items that were written since the last call, at most about ``most``."""
        items: list[Item] = []
        for record in self._reader.read():
            if isinstance(record, ClosedTrial):
                trial = record.trial
                items.append(Item(trial.number, record.closed_at, values_of(trial), trial, record.opened_at))
            elif isinstance(record, Steps):
                items += self._episodes.add(record)
            elif isinstance(record, SessionRecord | EndRecord):
                items += self._episodes.flush()
            if len(items) >= most:
                break
        return items

    def rest(self) -> list[Item]:
        """The last item, which is not complete, when nothing more is written."""
        return self._episodes.flush()


def all_items(path: Path) -> list[Item]:
    """Every item of a journal that is not being written."""
    feed = Feed(path)
    return [*feed.read(), *feed.rest()]


def values_of(trial: Trial) -> dict[str, float]:
    """Reward, means and, with repeats, spreads of a measured trial; none for any other: a penalty is no metric."""
    if not isinstance(trial.outcome, Measured):
        return {}
    values = {"reward": trial.reward, **{f"metrics/{name}": value for name, value in trial.metrics.items()}}
    if len(trial.outcome.samples) > 1:
        values |= {f"spread/{name}": value for name, value in trial.outcome.spread().items()}
    return values


class EpisodeMeans:
    """Means over the episodes that the server itself ended. Ten million steps give less than 8,000 items."""

    def __init__(self) -> None:
        self._over = self._failed = self._last = self._last_number = 0
        self._at = 0.0
        self._begin()

    def _begin(self) -> None:
        self._number = 0
        self._returns: list[float] = []
        self._lengths: list[float] = []
        self._rewards: list[float] = []

    def add(self, steps: Steps) -> list[Item]:
        """The items that a group of steps completes."""
        items: list[Item] = []
        for episode in steps.over:
            if episode.end not in OWN_ENDS:
                continue
            last = max(self._last, episode.last)
            if self._returns and last > _edge(self._number):
                items += self.flush()
            self._over += 1
            self._number, self._at = last, steps.at
            self._returns.append(episode.total)
            self._lengths.append(episode.length)
        self._failed += len(steps.unmeasured)
        # A penalty is no measurement.
        self._rewards += [reward for index, reward in enumerate(steps.rewards) if index not in steps.unmeasured]
        self._last, self._at = max(self._last, steps.upto), steps.at
        if self._last >= _edge(self._number or self._last_number + 1):
            items += self.flush()
        return items

    def flush(self) -> list[Item]:
        """The item that is not complete yet, if there is one."""
        if not self._returns and not self._rewards:
            return []
        means = {RETURN: self._returns, LENGTH: self._lengths, REWARD: self._rewards}
        values = {name: sum(numbers) / len(numbers) for name, numbers in means.items() if numbers}
        self._last_number = max(self._number or self._last, self._last_number + 1)
        item = Item(self._last_number, self._at, {**values, FAILED: float(self._failed), EPISODES: float(self._over)})
        self._begin()
        return [item]


def _edge(number: int) -> int:
    """The last step of the window that ``number`` is in. It depends on the number alone, so a resume changes none."""
    width = 1 << ((max(number, 1) - 1) // FINE).bit_length()
    return -(-number // width) * width
