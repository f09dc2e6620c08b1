"""Which settings have worked so far: a policy's last word should be one of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunegym.tuning.model.outcome import Pruned
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, exact_key

MOST_COMPARED = 1000
"""So many settings are compared where the policy's own choice is known to fail."""


@dataclass(slots=True)
class _Setting:
    """One setting, and how its trials ended, in all contexts."""

    action: Action
    element: np.ndarray
    worked: int = 0


class Tried:
    """The settings of closed trials.

    Args:
        between: whether a setting that was never tried may be judged by its nearest neighbour, as in continuous
            spaces. Else it is one that nobody knows to work.
    """

    def __init__(self, *, between: bool) -> None:
        self._between = between
        self._settings: dict[bytes, _Setting] = {}
        self._balance: dict[tuple[bytes, bytes], int] = {}
        self._measured: set[tuple[bytes, bytes]] = set()
        self._places: tuple[list[bytes], np.ndarray] | None = None

    def add(self, trial: Trial, element: Any) -> None:
        """Take in a closed trial; ``element`` is its action in the policy's action space."""
        key = exact_key(trial.action)
        setting = self._settings.get(key)
        if setting is None:
            setting = self._settings[key] = _Setting(trial.action, np.asarray(element))
            self._places = None
        if isinstance(trial.outcome, Pruned):  # it ran, and was ended because it was slow
            return
        setting.worked += trial.measured
        place = exact_key(trial.context), key
        self._balance[place] = self._balance.get(place, 0) + (1 if trial.measured else -1)
        if trial.measured:
            self._measured.add(place)

    def measured(self, context: Context, action: Action) -> bool:
        """Whether a setting was measured in this context before."""
        return (exact_key(context), exact_key(action)) in self._measured

    def works(self, context: Context, action: Action, element: Any) -> bool:
        """Whether a setting can be expected to work there."""
        key = exact_key(action)
        if self._between and key not in self._settings and self._settings:
            key = self._nearest(np.asarray(element))
        setting = self._settings.get(key)
        return setting is not None and self._usable(exact_key(context), key, setting)

    def working(self, context: Context) -> list[tuple[Action, np.ndarray]]:
        """The newest settings that worked, with their elements, without those that failed in this context."""
        here = exact_key(context)
        usable = (
            (one.action, one.element) for key, one in reversed(self._settings.items()) if self._usable(here, key, one)
        )
        return list(itertools.islice(usable, MOST_COMPARED))

    def _usable(self, here: bytes, key: bytes, setting: _Setting) -> bool:
        return setting.worked > 0 and self._balance.get((here, key), 0) >= 0

    def _nearest(self, element: np.ndarray) -> bytes:
        if self._places is None:
            self._places = list(self._settings), np.stack([one.element for one in self._settings.values()])
        keys, elements = self._places
        away = elements - element
        return keys[int(np.argmin((away * away).sum(axis=1)))]
