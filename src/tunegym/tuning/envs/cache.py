"""The honest cache: what was measured under exactly these values is not measured again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import OpenTrial, Trial
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
