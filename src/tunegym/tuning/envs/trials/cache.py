"""The cache of measurements, and the folders of trials that are kept.

The cache is honest: only a measurement under exactly these typed values is served again.
"""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import dataclass
from heapq import heappush, heappushpop
from pathlib import Path

from tunegym.tuning.model.scenario import Keep
from tunegym.tuning.model.trial import Measured, OpenTrial, Trial
from tunegym.tuning.model.values import exact_key


@dataclass(frozen=True, slots=True)
class Hit:
    """A measurement and the number of the trial that made it."""

    number: int
    outcome: Measured


class MeasurementCache:
    """By exact typed action and context, within one fingerprint, in constant time.

    Two equal trials in flight run once: the first to ``lead`` runs, the others wait for its outcome. Only
    measurements are kept; after a failure the next one that waited leads and runs itself.
    """

    def __init__(self) -> None:
        self._hits: dict[bytes, Hit] = {}
        self._waiting: dict[bytes, deque[OpenTrial]] = {}

    @staticmethod
    def key(trial: OpenTrial | Trial) -> bytes:
        """What the cache knows a trial by."""
        return exact_key(trial.action, trial.context)

    def remember(self, trial: Trial) -> None:
        """Take in a trial of an earlier session."""
        if isinstance(trial.outcome, Measured) and trial.cached_from is None:
            self._hits.setdefault(self.key(trial), Hit(trial.number, trial.outcome))

    def find(self, key: bytes) -> Hit | None:
        """The measurement under ``key``, if there is one."""
        return self._hits.get(key)

    def lead(self, key: bytes, trial: OpenTrial) -> bool:
        """True if ``trial`` must run; False if an equal one already does, and ``trial`` now waits for it."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        waiting.append(trial)
        return False

    def settle(self, key: bytes, number: int, outcome: object) -> list[OpenTrial]:
        """The leader's outcome is known. Returns those who waited: all are served after a measurement,
        otherwise the first of them must lead now (``lead`` it again).
        """  # noqa: D205
        waiting = self._waiting.pop(key, deque())
        if isinstance(outcome, Measured):
            self._hits[key] = Hit(number, outcome)
        return list(waiting)


class FolderKeeper:
    """Deletes the folders of closed trials that ``keep`` doesn't cover."""

    def __init__(self, keep: Keep, trials: str) -> None:
        self._keep = keep
        self._trials = trials
        self._best: list[tuple[float, int]] = []

    def closed(self, trial: Trial) -> None:
        """Decide about the folder of a trial that just closed; also one of an earlier session."""
        if self._keep.kind == "all":
            return
        for number in self._dropped(trial):
            folder = Path(f"{self._trials}/{number:06d}")
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)

    def _dropped(self, trial: Trial) -> list[int]:
        number = trial.number
        if self._keep.kind == "failed":
            return [number] if isinstance(trial.outcome, Measured) else []
        if self._keep.kind == "none":
            return [number]
        if not isinstance(trial.outcome, Measured) or trial.cached_from is not None:
            return [number]
        entry = (trial.reward, -number)  # of equals the earlier one stays
        if len(self._best) < self._keep.count:
            heappush(self._best, entry)
            return []
        return [-heappushpop(self._best, entry)[1]]
