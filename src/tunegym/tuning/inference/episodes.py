"""The episodes of a live experiment, added up in one pass: over steps in windows, and by context.

Memory does not grow with the steps: there are at most ``MOST_WINDOWS`` windows, whose width doubles as steps come.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunegym.tuning.model.head import ParamSpec
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.model.values import labels, number

MOST_WINDOWS = 300
MOST_GROUPS = 12
"""How many lines a plot of contexts has at most."""
PARTS = 4
"""Into how many parts a range, or a long list of numbers, is cut."""
RECENT = 100
"""Over how many episodes a recent mean is taken."""


class Windows:
    """Windows of steps of the same width, from step 1 on, at most ``MOST_WINDOWS``. The width doubles when needed.

    Attributes:
        width: how many steps a window has.
    """

    def __init__(self) -> None:
        self.width = 1
        self._upto = 0
        self._curves: list[WindowedCurve] = []

    def curve(self) -> WindowedCurve:
        """A curve over these windows."""
        made = WindowedCurve(self)
        self._curves.append(made)
        return made

    def reach(self, number: int) -> None:
        """Make room for a step."""
        self._upto = max(self._upto, number)
        while self._upto > MOST_WINDOWS * self.width:
            self.width *= 2
            for curve in self._curves:
                curve.fold()

    def ends(self) -> list[int]:
        """The last step of each window."""
        count = max(1, -(-self._upto // self.width))
        return [min((at + 1) * self.width, self._upto) for at in range(count)]


class WindowedCurve:
    """Values by window: how many, their sum, the lowest and the highest."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._count = np.zeros(MOST_WINDOWS, dtype=np.int64)
        self._sum = np.zeros(MOST_WINDOWS)
        self._low = np.full(MOST_WINDOWS, np.inf)
        self._high = np.full(MOST_WINDOWS, -np.inf)

    def add(self, number: int, value: float) -> None:
        """Take in the value of step ``number``."""
        self.add_all([number], [value])

    def add_all(self, numbers: Sequence[int], values: Sequence[float | None]) -> None:
        """Take in the values of many steps, except those that are not finite."""
        self._windows.reach(max(numbers))
        found = np.array(values, dtype=np.float64)
        finite = np.isfinite(found)
        places, found = ((np.array(numbers) - 1) // self._windows.width)[finite], found[finite]
        np.add.at(self._count, places, 1)
        np.add.at(self._sum, places, found)
        np.minimum.at(self._low, places, found)
        np.maximum.at(self._high, places, found)

    def fold(self) -> None:
        """Merge every two windows into one."""
        half = MOST_WINDOWS // 2
        for array, merge, empty in (
            (self._count, np.add, 0),
            (self._sum, np.add, 0),
            (self._low, np.minimum, np.inf),
            (self._high, np.maximum, -np.inf),
        ):
            array[:half] = merge(array[::2], array[1::2])
            array[half:] = empty

    def sums(self) -> list[float]:
        """The sum of each window."""
        return [float(one) for one in self._sum[: len(self._windows.ends())]]

    def as_dict(self, *, band: bool = False) -> dict[str, Any]:
        """Plain data: ``count`` and ``mean`` of each window, and with ``band`` its ``low`` and ``high``.

        None stands for a window without a value.
        """
        count = self._count[: len(self._windows.ends())]
        columns = {"mean": self._sum / np.maximum(self._count, 1)}
        if band:
            columns |= {"low": self._low, "high": self._high}
        shown = {
            name: [short(float(one)) if many else None for one, many in zip(column, count, strict=False)]
            for name, column in columns.items()
        }
        return {"count": count.tolist(), **shown}


def short(value: float) -> float:
    """A number in as many digits as a plot shows."""
    return float(f"{value:.6g}")


class Pace:
    """Steps per second of each window, from when groups of steps were written."""

    def __init__(self, windows: Windows) -> None:
        self._steps, self._seconds = windows.curve(), windows.curve()
        self._elapsed = 0.0

    def add(self, before: int, upto: int, elapsed_s: float) -> None:
        """Steps after ``before`` and up to ``upto`` are done, ``elapsed_s`` seconds after the experiment began."""
        self._steps.add(max(upto, 1), max(0, upto - before))
        self._seconds.add(max(upto, 1), max(0.0, elapsed_s - self._elapsed))
        self._elapsed = max(self._elapsed, elapsed_s)

    def as_list(self) -> list[float | None]:
        """Plain data; None where nothing is known."""
        both = zip(self._steps.sums(), self._seconds.sums(), strict=True)
        return [short(steps / seconds) if steps and seconds > 0 else None for steps, seconds in both]


# by context -----------------------------------------------------------------------------------------------


@dataclass
class _Group:
    curve: WindowedCurve
    episodes: int = 0
    mean_return: float = 0.0
    mean_length: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, episode: Episode) -> None:
        self.episodes += 1
        self.mean_return += episode.total / self.episodes - self.mean_return / self.episodes
        self.mean_length += (episode.length - self.mean_length) / self.episodes
        self.recent.append(episode.total)
        self.curve.add(episode.last, episode.total)


