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
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunegym.core.randomness import unit
from tunegym.tuning.answers.contexts import OverContexts, domains_of, params_of
from tunegym.tuning.answers.intervals import SLACK, relative_spread
from tunegym.tuning.answers.ranking import Measurements, pareto
from tunegym.tuning.answers.samples import Samples
from tunegym.tuning.answers.surface import MOST
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context

if TYPE_CHECKING:
    from tunegym.tuning.answers.answer import RewardMetric
    from tunegym.tuning.answers.recommendation import PolicyTable
    from tunegym.tuning.model.scenario import Confirm

SHARE, WITH_BASELINE = 1.0, 8.0
"""The reserve is this many times the relative spread; with a baseline more, to tell a gain from none."""
LEAST = 5
"""Fresh samples for each setting that must be measured, if the metric is noisy, and for each block of a rung."""
MOST_FINALISTS = 8
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

CLEAR, TIED, USED = "the last round has a clear winner", "the rest can't be told apart", "the reserve is used up"


def reserve(
    noise: Sequence[Trial],
    budget: int,
    confirm: Confirm,
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
    share = confirm.share
    each = 2 if baseline else 1
    most, block = int(share * budget), contexts * each
    values = [trial.metrics[metric.name] if metric else trial.reward for trial in noise if trial.measured]
    spread = relative_spread(values) if len(values) > 1 else math.inf
    room = block + (contexts if contexts > 1 else 0)  # each context may have its own winner
    wanted = max(room, min(AGREE * room, math.ceil(SMALL * budget)))
    if spread:
        wanted = max(
            LEAST * block * _rung(contexts),
            math.ceil(min((WITH_BASELINE if baseline else SHARE) * spread, share) * budget),
        )
    return 0 if most < block else min(wanted, most, MOST_EACH * block)


class Confirmation:
    """Plans the confirmation from the journal alone. Pure and deterministic: the same trials give the same next block.

    Args:
        head: the journal's first record.
        trials: every closed trial.
        reserve: how many confirmation trials there may be.
        seed: of the experiment; the order within a block follows from it.
        policy: of the agent, if it has one: its choices are finalists.

    Attributes:
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
        self._fresh = fresh = Samples(head, trials)
        self._reserve, self._seed = reserve, seed
        self._entries, self._spare = _entries(fresh, self._size(), policy)
        self._races = {race: list(some) for race, some in self._entries.items()}
        if len(self._cells()) > reserve:  # one setting for all contexts is better than none
            race = None if None in self._races else next(iter(self._races))
            self._entries = {race: self._races[race][:1]}
            self._races = {race: self._races[race][:1]}
        self._raced = {race for race, some in self._entries.items() if len(some) > 1}
        self._over: dict[bytes | None, str] = {}
        self.ended = ""
        self._next = self._replay()

    def next_block(self) -> list[tuple[Action, Context]]:
        """What is missing of the current block, in its random order; empty when it is over."""
        values = self._fresh.values
        return [(values[action], values[context]) for action, context in self._next]

    def _size(self) -> int:
        """How many finalists the reserve can tell apart in each context; one if the metric is deterministic."""
        before = self._fresh.upto({})
        spread = before.pool(None)
        if spread.freedom and spread.variance <= SLACK**2:
            return 1
        each = self._reserve / len(before.contexts)
        size = MOST_FINALISTS
        while size > 1 and _race_cost(size, before.baseline is not None, _rung(len(before.contexts))) > RACE * each:
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
            exact = fresh.pool(None).variance <= SLACK**2
            if reported >= (AGREE if exact else ENOUGH) and (exact or 0 < len(self._over) == len(self._raced)):
                self.ended = next(iter(self._over.values()), CLEAR)
        return []

    def _survivors(self, fresh: Samples, race: bytes | None, block: int) -> list[bytes]:
        """Those of a race that go on."""
        some = self._races[race]
        if len(some) < 2:
            return self._replaced(fresh, race) if any(fresh.failed(one, race) for one in some) else some
        if block % _rung(len(fresh.contexts)):
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

    def _replaced(self, fresh: Samples, race: bytes | None) -> list[bytes]:
        """Another one of a race that never failed, else a candidate that the search measured where this one failed."""
        whole = [one for one in self._entries[race] if not fresh.failed(one, race)]
        if not whole:
            rest = [one for one in self._spare[race] if not fresh.failed(one, race)]
            failing = [place for place in fresh.contexts if any(fresh.failed(one, place) for one in self._races[race])]
            rest.sort(key=lambda one: -sum(fresh.was_measured(one, place) for place in failing))
            whole = sorted(rest, key=lambda one: fresh.failed_before(one, race) > 0)[:1]
            self._entries[race] = [*self._entries[race], *whole]
        return [fresh.choose(whole, race)] if whole else self._races[race]


Entries = dict[bytes | None, list[bytes]]


def _entries(fresh: Samples, size: int, policy: PolicyTable | None) -> tuple[Entries, Entries]:
    """The settings that enter each race, by context (over all, None, where there are several), and all candidates."""
    found = Measurements(fresh.earlier, fresh.objectives, OverContexts.of(fresh.head))
    for key in found.actions:
        fresh.key(found.values[key])
    front = pareto(found)
    before, measured = fresh.upto({}), found.actions
    if len(measured) > MOST:
        measured = sorted(measured, key=found.order, reverse=True)[:MOST]
    overall = _ranked(before, front or measured, None)
    if len(fresh.contexts) == 1:
        place = next(iter(fresh.contexts))
        first = [*_chosen(fresh, policy, place), *_thinned(overall, size, bool(front))]
        return {place: list(dict.fromkeys(first))[:size]}, {place: overall}
    shared = _thinned(overall, max(1, size // 2), bool(front))
    races: Entries = {None: shared}
    spare: Entries = {None: overall}
    for place in fresh.contexts:
        spare[place] = [*_chosen(fresh, policy, place), *_ranked(before, measured, place)]
        own = spare[place] if size > 1 else spare[place][:1]
        rivals = [one for one in dict.fromkeys(own) if one not in (*shared, fresh.baseline)]
        races[place] = [*rivals[: max(size - len(shared), 1)], *shared]
    return races, spare


def _ranked(before: Samples, actions: Iterable[bytes], place: bytes | None) -> list[bytes]:
    """Settings, best first, without the baseline: those measured in the context, then others, then those that failed.

    What other contexts say of a setting may be wrong in this one.
    """
    some = [action for action in actions if action != before.baseline]
    scores, is_range = before.scores(some, place), params_of(before.head).size is None

    def rank(action: bytes) -> tuple[bool, bool, float, float, list[float]]:
        there = place is None or is_range or before.was_measured(action, place)
        limits, gain = scores[action]
        if before.baseline is not None:  # of equals the one that is nearest to it
            gain = float(f"{gain:.4g}")
        return not before.breaks(action, place), there, limits, gain, [-one for one in before.changes(action)]

    return sorted(some, key=rank, reverse=True)


def _chosen(fresh: Samples, policy: PolicyTable | None, place: bytes) -> list[bytes]:
    """The choice of the agent's policy in a context, unless it is the baseline."""
    found = None if policy is None else policy.at(fresh.values[place], domains_of(fresh.head))
    return [] if found is None or fresh.key(found.action) == fresh.baseline else [fresh.key(found.action)]


def _thinned(some: Sequence[bytes], size: int, spaced: bool) -> list[bytes]:
    """The first ones; of a Pareto set the first, and others evenly along it."""
    if not spaced or len(some) <= size:
        return list(some[:size])
    return [some[at * len(some) // size] for at in range(size)]


def _rung(contexts: int) -> int:
    """The blocks of a race between two decisions."""
    return RUNG if contexts == 1 else 1


def _race_cost(size: int, baseline: bool, rung: int) -> int:
    """The trials in one context until a race of so many has a winner."""
    cost = 0
    while size > 1:
        cost += rung * (size + baseline)
        size = math.ceil(size / 2)
    return cost
