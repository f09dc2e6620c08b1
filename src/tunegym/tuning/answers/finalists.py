"""The confirmation: which settings are measured again after a search, in which order, and when that is enough.

The best observed value of a search flatters itself, so a part of the budget is kept for fresh samples. They come in
*blocks*: every setting that is still in the race once in each context, in random order, so that whatever changes in
time hits all of them alike. After every second block the worse half of each race is dropped (sequential halving:
Karnin, Koren and Somekh, 2013). There is a race in each context, and with several contexts one over all of them. Once
each race has its winner, the remaining blocks measure the winners and the baseline alone, and only these blocks are
reported: the samples that chose a setting flatter it, later ones don't.

Everything follows from the journal: the k-th confirmation trial of a setting in a context belongs to its k-th block.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from tunegym.core.randomness import unit
from tunegym.tuning.answers.contexts import domain, domains_of, represented
from tunegym.tuning.answers.intervals import SLACK, Estimate, Spread, combined, pooled, relative_spread
from tunegym.tuning.answers.ranking import LARGEST, Measurements, best_among
from tunegym.tuning.answers.surface import MOST, Surface
from tunegym.tuning.model.scenario import Objective, violation
from tunegym.tuning.model.space import Range
from tunegym.tuning.model.trial import Cancelled, Trial
from tunegym.tuning.model.values import Action, Context, exact_key

if TYPE_CHECKING:
    from tunegym.tuning.answers.answer import RewardMetric
    from tunegym.tuning.answers.recommendation import PolicyTable
    from tunegym.tuning.model.scenario import Confirm

SHARE = 4.0
"""The reserve is this many times the relative spread of three samples, which may well show half of the true one.

