"""The episodes of a live experiment, added up in one pass: over steps in windows, and by context.

Memory does not grow with the steps: there are at most ``MOST_WINDOWS`` windows, whose width doubles as steps come.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunegym.tuning.answers.contexts import domain
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.model.values import Scalar, labels

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
        self._curves: list[Curve] = []

    def curve(self) -> Curve:
        """A curve over these windows."""
        made = Curve(self)
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


class Curve:
    """Values by window: how many, their mean, the lowest and the highest. Means, not sums, which could overflow."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._bins: list[tuple[int, float, float, float]] = []

    def add(self, number: int, value: float) -> None:
        """Take in the value of step ``number``."""
        self._merge(number, (1, value, value, value))

    def add_all(self, numbers: Sequence[int], values: Sequence[float | None]) -> None:
        """Take in the values of many steps; what is no finite number is passed over."""
        self._windows.reach(max(numbers))
        found = np.array(values, dtype=np.float64)
        places = (np.array(numbers) - 1) // self._windows.width
        for at in np.unique(places).tolist():
            some = found[(places == at) & np.isfinite(found)]
            if len(some):
                mean = float(np.mean(some / 2)) * 2
                one = len(some), mean, float(some.min()), float(some.max())
                self._merge(at * self._windows.width + 1, one)

    def fold(self) -> None:
        """Merge every two windows into one."""
        old = self._bins
        if len(old) % 2:
            old.append(_NOTHING)
        self._bins = [_joined(one, other) for one, other in zip(old[::2], old[1::2], strict=True)]

    def sums(self) -> list[float]:
        """The sum of each window."""
        return [one[0] * one[1] for one in self._whole()]

    def as_dict(self, *, band: bool = False) -> dict[str, Any]:
        """Plain data: ``count`` and ``mean`` of each window, and with ``band`` its ``low`` and ``high``.

        None stands for a window without a value.
        """
        shown = self._whole()
        parts = {"mean": 1, "low": 2, "high": 3} if band else {"mean": 1}
        columns = {name: [short(one[at]) if one[0] else None for one in shown] for name, at in parts.items()}
        return {"count": [one[0] for one in shown], **columns}

    def _merge(self, number: int, one: tuple[int, float, float, float]) -> None:
        self._windows.reach(number)
        at = (number - 1) // self._windows.width
        self._bins += [_NOTHING] * (at + 1 - len(self._bins))
        self._bins[at] = _joined(self._bins[at], one)

    def _whole(self) -> list[tuple[int, float, float, float]]:
        return self._bins + [_NOTHING] * (len(self._windows.ends()) - len(self._bins))


_NOTHING = (0, 0.0, math.inf, -math.inf)


def _joined(
    one: tuple[int, float, float, float], other: tuple[int, float, float, float]
) -> tuple[int, float, float, float]:
    count = one[0] + other[0]
    if not count:
        return _NOTHING
    mean = one[1] * (one[0] / count) + other[1] * (other[0] / count)
    return count, mean, min(one[2], other[2]), max(one[3], other[3])


def short(value: float) -> float | None:
    """A number in as many digits as a plot shows; None for what is no number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


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


@dataclass(frozen=True)
class Grouping:
    """One way to tell contexts apart.

    Attributes:
        by: the env_params that count.
        labels: a name for each group.
        place: the group of a context; None if it belongs to none.
    """

    by: tuple[str, ...]
    labels: tuple[str, ...]
    place: Callable[[Mapping[str, Any]], int | None]


def groupings(env_params: Mapping[str, Mapping[str, Any]]) -> list[Grouping]:
    """How the contexts of an experiment are told apart, from the env_params in its journal's head.

    Each context is a group where there are few; else one env_param at a time is looked at. One that is drawn for each
    step says nothing about an episode, and is left out.
    """
    specs = {name: spec for name, spec in env_params.items() if spec.get("draw") != "step"}
    lists = [spec["values"] for spec in specs.values() if "values" in spec]
    if specs and len(lists) == len(specs) and math.prod(len(one) for one in lists) <= MOST_GROUPS:
        return [_whole(specs)]
    return [
        _by_values(name, spec["values"]) if "values" in spec else _by_range(name, spec) for name, spec in specs.items()
    ]


def _whole(specs: Mapping[str, Mapping[str, Any]]) -> Grouping:
    named = [[f"{name}={label}" for label in labels(spec["values"])] for name, spec in specs.items()]
    keys = itertools.product(*[[_key(value) for value in spec["values"]] for spec in specs.values()])
    places = {key: place for place, key in enumerate(keys)}
    names = tuple(specs)
    return Grouping(
        names,
        tuple(" ".join(one) for one in itertools.product(*named)),
        lambda context: places.get(tuple(_key(context.get(name)) for name in names)),
    )


def _by_values(name: str, values: Sequence[Any]) -> Grouping:
    if len(values) <= MOST_GROUPS:
        return _whole({name: {"values": values}})
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        ordered = sorted(values)
        cuts = [len(ordered) * part // PARTS for part in range(PARTS + 1)]
        return _by_edges(name, [ordered[at] for at in cuts[:-1]], [ordered[at - 1] for at in cuts[1:]])
    other = MOST_GROUPS - 1
    places = {_key(value): place for place, value in enumerate(values[:other])}
    names = [f"{name}={label}" for label in labels(values)[:other]]
    names.append(f"{name}: any of {len(values) - other} others")
    return Grouping((name,), tuple(names), lambda context: places.get(_key(context.get(name)), other))


def _by_range(name: str, spec: Mapping[str, Any]) -> Grouping:
    knob = domain(spec)
    edges: list[Any] = list(dict.fromkeys(knob.from_unit(part / PARTS) for part in range(PARTS)))
    return _by_edges(name, edges, [*edges[1:], spec["high"]])


def _by_edges(name: str, edges: Sequence[Any], ends: Iterable[Any]) -> Grouping:
    def place(context: Mapping[str, Any]) -> int | None:
        value = context.get(name)
        return max(0, sum(edge <= value for edge in edges) - 1) if isinstance(value, int | float) else None

    names = tuple(f"{name}={low:.4g} to {high:.4g}" for low, high in zip(edges, ends, strict=True))
    return Grouping((name,), names, place)


def _key(value: Scalar | None) -> tuple[type, Any]:
    """1, 1.0 and True are different."""
    return type(value), value


@dataclass
class _Group:
    curve: Curve
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


class GroupedEpisodes:
    """Episodes added up in one grouping."""

    def __init__(self, grouping: Grouping, windows: Windows) -> None:
        self._grouping = grouping
        self._groups = [_Group(windows.curve()) for _ in grouping.labels]

    def add(self, episode: Episode) -> None:
        """Take in an episode that the server ended."""
        place = self._grouping.place(episode.context)
        if place is not None:
            self._groups[place].add(episode)

    def facts(self) -> list[dict[str, Any]]:
        """Each group that had an episode; ``recent_return`` is the mean of its last 100."""
        return [
            {
                "by": list(self._grouping.by),
                "group": label,
                "episodes": group.episodes,
                "mean_return": group.mean_return,
                "recent_return": sum(group.recent) / len(group.recent),
                "recent_over": len(group.recent),
                "mean_length": group.mean_length,
            }
            for label, group in zip(self._grouping.labels, self._groups, strict=True)
            if group.episodes
        ]

    def curves(self) -> dict[str, Any]:
        """For a page: a line for each group that had an episode."""
        both = zip(self._grouping.labels, self._groups, strict=True)
        lines = [{"label": label, **group.curve.as_dict()} for label, group in both if group.episodes]
        return {"by": ", ".join(self._grouping.by), "lines": lines}
