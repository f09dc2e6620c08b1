"""Which trials count in a context that a user asks about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tunegym.tuning.model.space import Knob, Range
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Context
from tunegym.tuning.reports.asking import domain, matches, pairs
from tunegym.tuning.reports.results import ExperimentResults

NEAR_SHARE = 0.25
NEAR_LEAST = 10
"""Of a range's draws, the nearest quarter is near, and at least this many measured ones."""


@dataclass(frozen=True)
class Within(ExperimentResults):
    """The trials of an experiment that count in a context.

    Attributes:
        counts: whether a trial does.
        near: which draws these are, where the context has a value of a range; None where it is the context itself.
    """

    counts: Callable[[Trial], bool]
    near: str | None = None

    def __iter__(self) -> Iterator[Trial]:
        return (trial for trial in super().__iter__() if self.counts(trial))


def trials_at(results: ExperimentResults, wanted: Context) -> Within:
    """The trials where the context is as wanted, of a range's draws the nearest ones."""
    ranges = {name: knob for name, knob in domains_of(results).items() if name in wanted and isinstance(knob, Range)}
    exact = {name: value for name, value in wanted.items() if name not in ranges}

    def counts(trial: Trial) -> bool:
        return matches(trial.context, exact)

    away = distance(ranges, wanted)
    near = sorted(away(trial.context) for trial in results if _own(trial) and counts(trial)) if ranges else []
    if not near:
        return Within(results.name, results.folder, counts)
    taken = max(math.ceil(NEAR_SHARE * len(near)), min(NEAR_LEAST, len(near)))
    reach = near[taken - 1]
    taken = sum(one <= reach for one in near)
    return Within(
        results.name,
        results.folder,
        lambda trial: counts(trial) and away(trial.context) <= reach,
        f"the {taken} of {len(near)} measured draws that are nearest to {pairs(wanted)}",
    )


def domains_of(results: ExperimentResults) -> dict[str, Knob]:
    """What the environment draws from, by env_param."""
    head = results.journal.head or {"env_params": {}}
    return {name: domain(spec) for name, spec in head["env_params"].items()}


def distance(ranges: Mapping[str, Range], wanted: Context) -> Callable[[Context], float]:
    """How far a context is from the wanted one, each range as wide as 1 on its own scale."""
    target = {name: knob.position(float(wanted[name])) for name, knob in ranges.items()}

    def away(context: Context) -> float:
        return math.hypot(*(knob.position(float(context[name])) - target[name] for name, knob in ranges.items()))

    return away


def _own(trial: Trial) -> bool:
    return trial.measured and trial.cached_from is None