Twice that with a baseline, which takes its place in every block.
"""
LEAST = 6
"""Fresh samples that a reserve has for each setting that must be measured, if the metric is noisy."""
MOST_EACH = 60
"""Trials in each context, twice that with a baseline, after which more tell little, however large the budget is."""
SMALL = 0.03
"""The share that a deterministic metric takes, if that is enough for a sample in every context."""
ENOUGH = 8
"""Reported blocks after which the confirmation ends if a race ended early."""
AGREE = 3
"""Blocks that must agree with the search to the last digit for a metric to be deterministic."""
RUNG = 2
"""Blocks after which the worse half is dropped; one with several contexts, which inform each other."""
RACE = 0.4
"""The share of the reserve that races may use; the rest is for the report."""
FREEDOM = 2
"""Degrees of freedom from which on fresh samples alone say how they spread."""
SAME = 0.01
"""Settings that differ by less than this share are as good as each other."""

CLEAR, TIED, USED = "one setting is clearly best", "the rest can't be told apart", "the reserve is used up"


def reserve(
    noise: Sequence[Trial],
    budget: int,
    confirm: Mapping[str, Any] | Confirm,
    contexts: int,
    baseline: bool,
    metric: RewardMetric | None,
) -> int:
    """How many of ``budget`` trials to keep for the confirmation; 0 if it can't measure even one setting everywhere.

    Args:
        noise: samples of one setting in one context.
        budget: the trials of the whole experiment.
        confirm: the settings; ``share`` is the upper bound.
        contexts: how many contexts are represented.
        baseline: whether there is one to measure beside the finalists.
        metric: which metric the reward is, if it is one.
    """
    share = confirm["share"] if isinstance(confirm, Mapping) else confirm.share
    each = 2 if baseline else 1
    most, block = int(share * budget), contexts * each
    values = [trial.metrics[metric.name] if metric else trial.reward for trial in noise if trial.measured]
    spread = relative_spread(values) if len(values) > 1 else math.inf
    room = block + (contexts if contexts > 1 else 0)  # each context may have its own winner
    wanted = max(room, min(AGREE * room, math.ceil(SMALL * budget)))
    if spread:
        wanted = max(LEAST * block, math.ceil(min(SHARE * each * spread, share) * budget))
    return 0 if most < block else min(wanted, most, MOST_EACH * block)


class FreshSamples:
    """The confirmation trials since the last search trial, by setting and context; and what they say.

    Not ``confirmed``: the trials before them instead.

    Attributes:
        contexts: the represented ones with their weights, by key.
        baseline: its key; None without one.
        values: the action or context of a key.
    """

    def __init__(self, head: Mapping[str, Any], trials: Sequence[Trial], confirmed: bool = True) -> None:
        self.head, self._confirmed = head, confirmed
        self.objectives = [Objective(**document) for document in head.get("objectives", ())]
        self._is_limited = any(objective.limit is not None for objective in self.objectives)
        self.confidence: float = head.get("confirm", {}).get("confidence", 0.95)
        self.values: dict[bytes, Mapping[str, Any]] = {}
        self.contexts = {self.key(context): weight for context, weight in represented(head)}
        self.baseline = self.key(head["baseline"]) if head.get("baseline") else None
        last = max((trial.number for trial in trials if trial.phase == "search"), default=0)
        self.earlier = [trial for trial in trials if trial.phase != "confirm"]
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

    @property
    def rung(self) -> int:
        """The blocks of a race between two decisions."""
        return RUNG if len(self.contexts) == 1 else 1

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self._cells.values()))

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
        found = dict.fromkeys(action for action, place in self._cells if context in (None, place))
        return [
            action for action in found if context is not None or all((action, c) in self._cells for c in self.contexts)
        ]

    def upto(self, counts: Mapping[tuple[bytes, bytes], int]) -> FreshSamples:
        """Only so many of each setting in each context."""
        found = copy(self)
        for name in ("spread", "surface"):
            found.__dict__.pop(name, None)
        found._cells = {cell: self._cells[cell][:count] for cell, count in counts.items() if cell in self._cells}
        return found

    @cached_property
    def spread(self) -> Spread:
        """The spread of rewards, see ``pool``."""
        return self.pool(None)

    def restrict(self, contexts: Iterable[bytes]) -> None:
        """Look at some contexts only."""
        total = math.fsum(self.contexts[place] for place in contexts)
        self.contexts = {place: self.contexts[place] / total for place in contexts}

    def pool(self, metric: str | None) -> Spread:
        """The spread of a metric, or of the reward (None), pooled over settings and contexts.

        The noise check's setting may spread in another way: it counts only where there is next to nothing else. Where
        all of that is the same, the search must have seen the same, too, for the metric to be deterministic.
        """
        fresh = [values_of(trials, metric) for trials in self._cells.values()]
        found = pooled(fresh)
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
        for cell in self._cells:
            found.setdefault(cell, []).extend(self.rewards(*cell))
        places = {cell: (self.values[cell[0]], self.values[cell[1]]) for cell, values in found.items() if values}
        return Surface(self.head, [(place, found[cell]) for cell, place in places.items()], self.spread)

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

    def typical(self, context: bytes) -> float:
        """The median reward of the search in a context; over all where it never came."""
        found = self._typical
        return found.get(context, found[b""])

    @cached_property
    def _typical(self) -> dict[bytes, float]:
        found: dict[bytes, list[float]] = {b"": []}
        for trial in self.earlier:
            if trial.measured and trial.phase == "search":
                found[b""].append(reward_of(trial))
                found.setdefault(exact_key(trial.context), []).append(reward_of(trial))
        return {context: median(some) if some else 0.0 for context, some in found.items()}

    @cached_property
    def _searched(self) -> dict[bytes, list[Trial]]:
        found: dict[bytes, list[Trial]] = {}
        for trial in self.earlier:
            if trial.measured:
                found.setdefault(exact_key(trial.action), []).append(trial)
        return found

    def advantage(self, action: bytes, other: bytes, context: bytes | None, first: int = 0) -> Estimate | None:
        """How much better a setting is than another, from a block on; None if one of them was not measured there."""
        places = list(self.contexts) if context is None else [context]
        pairs = [(self.rewards(action, place, first), self.rewards(other, place, first)) for place in places]
        if not all(mine and theirs for mine, theirs in pairs):
            return None
        parts = [self.spread.difference(mine, theirs) for mine, theirs in pairs]
        return combined(list(zip(self.weights([part.mean for part in parts], places), parts, strict=True)))

    def weights(self, advantages: Sequence[float], places: Sequence[bytes]) -> list[float]:
        """How much each context counts in a mean over all: by its draws, and of these only the worst ones if asked."""
        if len(places) == 1:
            return [1.0]
        over = self.head.get("over_contexts", "mean")
        left = 1.0 - (over["cvar"] if isinstance(over, Mapping) else float(over == "worst"))
        left, found = max(left, SAME), [0.0] * len(places)
        for at in sorted(range(len(places)), key=lambda at: advantages[at]):
            found[at] = min(self.contexts[places[at]], max(left - math.fsum(found), 0.0))
        return [weight / math.fsum(found) for weight in found]

    def scores(self, actions: Sequence[bytes], context: bytes | None) -> dict[bytes, tuple[float, float]]:
        """The ranks of settings, the largest is the best: limits first, then the advantage on the surface."""
        places = list(self.contexts) if context is None else [context]
        cells = [(self.values[action], self.values[place]) for action in actions for place in places]
        found = iter(self.surface.at(cells) if cells else ())
        scales = [(abs(self.typical(place)) if self.surface.relative else 1.0) or 1.0 for place in places]
        ranks: dict[bytes, tuple[float, float]] = {}
        for action in actions:
            scaled = [next(found) * scale for scale in scales]
            ranks[action] = -self.violation(action, context), self.over_contexts(scaled, places)
        return ranks

    def over_contexts(self, values: Sequence[float], places: Sequence[bytes]) -> float:
        """The mean of values over contexts, or of the worst of them."""
        return math.fsum(map(operator.mul, self.weights(values, places), values))

    def violation(self, action: bytes, context: bytes | None) -> float:
        """By how much a setting exceeds the limits: by its fresh samples, else by those of the search."""
        if not self._is_limited:
            return 0.0
        places = self.contexts if context is None else [context]
        fresh = [trial for place in places for trial in self.trials(action, place) if trial.measured]
        found = fresh or self._searched.get(action, [])
        return fmean(_violation(self.objectives, trial) for trial in found) if found else math.inf

    def is_better(self, action: bytes, other: bytes, context: bytes | None, comparisons: int = 1) -> bool:
        """Whether a setting is better than another for sure."""
        found = self.advantage(action, other, context)
        return found is not None and found.interval(self.confidence, comparisons).low > 0

    def is_same(self, action: bytes, other: bytes, context: bytes | None) -> bool:
        """Whether two settings differ by next to nothing for sure."""
        found = self.advantage(action, other, context)
        if found is None:
            return False
        bounds = found.interval(self.confidence)
        size = max(
            abs(fmean(self.rewards(action, place))) for place in (self.contexts if context is None else [context])
        )
        return max(abs(bounds.low), abs(bounds.high)) <= SAME * size

    def changes(self, action: bytes) -> tuple[float, float]:
        """How far a setting is from the baseline: changed knobs, then the distance on their scales."""
        if self.baseline is None:
            return 0.0, 0.0
        one, two = self.values[action], self.values[self.baseline]
        changed = [name for name in one if exact_key({"": one[name]}) != exact_key({"": two.get(name)})]
        return len(changed), math.fsum(_gap(self.head["knobs"][name], one[name], two[name]) for name in changed)

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


class Confirmation:
    """Plans the confirmation from the journal alone. Pure and deterministic: the same trials give the same next block.

    Args:
        head: the journal's first record.
        trials: every closed trial.
        reserve: how many confirmation trials there may be.
        seed: of the experiment; the order within a block follows from it.
        policy: of the agent, if it has one: its choices are finalists.

    Attributes:
        finalists: the settings that entered the races in each context, by the context's key; without the baseline.
        ended: why there is no next block; empty while there is one.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        trials: Sequence[Trial],
        reserve: int,
        seed: int,
        policy: PolicyTable | None = None,
    ) -> None:
        self._fresh = fresh = FreshSamples(head, trials)
        self._reserve, self._seed = reserve, seed
        self._entries = _entries(fresh, self._size(), policy)
        self._races = {race: list(some) for race, some in self._entries.items()}
        if len(self._cells()) > reserve:  # one setting for all contexts is better than none
            race = None if None in self._races else next(iter(self._races))
            self._entries = {race: self._races[race][:1]}
            self._races = {race: self._races[race][:1]}
        self._raced = {race for race, some in self._entries.items() if len(some) > 1}
        self._over: dict[bytes | None, str] = {}
        self.finalists: Mapping[bytes, tuple[Action, ...]] = {
            place: tuple(fresh.values[one] for one in self._alive(place)) for place in fresh.contexts
        }
        self.ended = ""
        self._next = self._replay()

    def next_block(self) -> list[tuple[Action, Context]]:
        """What is missing of the current block, in its random order; empty when it is over."""
        values = self._fresh.values
        return [(values[action], values[context]) for action, context in self._next]

    def _size(self) -> int:
        """How many finalists the reserve can tell apart in each context; one if the metric is deterministic."""
        before = self._fresh.upto({})
        if before.spread.freedom and before.spread.variance <= SLACK**2:
            return 1
        each = self._reserve / len(before.contexts)
        size = before.head.get("confirm", {}).get("max_finalists", 8)
        while size > 1 and _race_cost(size, before.baseline is not None, before.rung) > RACE * each:
            size -= 1
        return size

    def _alive(self, context: bytes) -> list[bytes]:
        return list(dict.fromkeys([*self._races.get(context, ()), *self._races.get(None, ())]))

    def _cells(self) -> list[tuple[bytes, bytes]]:
        always = [] if self._fresh.baseline is None else [self._fresh.baseline]
        return [(one, place) for place in self._fresh.contexts for one in [*always, *self._alive(place)]]

    def _replay(self) -> list[tuple[bytes, bytes]]:
        """Walk through the blocks that the trials fill, deciding after each; what is missing of the last one."""
        used, block, reported = 0, 0, 0
        expected: dict[tuple[bytes, bytes], int] = {}
        while not self.ended:
            cells = self._cells()
            used, block = used + len(cells), block + 1
            if used > self._reserve or not any(self._races.values()):
                self.ended = USED
                return []
            for cell in cells:
                expected[cell] = expected.get(cell, 0) + 1
            missing = [cell for cell in cells if len(self._fresh.trials(*cell)) < expected[cell]]
            if missing:
                return sorted(missing, key=lambda cell: unit(self._seed, "confirm", block, repr(cell)))
            fresh = self._fresh.upto(expected)
            reported += all(len(some) < 2 for some in self._races.values())
            for race in self._races:
                self._races[race] = self._survivors(fresh, race, block)
            # Never by how the reported samples look: that would choose those that spread little.
            exact = fresh.spread.variance <= SLACK**2
            if reported >= (AGREE if exact else ENOUGH) and (exact or 0 < len(self._over) == len(self._raced)):
                self.ended = next(iter(self._over.values()), CLEAR)
        return []

    def _survivors(self, fresh: FreshSamples, race: bytes | None, block: int) -> list[bytes]:
        """Those of a race that go on."""
        some = self._races[race]
        if len(some) < 2:
            if any(fresh.failed(one, race) for one in some):  # another one that never failed takes its place
                whole = [one for one in self._entries[race] if not fresh.failed(one, race)]
                return [fresh.choose(whole, race)] if whole else some
            return some
        if block % fresh.rung:
            return some
        scores = fresh.scores(some, race)
        ranked = sorted(some, key=lambda one: (not fresh.failed(one, race), scores[one]), reverse=True)
        best, rest = ranked[0], ranked[1:]
        if all(fresh.is_better(best, one, race, len(rest)) for one in rest):
            self._over[race] = CLEAR
            return [best]
        if all(fresh.is_same(best, one, race) for one in rest):
            self._over[race] = TIED
            return [fresh.choose(some, race)]
        return ranked[: math.ceil(len(ranked) / 2)]