class ContextGroups:
    """Episodes by groups of contexts.

    Args:
        by: the env_params that count.
        labels: a name for each group.
        place: the group of a context, by position; None if it belongs to none.
        windows: those of the groups' curves.
    """

    def __init__(
        self,
        by: Sequence[str],
        labels: Sequence[str],
        place: Callable[[Mapping[str, Any]], int | None],
        windows: Windows,
    ) -> None:
        self.labels = list(labels)
        self.place = place
        self._by = list(by)
        self._groups = [_Group(windows.curve()) for _ in self.labels]

    def add(self, episode: Episode) -> None:
        """Take in an episode that the server ended."""
        place = self.place(episode.context)
        if place is not None:
            self._groups[place].add(episode)

    def facts(self) -> list[dict[str, Any]]:
        """Each group that had an episode; ``recent_return`` is the mean of its last 100."""
        return [
            {
                "by": self._by,
                "group": label,
                "episodes": group.episodes,
                "mean_return": group.mean_return,
                "recent_return": sum(group.recent) / len(group.recent),
                "recent_over": len(group.recent),
                "mean_length": group.mean_length,
            }
            for label, group in zip(self.labels, self._groups, strict=True)
            if group.episodes
        ]

    def curves(self) -> dict[str, Any]:
        """For a page: a line for each group that had an episode."""
        both = zip(self.labels, self._groups, strict=True)
        lines = [{"label": label, **group.curve.as_dict()} for label, group in both if group.episodes]
        return {"by": ", ".join(self._by), "lines": lines}


def context_groups(env_params: Mapping[str, ParamSpec], windows: Windows) -> list[ContextGroups]:
    """The ways to tell the contexts of an experiment apart, from the env_params in its journal's head.

    Each context is a group where there are few; else one env_param at a time is looked at: its values, or where there
    are many, a few parts of its range. Long lists of names are left out, and so is an env_param that is drawn for each
    step, which says nothing about an episode.
    """
    specs = {name: spec for name, spec in env_params.items() if spec.draw != "step"}
    sizes = [len(spec.values) if spec.values is not None else math.inf for spec in specs.values()]
    if specs and math.prod(sizes) <= MOST_GROUPS:
        return [_by_values(specs, windows)]
    found: list[ContextGroups] = []
    for (name, spec), size in zip(specs.items(), sizes, strict=True):
        if size <= MOST_GROUPS:
            found.append(_by_values({name: spec}, windows))
        elif spec.values is None:
            edges = list(dict.fromkeys(spec.domain.from_unit(part / PARTS) for part in range(PARTS)))
            found.append(_by_edges(name, edges, [*edges[1:], spec.high], windows))
        elif all(isinstance(one, int | float) and not isinstance(one, bool) for one in spec.values):
            ordered = sorted(spec.values)
            cuts = [len(ordered) * part // PARTS for part in range(PARTS + 1)]
            ends = [ordered[at - 1] for at in cuts[1:]]
            found.append(_by_edges(name, [ordered[at] for at in cuts[:-1]], ends, windows))
    return found


def _by_values(specs: Mapping[str, ParamSpec], windows: Windows) -> ContextGroups:
    candidates = {name: spec.values or () for name, spec in specs.items()}
    named = [[f"{name}={label}" for label in labels(values)] for name, values in candidates.items()]
    keys = itertools.product(*[[(type(value), value) for value in values] for values in candidates.values()])
    places: dict[Any, int] = {key: place for place, key in enumerate(keys)}

    def place(context: Mapping[str, Any]) -> int | None:
        return places.get(tuple((type(context.get(name)), context.get(name)) for name in specs))

    return ContextGroups(list(specs), [" ".join(one) for one in itertools.product(*named)], place, windows)


def _by_edges(name: str, edges: Sequence[Any], ends: Sequence[Any], windows: Windows) -> ContextGroups:
    def place(context: Mapping[str, Any]) -> int | None:
        value = context.get(name)
        return max(0, sum(edge <= value for edge in edges) - 1) if isinstance(value, int | float) else None

    names = [f"{name}={number(low)} to {number(high)}" for low, high in zip(edges, ends, strict=True)]
    return ContextGroups([name], names, place, windows)
