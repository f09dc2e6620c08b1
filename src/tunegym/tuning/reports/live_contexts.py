"""Episodes by context: each by itself where there are few, else by one env_param at a time."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.tuning.model.episode import Episode
from tunegym.tuning.model.values import Scalar
from tunegym.tuning.reports.asking import domain
from tunegym.tuning.reports.columns import labels
from tunegym.tuning.reports.live_windows import Curve, Windows
from tunegym.tuning.stores.reader import RECENT

MOST_GROUPS = 12
"""How many lines a plot of contexts has at most."""
PARTS = 4
"""In how many parts a range, or a long list of numbers, is told."""


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
    """How the contexts of an experiment are told apart, from what its journal's head says of its env_params.

    One that is drawn for each step tells nothing about an episode, and is left out.
    """
    specs = {name: spec for name, spec in env_params.items() if spec.get("draw") != "step"}
    lists = [spec["values"] for spec in specs.values() if "values" in spec]
    if specs and len(lists) == len(specs) and math.prod(len(one) for one in lists) <= MOST_GROUPS:
        return [_whole(specs)]
    return [_by_values(name, spec) if "values" in spec else _by_range(name, spec) for name, spec in specs.items()]


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


def _by_values(name: str, spec: Mapping[str, Any]) -> Grouping:
    values = spec["values"]
    shown = labels(values)
    if len(values) > MOST_GROUPS and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        ordered = sorted(values)
        edges = [ordered[len(ordered) * part // PARTS] for part in range(PARTS)]
        ends = [*(ordered[len(ordered) * part // PARTS - 1] for part in range(1, PARTS)), ordered[-1]]
        told = tuple(f"{name}={low:.4g} to {high:.4g}" for low, high in zip(edges, ends, strict=True))
        return Grouping((name,), told, lambda context: _part(edges, context.get(name)))
    kept = values[: MOST_GROUPS - 1] if len(values) > MOST_GROUPS else values
    places = {_key(value): place for place, value in enumerate(kept)}
    other = len(kept) if len(values) > len(kept) else None
    told = [f"{name}={label}" for label in shown[: len(kept)]]
    if other is not None:
        told.append(f"{name}: any of {len(values) - len(kept)} others")
    return Grouping((name,), tuple(told), lambda context: places.get(_key(context.get(name)), other))


def _by_range(name: str, spec: Mapping[str, Any]) -> Grouping:
    knob = domain(spec)
    edges: list[Any] = [knob.from_unit(part / PARTS) for part in range(PARTS)]
    edges = list(dict.fromkeys(edges))
    ends = [*edges[1:], spec["high"]]
    told = tuple(f"{name}={low:.4g} to {high:.4g}" for low, high in zip(edges, ends, strict=True))
    return Grouping((name,), told, lambda context: _part(edges, context.get(name)))


def _part(edges: list[Any], value: Any) -> int | None:
    if not isinstance(value, int | float):
        return None
    return max(0, sum(edge <= value for edge in edges) - 1)


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


class Grouped:
    """Adds up episodes in one grouping."""

    def __init__(self, grouping: Grouping, windows: Windows) -> None:
        self._grouping = grouping
        self._groups = [_Group(Curve(windows)) for _ in grouping.labels]

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
        pairs = zip(self._grouping.labels, self._groups, strict=True)
        lines = [{"label": label, **group.curve.as_dict()} for label, group in pairs if group.episodes]
        return {"by": ", ".join(self._grouping.by), "lines": lines}