def _entries(fresh: FreshSamples, size: int, policy: PolicyTable | None) -> dict[bytes | None, list[bytes]]:
    """The settings that enter each race, by context; over all contexts (None) where there are several."""
    found = Measurements(fresh.earlier, fresh.objectives)
    for key in found.actions:
        fresh.key(found.values[key])
    pareto = [fresh.key(one.action) for one in best_among(found).pareto]
    before, measured = fresh.upto({}), found.actions
    if len(measured) > MOST:
        measured = sorted(measured, key=found.order, reverse=True)[:MOST]
    overall = _ranked(before, pareto or measured, None)
    if len(fresh.contexts) == 1:
        chosen = _chosen(fresh, policy, next(iter(fresh.contexts)))
        return {
            next(iter(fresh.contexts)): list(dict.fromkeys([*chosen, *_thinned(overall, size, bool(pareto))]))[:size]
        }
    shared = _thinned(overall, max(1, size // 2), bool(pareto))
    races: dict[bytes | None, list[bytes]] = {None: shared}
    for place in fresh.contexts:
        own = [*_chosen(fresh, policy, place), *_ranked(before, measured, place)]
        own = own if size > 1 else own[:1]
        rivals = [one for one in dict.fromkeys(own) if one not in (*shared, fresh.baseline)]
        races[place] = [*rivals[: max(size - len(shared), 1)], *shared]
    return races


def _ranked(before: FreshSamples, actions: Iterable[bytes], place: bytes | None) -> list[bytes]:
    """Measured settings, best first, without the baseline."""
    some = [action for action in actions if action != before.baseline]
    scores = before.scores(some, place)
    return sorted(some, key=lambda action: scores[action], reverse=True)


def _chosen(fresh: FreshSamples, policy: PolicyTable | None, place: bytes) -> list[bytes]:
    """The choice of the agent's policy in a context, unless it is the baseline."""
    found = None if policy is None else policy.at(fresh.values[place], domains_of(fresh.head))
    return [] if found is None or fresh.key(found.action) == fresh.baseline else [fresh.key(found.action)]


def _thinned(some: Sequence[bytes], size: int, spaced: bool) -> list[bytes]:
    """The first ones; of a Pareto set the first, and others evenly along it."""
    if not spaced or len(some) <= size:
        return list(some[:size])
    return [some[at * len(some) // size] for at in range(size)]


def _race_cost(size: int, baseline: bool, rung: int) -> int:
    """The trials in one context until a race of so many has a winner."""
    cost = 0
    while size > 1:
        cost += rung * (size + baseline)
        size = math.ceil(size / 2)
    return cost


def reward_of(trial: Trial) -> float:
    """A trial's reward, small enough to add up."""
    return min(max(trial.reward, -LARGEST), LARGEST)


def values_of(trials: Iterable[Trial], metric: str | None) -> list[float]:
    """The measured values of a metric, or of the reward (None)."""
    if metric is None:
        return [reward_of(trial) for trial in trials if trial.measured]
    return [trial.metrics[metric] for trial in trials if metric in trial.metrics]


def _violation(objectives: Sequence[Objective], trial: Trial) -> float:
    return violation([one for one in objectives if one.metric in trial.metrics], trial.metrics)


def _gap(spec: Mapping[str, Any], one: Any, two: Any) -> float:
    """How far two values of a knob are apart; its whole scale is 1."""
    knob = domain(spec)
    if isinstance(knob, Range):
        return abs(knob.position(float(one)) - knob.position(float(two)))
    places = knob.index(one), knob.index(two)
    return abs((places[0] or 0) - (places[1] or 0)) / max(knob.size - 1, 1)
