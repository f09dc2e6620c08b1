"""What samples say of each setting: by how much it is better, whether it is as good, how often it failed."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from statistics import fmean, median
from typing import Any

from tunegym.tuning.answers.contexts import OverContexts, domain, domains_of, params_of, trials_at
from tunegym.tuning.answers.intervals import SLACK, Estimate, Spread, combined, pooled
from tunegym.tuning.answers.ranking import LARGEST
from tunegym.tuning.answers.surface import MOST, Surface, scaled
from tunegym.tuning.model.scenario import Objective, violation
from tunegym.tuning.model.trial import Cancelled, Trial
from tunegym.tuning.model.values import Context, exact_key

FREEDOM = 2
"""Degrees of freedom from which on fresh samples alone say how they spread."""
CONFIDENCE = 0.95
"""Of every interval."""
SAME = 0.01
"""Settings that differ by less than this share are as good as each other."""


class Samples:
    """The confirmation trials since the last search trial, by setting and context; not ``confirmed``: the others.

    Attributes:
        contexts: the represented ones with their weights, by key.
        baseline: its key; None without one.
        values: the action or context of a key.
    """

    def __init__(self, head: Mapping[str, Any], trials: Sequence[Trial], confirmed: bool = True) -> None:
        self.head, self._confirmed = head, confirmed
        self.objectives = [Objective(**document) for document in head.get("objectives", ())]
        self._is_limited = any(objective.limit is not None for objective in self.objectives)
        self.confidence = CONFIDENCE
        self.values: dict[bytes, Mapping[str, Any]] = {}
        self.contexts = {self.key(context): weight for context, weight in params_of(head).represented()}
        self._over = OverContexts.of(head)
        self.baseline = self.key(head["baseline"]) if head.get("baseline") else None
        last = max((trial.number for trial in trials if trial.phase == "search"), default=0)
        self.earlier = [trial for trial in trials if trial.phase != "confirm"]
        self._typical: dict[tuple[bytes, str | None], float] = {}
        self._cells: dict[tuple[bytes, bytes], list[Trial]] = {}
        for trial in sorted(trials, key=lambda trial: trial.number):
            counts = trial.number > last if trial.phase == "confirm" else trial.cached_from is None
            if (trial.phase == "confirm") is confirmed and counts and trial.status != Cancelled.status:
                self._cells.setdefault((self.key(trial.action), self.key(trial.context)), []).append(trial)

    def key(self, values: Mapping[str, Any]) -> bytes:
        """The key of an action or a context."""
        found = exact_key(values)
        self.values.setdefault(found, values)
        return found

    def trials(self, action: bytes, context: bytes) -> list[Trial]:
        """Those of one setting in one context, by block."""
        return self._cells.get((action, context), [])

    def rewards(self, action: bytes, context: bytes, first: int = 0) -> list[float]:
        """The measured rewards, from a block on."""
        return values_of(self.trials(action, context)[first:], None)

    def failed(self, action: bytes, context: bytes | None = None) -> int:
        """How many trials of a setting gave no measurement, in one context or in all."""
        places = self.contexts if context is None else [context]
        return sum(not trial.measured for place in places for trial in self.trials(action, place))

    def settings(self, context: bytes | None) -> list[bytes]:
        """The settings with trials in a context, or in all of them."""
        needed = self.contexts if context is None else [context]
        return [one for one in dict.fromkeys(a for a, _ in self._cells) if all((one, p) in self._cells for p in needed)]

    def is_measured(self, action: bytes, context: bytes | None) -> bool:
        """Whether a setting has a measurement in a context, or in any."""
        return any(self.rewards(action, place) for place in (self.places(action) if context is None else [context]))

    def places(self, action: bytes) -> list[bytes]:
        """The contexts in which a setting has trials."""
        return [place for one, place in self._cells if one == action]

    def upto(self, counts: Mapping[tuple[bytes, bytes], int]) -> Samples:
        """Only so many of each setting in each context."""
        found = copy(self)
        found.__dict__.pop("surface", None)
        found._cells = {cell: self._cells[cell][:count] for cell, count in counts.items() if cell in self._cells}
        return found

    def restrict(self, contexts: Iterable[bytes]) -> None:
        """Look at some contexts only; all count alike if one of them isn't represented."""
        some = {place: self.contexts.get(place, 0.0) for place in contexts}
        total = math.fsum(some.values()) if all(some.values()) else 0.0
        self.contexts = {place: weight / total if total else 1 / len(some) for place, weight in some.items()}

    def narrow(self, wanted: Context) -> str | None:
        """Look only at trials in a context, which may be part of one; of a range at the nearest: which these are."""
        found, near = trials_at([one for some in self._cells.values() for one in some], wanted, domains_of(self.head))
        self._cells = {}
        for trial in found:
            place = self.key(trial.context if near is None else wanted)
            self._cells.setdefault((self.key(trial.action), place), []).append(trial)
        self.restrict(dict.fromkeys(place for _, place in self._cells))
        return near

    def pool(self, metric: str | None, place: bytes | None = None) -> Spread:
        """The spread of a metric, or of the reward (None), pooled over settings and contexts, or in one context.

        Noise may differ between contexts: all of them count only where next to nothing is known of one.
        The noise check's setting may spread in another way: it counts only where there is next to nothing else. Where
        all of that is the same, the search must have seen the same, too, for the metric to be deterministic.
        """
        fresh = [values_of(trials, metric) for (_, where), trials in self._cells.items() if place in (None, where)]
        found = pooled(fresh)
        if place is not None:
            return found if found.freedom >= FREEDOM and found.variance > SLACK**2 else self.pool(metric)
        if not self._confirmed or (found.freedom >= FREEDOM and found.variance > SLACK**2):
            return found
        seen = {cell: list(trials) for cell, trials in self._cells.items()}
        noise: dict[tuple[bytes, bytes], list[Trial]] = {}
        for trial in self.earlier:
            cell = exact_key(trial.action), exact_key(trial.context)
            if trial.phase in ("baseline", "noise"):
                noise.setdefault(cell, []).append(trial)
            elif cell in seen and trial.cached_from is None:
                seen[cell].append(trial)
        checked = [values_of(trials, metric) for trials in noise.values()]
        if pooled(checked).variance > SLACK**2:
            return pooled([*fresh, *checked])
        whole = [values_of(trials, metric) for trials in seen.values()]
        return found if (found := pooled(whole)).variance > SLACK**2 and found.freedom else pooled([*whole, *checked])

    @cached_property
    def surface(self) -> Surface:
        """What all measurements say of every setting: search and confirmation."""
        found = {cell: list(values) for cell, values in self._before.items()}
        for cell in self._cells if self._confirmed else ():
            found.setdefault(cell, []).extend(self.rewards(*cell))
        places = {cell: (self.values[cell[0]], self.values[cell[1]]) for cell, values in found.items() if values}
        return Surface(self.head, [(place, found[cell]) for cell, place in places.items()], self.pool(None))

    @cached_property
    def _before(self) -> dict[tuple[bytes, bytes], list[float]]:
        """The rewards before the confirmation by setting and context; of very many the best ones in each context."""
        found: dict[tuple[bytes, bytes], list[float]] = {}
        for trial in self.earlier:
            if trial.measured and trial.cached_from is None:
                found.setdefault((self.key(trial.action), self.key(trial.context)), []).append(reward_of(trial))
        if len(found) <= MOST:
            return found
        groups: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for cell in sorted(found, key=lambda cell: -fmean(found[cell])):
            groups.setdefault(cell[1] if cell[1] in self.contexts else b"", []).append(cell)
        return {cell: found[cell] for group in groups.values() for cell in group[: MOST // len(groups)]}

    def typical(self, context: bytes, metric: str | None = None) -> float:
        """The median of the search in a context, of a range near it; NaN where it never came."""
        if (context, metric) not in self._typical:
            searched = [trial for trial in self.earlier if trial.phase == "search" and trial.cached_from is None]
            there = trials_at(searched, self.values[context], domains_of(self.head))[0]
            values = values_of(there, metric)
            self._typical[context, metric] = median(values) if values else math.nan
        return self._typical[context, metric]

    @cached_property
    def _searched(self) -> dict[bytes, dict[bytes, list[Trial]]]:
        """The trials before the confirmation, by setting and context."""
        found: dict[bytes, dict[bytes, list[Trial]]] = {}
        for trial in self.earlier:
            if trial.status != Cancelled.status:
                found.setdefault(exact_key(trial.action), {}).setdefault(exact_key(trial.context), []).append(trial)
        return found

    def breaks(self, action: bytes, context: bytes | None) -> bool:
        """Whether a setting was tried in a context (None: in any) before the confirmation, and failed each time."""
        groups = self._searched.get(action, {})
        some = groups.values() if context is None else [groups[context]] if context in groups else []
        return any(not any(trial.measured for trial in trials) for trials in some)

    def failed_before(self, action: bytes, context: bytes | None) -> int:
        """How many trials of a setting failed in a context (None: in any) before the confirmation."""
        some = self._searched.get(action, {}).items()
        return sum(
            one.status in ("failed", "timed_out") for at, found in some if context in (None, at) for one in found
        )

    def was_measured(self, action: bytes, context: bytes) -> bool:
        """Whether the search measured a setting in a context."""
        return (action, context) in self._before

    def advantage(self, action: bytes, other: bytes, context: bytes | None) -> Estimate | None:
        """How much better a setting is than another, where any of them works; None if one was not measured there."""
        places = [one for one in self.contexts if self.rewards(action, one) or self.rewards(other, one)]
        places = [context] if context is not None else places
        pairs = [(self.rewards(action, place), self.rewards(other, place)) for place in places]
        if not pairs or not all(mine and theirs for mine, theirs in pairs):
            return None
        spreads = [self.pool(None, place) for place in places]
        parts = [one.difference(mine, theirs) for one, (mine, theirs) in zip(spreads, pairs, strict=True)]
        return combined(list(zip(self.weights([part.mean for part in parts], places), parts, strict=True)))

    def weights(self, advantages: Sequence[float], places: Sequence[bytes]) -> list[float]:
        """How much each context counts in a mean over all: by its draws, and of these only the worst ones if asked."""
        return self._over.parts([self.contexts.get(place, 1 / len(places)) for place in places], advantages)

    def scores(self, actions: Sequence[bytes], context: bytes | None) -> dict[bytes, tuple[float, float]]:
        """The ranks of settings, the largest is the best: limits first, then the advantage on the surface.

        That is over the baseline, else over what is typical.
        """
        places = list(self.contexts) if context is None else [context]
        cells = [(self.values[action], self.values[place]) for action in actions for place in places]
        found = iter(self.surface.at(cells) if cells else ())
        base = [(self.values[self.baseline], self.values[place]) for place in places] if self.baseline else []
        zeros = self.surface.at(base) if base and cells else [0.0] * len(places)
        known = [abs(self.typical(place)) if self.surface.relative else 1.0 for place in places]
        usual = median([one for one in known if one > 0] or [1.0])
        scales = [one if one > 0 else usual for one in known]
        ranks: dict[bytes, tuple[float, float]] = {}
        for action in actions:
            gaps = [(next(found) - zero) * scale for zero, scale in zip(zeros, scales, strict=True)]
            whole = math.fsum(map(operator.mul, self.weights(gaps, places), gaps))
            ranks[action] = -self.violation(action, context), whole
        return ranks

    def violation(self, action: bytes, context: bytes | None, first: int = 0) -> float:
        """By how much a setting's means exceed the limits, from a block on: by its samples, else by the search's."""
        if not self._is_limited:
            return 0.0
        places = self.contexts if context is None else [context]
        groups = [self.trials(action, place)[first:] for place in places]
        if not any(trial.measured for group in groups for trial in group):
            groups = list(self._searched.get(action, {}).values())
        found = [self._excess(group) for group in groups if any(trial.measured for trial in group)]
        return fmean(found) if found else math.inf

    def _excess(self, trials: Sequence[Trial]) -> float:
        values = {one.metric: values_of(trials, one.metric) for one in self.objectives}
        known = [one for one in self.objectives if values[one.metric]]
        return violation(known, {one.metric: fmean(values[one.metric]) for one in known})

    def is_better(self, action: bytes, other: bytes, context: bytes | None, comparisons: int = 1) -> bool:
        """Whether a setting is better than another for sure."""
        found = self.advantage(action, other, context)
        return found is not None and found.interval(self.confidence, comparisons).low > 0

    def is_same(self, action: bytes, other: bytes, context: bytes | None) -> bool:
        """Whether two settings differ by next to nothing for sure."""
        found = self.advantage(action, other, context)
        if found is None:
            return False
        bounds, places = found.interval(self.confidence), self.contexts if context is None else [context]
        size = max(abs(fmean(self.rewards(action, place))) for place in places)
        return max(abs(bounds.low), abs(bounds.high)) <= SAME * size

    def changes(self, action: bytes) -> tuple[float, float]:
        """How far a setting is from the baseline: changed knobs, then the distance on their scales."""
        if self.baseline is None:
            return 0.0, 0.0
        one, two = self.values[action], self.values[self.baseline]
        changed = [name for name in one if exact_key({"": one[name]}) != exact_key({"": two.get(name)})]
        return len(changed), math.fsum(
            abs(operator.sub(*scaled(domain(self.head["knobs"][name]), (one[name], two[name])).tolist()))
            for name in changed
        )

    def choose(self, actions: Iterable[bytes], context: bytes | None) -> bytes:
        """The best setting, without failures if there is one; of a tie the one that is nearest to the baseline."""
        some = list(actions)
        whole = [action for action in some if not self.failed(action, context)] or some
        scores = self.scores(whole, context)
        best = max(whole, key=lambda action: scores[action])
        if self.baseline is None:
            return best
        ties = [one for one in whole if scores[one][0] >= scores[best][0] and not self.is_better(best, one, context)]
        return min([best, *ties], key=self.changes)


def reward_of(trial: Trial) -> float:
    """A trial's reward, small enough to add up."""
    return min(max(trial.reward, -LARGEST), LARGEST)


def values_of(trials: Iterable[Trial], metric: str | None) -> list[float]:
    """The measured values of a metric, or of the reward (None)."""
    if metric is None:
        return [reward_of(trial) for trial in trials if trial.measured]
    return [trial.metrics[metric] for trial in trials if metric in trial.metrics]
