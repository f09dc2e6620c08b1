"""What was tried, added up in one pass over the trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunegym.tuning.model.objective import Objective, violation
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Metrics, exact_key
from tunegym.tuning.reports.timing import Cost

EVERYWHERE = b""
"""Stands for all contexts together; one of them goes by its exact key."""

Key: TypeAlias = tuple[bytes, bytes]
"""An action and a context, or ``EVERYWHERE``."""


def kind_of_reason(trial: Trial) -> str:
    """Why a trial was not measured, without what differs from trial to trial: a constraint's or a pruner's values."""
    if trial.status == "pruned":
        return "what it reported was hopeless"
    return trial.reason.rsplit(" (", 1)[0] if trial.status == "infeasible" else trial.reason


@dataclass(slots=True)
class Tried:
    """A setting's own measurements, added up: how many, the reward, then each metric that has a limit."""

    count: int = 0
    totals: list[float] = field(default_factory=list)

    @property
    def reward(self) -> float:
        """The plain mean."""
        return self.totals[0] / self.count

    def violation(self, limits: Sequence[Objective]) -> float:
        """By how much the mean metrics exceed the limits that were added up."""
        means = (total / self.count for total in self.totals[1:])
        return violation(limits, dict(zip((limit.metric for limit in limits), means, strict=True)))

    def add(self, values: Sequence[float]) -> None:
        """Count one trial: its reward, then the metrics."""
        self.count += 1
        self.totals = [a + b for a, b in zip(self.totals, values, strict=True)] if self.totals else list(values)


@dataclass(slots=True)
class Watched(Tried):
    """As ``Tried``, with every reward. ``exceeded`` says whether a trial exceeded a limit, whatever the means do."""

    rewards: list[float] = field(default_factory=list)
    exceeded: bool = False


class Pass:
    """What one pass over the trials adds up.

    Args:
        watched: the settings of which every reward is kept.
        objectives: those with a limit are looked at.
    """

    def __init__(self, watched: Iterable[Key], objectives: Sequence[Objective]) -> None:
        self.limits = tuple(objective for objective in objectives if objective.limit is not None)
        self.watched = {key: Watched() for key in watched}
        self.tried: dict[bytes, Tried] = {}
        self.statuses: Counter[str] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.drawn: Counter[bytes] = Counter()
        self.cost = Cost()
        self.cached = 0

    def add(self, trial: Trial) -> None:
        """Take in a closed trial."""
        self.statuses[trial.status] += 1
        self.cost.add(trial)
        context = exact_key(trial.context)
        self.drawn[context] += 1
        if not trial.measured:
            self.reasons[trial.status, kind_of_reason(trial)] += 1
        elif trial.cached_from is not None:
            self.cached += 1
        else:
            self._add_measured(trial, context)

    def _add_measured(self, trial: Trial, context: bytes) -> None:
        action = exact_key(trial.action)
        found: Metrics = trial.metrics if self.limits else {}
        values = [trial.reward, *(found.get(limit.metric, 0.0) for limit in self.limits)]
        self.tried.setdefault(action, Tried()).add(values)
        for key in ((action, EVERYWHERE), (action, context)):
            one = self.watched.get(key)
            if one is not None:
                one.add(values)
                one.rewards.append(trial.reward)
                one.exceeded |= any(limit.violation(found) > 0 for limit in self.limits if limit.metric in found)
