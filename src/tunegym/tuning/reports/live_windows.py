"""What a live experiment did over its steps, in as many windows as a plot can show, however many steps there were."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_WINDOWS = 300


@dataclass(frozen=True)
class Windows:
    """Steps from 1 to ``upto``, in at most ``MOST_WINDOWS`` windows of the same width."""

    upto: int

    @property
    def width(self) -> int:
        """How many steps a window has."""
        return max(1, -(-self.upto // MOST_WINDOWS))

    @property
    def count(self) -> int:
        """How many there are."""
        return max(1, -(-self.upto // self.width))

    def of(self, number: int) -> int:
        """The window of a step; of one beyond the last, which a writer adds while we read, the last."""
        return min((number - 1) // self.width, self.count - 1)

    def ends(self) -> list[int]:
        """The last step of each."""
        return [min((at + 1) * self.width, self.upto) for at in range(self.count)]


class Curve:
    """Adds up values by window: how many, their mean, the lowest and the highest."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._many = [0] * windows.count
        self._means = [0.0] * windows.count
        self._low = [math.inf] * windows.count
        self._high = [-math.inf] * windows.count

    def add(self, number: int, value: float) -> None:
        """Take in the value of step ``number``."""
        at = self._windows.of(number)
        many = self._many[at] = self._many[at] + 1
        self._means[at] += value / many - self._means[at] / many  # no sum, which could overflow
        self._low[at] = min(self._low[at], value)
        self._high[at] = max(self._high[at], value)

    def add_all(self, numbers: Sequence[int], values: Sequence[float]) -> None:
        """Take in the values of many steps, for their means only."""
        found = np.array(values, dtype=np.float64)
        places = np.minimum((np.array(numbers) - 1) // self._windows.width, self._windows.count - 1)
        for at in np.unique(places).tolist():
            some = found[places == at]
            some = some[np.isfinite(some)]
            if len(some):
                many = self._many[at] = self._many[at] + len(some)
                share = len(some) / many
                self._means[at] += float(np.mean(some / 2)) * 2 * share - self._means[at] * share

    def as_dict(self, *, band: bool = False) -> dict[str, Any]:
        """Plain data: ``count`` and ``mean`` of each window, and with ``band`` its ``low`` and ``high``.

        None stands for a window without a value.
        """
        told: dict[str, Any] = {"count": self._many, "mean": _shown(self._many, self._means)}
        if band:
            told |= {"low": _shown(self._many, self._low), "high": _shown(self._many, self._high)}
        return told


def _shown(many: Iterable[int], values: Iterable[float]) -> list[float | None]:
    return [short(value) if count else None for count, value in zip(many, values, strict=True)]


def short(value: float) -> float | None:
    """In as many digits as a plot shows; None for what is no number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


class Pace:
    """Steps per second of each window, from when groups of steps were written."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._steps = [0] * windows.count
        self._seconds = [0.0] * windows.count
        self._since = 0.0

    def session(self) -> None:
        """Another driver, whose clock begins at 0."""
        self._since = 0.0

    def add(self, before: int, upto: int, since: float) -> None:
        """Steps after ``before`` and up to ``upto`` are done, ``since`` seconds after the session began."""
        at = self._windows.of(max(upto, 1))
        self._steps[at] += max(0, upto - before)
        self._seconds[at] += max(0.0, since - self._since)
        self._since = max(self._since, since)

    def as_list(self) -> list[float | None]:
        """Plain data; None where nothing is known."""
        pairs = zip(self._steps, self._seconds, strict=True)
        return [short(steps / seconds) if steps and seconds > 0 else None for steps, seconds in pairs]
