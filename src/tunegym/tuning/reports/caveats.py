"""What one should know about a recommended setting before relying on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from functools import cached_property

import orjson

from tunegym.tuning.model.objective import Objective, violation
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, exact_key
from tunegym.tuning.reports.asking import pairs
from tunegym.tuning.reports.best import Setting
from tunegym.tuning.reports.ranking import SHRINK, Cell, Column, gather

_SLACK = 1e-9
"""Means that differ by a smaller share are the same: they were added up in another order."""


def about_limits(setting: Setting, objectives: Sequence[Objective]) -> str | None:
    """That the limits are exceeded, and by which metrics; None if they are kept."""
    if not setting.violation:
        return None
    return f"no measured setting keeps the limits, and this one comes closest{exceeded(setting, objectives)}"


def exceeded(setting: Setting, objectives: Sequence[Objective]) -> str:
    """In brackets the metrics that exceed their limits; empty if none does."""
    means = setting.metrics()
    found = [
        f"{objective.metric} is {means[objective.metric]:.4g}, the limit {objective.limit:.4g}"
        for objective in objectives
        if objective.limit is not None and objective.metric in means and objective.violation(means)
    ]
    return f" ({', '.join(found)})" if found else ""


def about_pareto(settings: Sequence[Setting], where: str | None) -> str | None:
    """That it is one of several on the Pareto set, and ``where`` the others are; None if there are no others."""
    if len(settings) < 2:
        return None
    see = f": see {where}" if where is not None else ""
    return f"one of {len(settings)} settings on the Pareto set, the one with the highest reward{see}"


class Field:
    """A winner among those that it won against, in the contexts that were asked for.

    Args:
        trials: those that count; they are gone over anew with each question.
        winner: the best of them.
        objectives: which metrics have limits.
        metrics: those that the winner is shown with.
    """

    def __init__(
        self, trials: Iterable[Trial], winner: Setting, objectives: Sequence[Objective], metrics: Sequence[str]
    ) -> None:
        self._trials = trials
        self._winner = exact_key(winner.action)
        self._order = list(winner.action)
        self._allowed = winner.violation + _SLACK
        self._objectives = objectives
        self._metrics = list(metrics)
        self._limits = [objective.metric for objective in objectives]
        self._cells = gather(trials, [*metrics, *self._limits])
        self._reward = Column(self._cells, 0)
        self._met: dict[bytes, set[bytes]] = {}
        for (action, context), cell in self._cells.items():
            if cell.measured:
                self._met.setdefault(action, set()).add(context)

    def better_looking(self) -> str | None:
        """The setting with the highest plain mean, if that is not the winner's.

        It is compared in the winner's own contexts, all of which it must have met. Settings that exceed the
        limits by more don't count.
        """
        # Where contexts hardly come again everybody has their own, and the means alone would be a matter of luck.
        fair = self._met[self._winner] if self._reward.usual.recurs else None
        mine = self._mean(self._winner, fair)
        means = {key: self._mean(key, fair) for key in self._met if self._is_rival(key, fair)}
        rival = max(means, key=lambda key: means[key], default=None)
        if rival is None or means[rival] <= mine or math.isclose(means[rival], mine, rel_tol=_SLACK):
            return None
        count = self._samples(rival, fair)
        measured = "but was measured only" if count < self._samples(self._winner, fair) else "and was measured"
        times = "once" if count == 1 else f"{count} times"
        return f"{self._pairs(rival)} looks better ({self._against(rival, fair)}) {measured} {times}"

    def not_everywhere(self) -> str | None:
        """That the winner was not measured in every context, and who was in more of them."""
        contexts = {context for _, context in self._cells}
        met = self._met[self._winner]
        if len(met) == len(contexts) or not self._reward.usual.recurs:
            return None
        told = f"it was measured in {len(met)} of the {len(contexts)} contexts that match"
        wider = [key for key, theirs in self._met.items() if len(theirs) > len(met)]
        if not wider:
            return told
        rival = max(wider, key=lambda key: (len(self._met[key]), -self._violation(key), self._score(key)))
        name, index = self._shown(rival)
        count = self._samples(rival)
        rests_on = f"{name} {self._mean(rival, None, index):.4g} from {count} sample{'' if count == 1 else 's'}"
        return f"{told}, {self._pairs(rival)} in {len(self._met[rival])} of them ({rests_on})"

    # the arithmetic -----------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> list[Column]:
        """Of the metrics with limits."""
        first = 1 + len(self._metrics)
        return [Column(self._cells, first + index) for index in range(len(self._limits))]

    def _is_rival(self, key: bytes, fair: Set[bytes] | None) -> bool:
        if key == self._winner or self._violation(key) > self._allowed:
            return False
        if fair is not None:
            return fair <= self._met[key]
        return self._unshrunk(key) > self._unshrunk(self._winner)

    def _score(self, key: bytes) -> float:
        return self._reward.over_all(key).score

    def _unshrunk(self, key: bytes) -> float:
        count = sum(cell.measured for cell in self._own(key).values())
        return self._score(key) * (count + SHRINK) / count

    def _violation(self, key: bytes) -> float:
        means = [column.over_all(key).mean for column in self._columns]
        return violation(self._objectives, dict(zip(self._limits, means, strict=True)))

    def _own(self, key: bytes, contexts: Set[bytes] | None = None) -> dict[bytes, Cell]:
        met = self._met[key] if contexts is None else self._met[key] & contexts
        return {context: self._cells[key, context] for context in met}

    def _mean(self, key: bytes, contexts: Set[bytes] | None = None, index: int = 0) -> float:
        """As ``Setting.reward`` and ``Setting.metrics`` are weighted, in some contexts or in all."""
        usual, cells = self._reward.usual, self._own(key, contexts)
        weights = {at: usual.share(at) / cell.measured if usual.recurs else 1.0 for at, cell in cells.items()}
        total = math.fsum(weights[at] * cell.totals[index] for at, cell in cells.items())
        return total / math.fsum(weights[at] * cell.measured for at, cell in cells.items())

    def _samples(self, key: bytes, contexts: Set[bytes] | None = None) -> int:
        return sum(
            len(trial.outcome.samples)
            for trial in self._trials
            if isinstance(trial.outcome, Measured)
            and trial.cached_from is None
            and exact_key(trial.action) == key
            and (contexts is None or exact_key(trial.context) in contexts)
        )

    # the words ----------------------------------------------------------------------------------------

    def _shown(self, rival: bytes) -> tuple[str, int]:
        """What to tell of both, and its column: the metric that is the reward or minus it, else the reward."""
        for index, name in enumerate(self._metrics, start=1):
            means = ((self._mean(key, None, index), self._mean(key)) for key in (rival, self._winner))
            if all(math.isclose(abs(metric), abs(reward), rel_tol=_SLACK) for metric, reward in means):
                return name, index
        return "reward", 0

    def _against(self, rival: bytes, contexts: Set[bytes] | None) -> str:
        name, index = self._shown(rival)
        theirs, mine = (self._mean(key, contexts, index) for key in (rival, self._winner))
        digits = next((digits for digits in (4, 6, 9) if f"{theirs:.{digits}g}" != f"{mine:.{digits}g}"), 17)
        return f"{name} {theirs:.{digits}g} against {mine:.{digits}g}"

    def _pairs(self, key: bytes) -> str:
        action: Action = orjson.loads(key)[0]  # an exact key is JSON
        return pairs({name: action[name] for name in self._order})
