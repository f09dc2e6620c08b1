"""The answer of an experiment: which setting to use over all and in each context, how good it is, how sure that is.

With confirmation trials, values come from these alone; without, from the search, and the answer says "not confirmed".
Decisions follow the reward; percentages are of a metric that has a goal.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import orjson

from tunegym.tuning.answers.contexts import OverContexts, distance, domains_of
from tunegym.tuning.answers.intervals import SLACK, Estimate, Interval, Spread, combined, pooled, relative_spread
from tunegym.tuning.answers.ranking import Measurements, pareto, samples_of, winner
from tunegym.tuning.answers.samples import Samples, values_of
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.scenario import aims
from tunegym.tuning.model.space import MOST_REPRESENTED, Range
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.model.values import Action, Context, counted, exact_key, number, pairs

if TYPE_CHECKING:
    from tunegym.tuning.answers.recommendation import PolicyChoice, PolicyTable

FEWEST = 2
"""Measurements without which nothing is recommended."""
SHOWN = 5
"""How many settings of an unconfirmed search are shown."""
SHORT = 1e-5
"""Contexts that are less apart than this are the same: people see six digits of a float."""
NOISY = 0.1
"""A relative spread above this is worth a note."""
REPORT = 2
"""The fewest blocks that are reported alone; with fewer, all blocks are."""
REWARD = "reward"


@dataclass(frozen=True)
class Gain:
    """How much better than the baseline, or without one than the median of the search; positive is better."""

    reward: Interval  # difference of rewards; over all contexts the weighted mean of that within them
    metric: str | None  # the metric that ``percent`` is of; None where no metric has a goal
    percent: Interval | None  # of that metric
    on_baseline: bool

    @property
    def is_sure(self) -> bool:
        """Whether it is better than the baseline, at the interval's confidence."""
        return self.on_baseline and self.reward.low > 0


@dataclass(frozen=True)
class Evidence:
    """What is known of one setting, in one context or over all of them (context None)."""

    action: Action
    context: Context | None
    # None and empty without a measurement, and over several contexts: their values don't compare
    reward: Interval | None
    metrics: Mapping[str, Interval]
    spread: Mapping[str, float]  # sample standard deviation by metric; empty with fewer than two samples
    samples: int  # independent trials behind it
    failed: int  # of its trials in that phase
    trials: tuple[int, ...]  # their numbers
    violation: float  # by how much its means exceed the objectives' limits, as a share of them; 0 if they don't
    is_baseline: bool
    gain: Gain | None  # None for the baseline itself, and where there is nothing to compare with


@dataclass(frozen=True)
class Verdict:
    """The answer in one context, or over all of them."""

    context: Context | None
    chosen: Evidence | None  # None: nothing can be said, and ``sentence`` says why
    finalists: tuple[Evidence, ...]  # the chosen one, the others and the baseline, best first
    ties: tuple[Evidence, ...]  # cannot be told apart from the chosen one
    confirmed: bool
    notes: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Noise:
    """The same setting measured several times, at the start and at the end."""

    action: Action
    context: Context
    relative_spread: float | None  # None with fewer than two samples
    drift: Interval | None  # from the start to the end, in percent; None with fewer than two samples at either
    note: str | None


@dataclass(frozen=True)
class Answer:
    """What an experiment found."""

    overall: Verdict
    per_context: tuple[Verdict, ...]
    baseline: Action | None
    noise: Noise | None
    not_tested: str  # settings, ranges and contexts that were not tested

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``; an unknown bound of an interval is None."""
        return orjson.loads(orjson.dumps(self))


def evidence_of(found: Measurements, action: bytes, context: bytes | None = None, valued: bool = True) -> Evidence:
    """A setting as the search measured it: without intervals, and not ``valued`` without means over contexts."""

    def unsure(mean: float) -> Interval:
        return Estimate(mean, math.inf, 0, len(trials)).interval(0.95)

    trials = found.measured(action, context)
    whole = Measured(tuple(sample for trial in trials for sample in samples_of(trial)))
    means = {name: unsure(mean) for name, mean in whole.mean().items()} if valued and trials else {}
    reward = unsure(found.mean(action, context)) if valued and trials else None
    spread = whole.spread() if valued and len(whole.samples) > 1 else {}
    counts = len(trials), found.failed(action, context), tuple(trial.number for trial in trials)
    excess = found.violation(action, context) if trials else 0.0
    return Evidence(found.values[action], None, reward, means, spread, *counts, excess, False, None)


def answer(
    trials: Sequence[Trial],
    head: Head,
    policy: PolicyTable | None = None,
) -> Answer:
    """What an experiment found.

    Args:
        trials: every closed trial.
        head: the journal's first record.
        policy: of the agent, if it has one; its choices were finalists.
    """
    judge = _Judge(trials, head, policy)
    places = list(judge.samples.contexts)
    per_context = tuple(judge.verdict(place) for place in places if len(places) > 1 and judge.is_known(place))
    return Answer(judge.verdict(None), per_context, head.baseline, judge.noise(), _not_tested(trials, head))


def answer_at(
    context: Context,
    trials: Sequence[Trial],
    head: Head,
    policy: PolicyTable | None = None,
) -> Verdict:
    """The answer in a context, wholly or in part given; of one that was never measured, from its neighbours."""
    judge = _Judge(trials, head, policy)
    return judge.at(context) if context else judge.verdict(None)


class _Judge:
    """Decides from the confirmation's samples; without any from the search's, which is then said."""

    def __init__(
        self,
        trials: Sequence[Trial],
        head: Head,
        policy: PolicyTable | None,
    ) -> None:
        self.trials, self._policy, self._domains = trials, policy, domains_of(head)
        self.samples = Samples(head, trials)
        objectives = self.samples.objectives
        self._over = OverContexts.of(head)
        self._measurements = Measurements(trials, objectives, self._over)
        self._several = len(self.samples.contexts) > 1
        self.confirmed = self._recurs = any(one != self.samples.baseline for one in self.samples.settings(None))
        self._elsewhere = False
        if not self.confirmed:
            self._use_search()
        self._wanted: Context = {}
        self._near: str | None = None
        self._goals: Mapping[str, str] = head.goals
        # A reward of several metrics may rise where each of them gets worse.
        first = head.metrics[0] if len(head.metrics) == 1 else None
        judged = head.judged.metric or first
        self._judged = judged if judged in self._goals else None
        limited = any(objective.limit is not None for objective in objectives)
        self._is_reward = head.judged.metric is not None and not limited and head.reward != "inverse"
        self._spreads: dict[tuple[str | None, bytes | None], Spread] = {}

    def _use_search(self) -> None:
        """Answer from the search, for want of a confirmation."""
        self._elsewhere = self.confirmed
        self.samples = Samples(self.samples.head, self.trials, confirmed=False)
        self.confirmed, self._recurs = False, self._measurements.reward.recurs

    def is_known(self, place: bytes) -> bool:
        """Whether anything but the baseline was measured in a context."""
        found = self.samples
        return any(found.rewards(one, place) for one in found.settings(place) if one != found.baseline)

    def at(self, wanted: Context) -> Verdict:
        """The answer in a context, or in all that have the values of a part of one."""
        away = distance(wanted, self._domains)
        met = any(one.measured and away(one.context) < math.inf for one in self.trials)
        if met and all(away(self.samples.values[place]) == math.inf for place in self.samples.contexts):
            self._use_search()
        samples = self.samples
        known = {place: away(samples.values[place]) for place in samples.contexts if self.is_known(place)}
        there = [place for place, gap in known.items() if gap < SHORT]
        if len(there) != 1 or not self._recurs:
            if met and not self.confirmed:
                self._near = samples.narrow(wanted)
                there = list(samples.contexts)
            elif not there:
                least = min(known.values(), default=math.inf)
                nearest = [place for place, gap in known.items() if gap < min(least + SHORT, math.inf)]
                if len(nearest) > 1:
                    samples.restrict(nearest)
                    self._wanted = wanted
                found = self.verdict(nearest[0] if len(nearest) == 1 else None)
                places = " and ".join(f"at {pairs(samples.values[place])}" for place in nearest)
                which = f"the answer {places}, the nearest" if places else "the answer over all contexts"
                note = f"{pairs(wanted)} was never measured: this is {which}"
                return replace(found, notes=(note, *found.notes), sentence=f"{found.sentence} {_capital(note)}.")
            else:
                samples.restrict(there)
        self._wanted = wanted
        return self.verdict(there[0] if len(there) == 1 else None)

    def verdict(self, context: bytes | None) -> Verdict:
        """The answer in a context, or over all."""
        samples = self.samples
        where = None if context is None else samples.values[context]
        usable = sum(len(samples_of(trial)) for trial in self.trials if trial.cached_from is None)
        ranked = self._ranked(context)
        if usable < FEWEST or not ranked:
            gave = f"{counted(len(self.trials), 'trial')} gave {counted(usable, 'measurement')}"
            why = gave if usable < FEWEST else "nothing was measured there"
            return Verdict(where, None, (), (), self.confirmed, (), f"Nothing can be recommended: {why}.")
        best, first = ranked[0], self._first(ranked[0], context)
        shown = [self._evidence(one, context, first if one == best else 0) for one in ranked]
        base = samples.baseline
        broken = ""
        if base is not None and base not in ranked:
            today = self._evidence(base, context, 0)
            if today.failed:
                broken = f"; your settings failed in {counted(today.failed, 'trial')}"
            elif today.violation > shown[0].violation:
                broken = f"; your settings exceed the limits{self._exceeded(today)}"
            shown += [today] if today.samples else []
        chosen, candidate = self._chosen(shown), shown[0]
        others = [one for one in shown if one is not chosen]
        rivals = [one for one in others if self._near is None and not one.is_baseline and one.failed <= chosen.failed]
        ties = tuple(one for one in rivals if self._is_tie(chosen, one, context, len(others)))
        shown = [chosen, *sorted(others, key=_level, reverse=True)]
        sentence = f"{self._sentence(chosen, candidate, ties, context)}{broken}."
        return Verdict(where, chosen, tuple(shown), ties, self.confirmed, self._notes(chosen, shown, context), sentence)

    def _places(self, action: bytes, context: bytes | None) -> list[bytes]:
        """The contexts in which a setting is judged: where it works."""
        if context is not None:
            return [context]
        if not self.confirmed:
            return self.samples.places(action)
        return [one for one in self.samples.contexts if self.samples.rewards(action, one)] or [*self.samples.contexts]

    # the choice ---------------------------------------------------------------------------------------

    def _ranked(self, context: bytes | None) -> list[bytes]:
        """The settings but the baseline, the winner first."""
        samples = self.samples
        if not self.confirmed:
            return self._searched(context)
        some = [one for one in samples.settings(context) if one != samples.baseline]
        if not some:
            return []
        scores = samples.scores(some, context)
        blocks = {one: min(len(samples.trials(one, place)) for place in self._places(one, context)) for one in some}
        ranks = {one: (not samples.failed(one, context), blocks[one], scores[one]) for one in some}
        ranked = sorted(some, key=lambda one: ranks[one], reverse=True)
        leading = [one for one in ranked if ranks[one][:2] == ranks[ranked[0]][:2]]
        if context is not None and len(samples.contexts) > 1:
            # Never worse, on all evidence, than the one over all; of equals that one.
            single = next(iter(self._ranked(None)), b"")
            best = max(leading, key=lambda one: (scores[one], one == single))
        else:
            best = samples.choose(leading, context)
        return [best, *(one for one in ranked if one != best)]

    def _searched(self, context: bytes | None) -> list[bytes]:
        """The best settings of the search; the policy's choice before them if it was measured."""
        found, samples = self._measurements, self.samples
        for action in found.actions:
            samples.key(found.values[action])
        wanted = self._wanted if context is None else samples.values[context]
        if not self._recurs and self._near is None and len(aims(samples.objectives)) < 2:
            some = [one for one in found.actions if samples.is_measured(one, context)]
            scores = samples.scores(some, context)  # neighbours in a range inform each other
            ranked = sorted(some, key=lambda one: scores[one], reverse=True)
        elif wanted or context is not None:  # what a setting does elsewhere counts, too
            near = found.reward.at(wanted, self._domains)
            scores = near or {one: found.reward.over_all(one).score for one in found.actions if samples.places(one)}
            ranked = sorted(scores, key=lambda one: (-samples.violation(one, context), scores[one]), reverse=True)
        else:
            best = winner(found)
            everywhere = set(samples.settings(None)) if self._several else set(found.actions)
            some = [one for one in found.actions if one in everywhere]
            ranked = [] if best is None else [best]
            ranked += sorted(some, key=found.order, reverse=True)
        ranked = [one for one in dict.fromkeys(ranked) if one != samples.baseline] or ranked[:1]
        choice = self._choice(context)
        if choice is not None and samples.is_measured(samples.key(choice.action), context):
            ranked = list(dict.fromkeys([exact_key(choice.action), *ranked]))
        return ranked[:SHOWN]

    def _choice(self, context: bytes | None) -> PolicyChoice | None:
        """What the policy chooses; it answers for whole contexts only."""
        if self._policy is None or (context is None and self._domains):
            return None
        return self._policy.at({} if context is None else self.samples.values[context], self._domains)

    def _first(self, action: bytes, context: bytes | None) -> int:
        """The block from which on the winner is reported: that after the race that chose it."""
        samples = self.samples
        if not self.confirmed:
            return 0
        count = min(len(samples.trials(action, place)) for place in self._places(action, context))
        raced = self._several  # there at least the first block is a race
        for place in samples.contexts:
            counts = [
                len(samples.trials(one, place))
                for one in samples.settings(place)
                if one not in (action, samples.baseline) and not samples.failed(one)
            ]
            raced = max([raced, *(one for one in counts if one < count)])
        return int(raced) if count - raced >= REPORT else 0

    def _chosen(self, shown: Sequence[Evidence]) -> Evidence:
        """The first one; the baseline if that is not better for sure, and nothing is wrong with the baseline."""
        first, base, gain = shown[0], shown[-1], shown[0].gain
        if first is base or not base.is_baseline or (base.failed and not first.failed):
            return first
        if not self.confirmed:
            return first if gain is None or not gain.on_baseline or gain.reward.mean > 0 else base
        spoilt = first.failed and not base.failed
        return first if gain is not None and (gain.is_sure or not gain.on_baseline) and not spoilt else base

    def _is_tie(self, chosen: Evidence, other: Evidence, context: bytes | None, comparisons: int) -> bool:
        one, two = exact_key(chosen.action), exact_key(other.action)
        if self.samples.violation(two, context) > self.samples.violation(one, context):
            return False
        found = self.samples.advantage(one, two, context)
        if found is None:
            return False
        bounds = found.interval(self.samples.confidence, comparisons)
        return bounds.known and bounds.low <= 0

    # the evidence -------------------------------------------------------------------------------------

    def _evidence(self, action: bytes, context: bytes | None, first: int) -> Evidence:
        samples = self.samples
        places = self._places(action, context)
        trials = [one for place in places for one in samples.trials(action, place)[first:] if one.measured]
        names = dict.fromkeys(name for trial in trials for name in trial.metrics)
        alone = (context is not None or not self._several) and self._near is None
        values = {name: values_of(trials, name) for name in ((None, *names) if alone and trials else ())}
        found = {
            name: self._spread(name, context).estimate(some).interval(samples.confidence)
            for name, some in values.items()
        }
        is_baseline = action == samples.baseline
        return Evidence(
            action=samples.values[action],
            context=None if context is None else samples.values[context],
            reward=found.get(None),
            metrics={name: one for name, one in found.items() if name is not None},
            spread={name or REWARD: stdev(some) for name, some in values.items() if len(some) > 1},
            samples=len(trials),
            failed=sum(not trial.measured for place in places for trial in samples.trials(action, place)),
            trials=tuple(trial.number for trial in trials),
            violation=samples.violation(action, context, first) if trials else 0.0,
            is_baseline=is_baseline,
            gain=None if is_baseline else self._gain(action, context, first),
        )

    def _spread(self, name: str | None, place: bytes | None = None) -> Spread:
        """That of the samples that are reported; see ``Samples.pool``."""
        if (name, place) not in self._spreads:
            found = self.samples.pool(name, place)
            if not self.confirmed:  # the noise of others says nothing of a value that was chosen for its luck
                found = Spread(0.0, 0, found.relative)
            self._spreads[name, place] = found
        return self._spreads[name, place]

    def _gain(self, action: bytes, context: bytes | None, first: int) -> Gain | None:
        samples, name, places = self.samples, self._judged, self._places(action, context)
        if self._near is not None or not self._recurs:  # draws of a range: each has its own context
            return None
        if not 0 < len(places) <= MOST_REPRESENTED or not all(samples.rewards(action, p, first) for p in places):
            return None
        base = samples.baseline
        if base is not None and not all(samples.rewards(base, place, first) for place in places):
            base = None
        if base is None and any(math.isnan(samples.typical(place)) for place in places):
            return None
        gaps = [self._gap(None, action, base, place, first)[0] for place in places]
        reward = combined(list(zip(samples.weights([one.mean for one in gaps], places), gaps, strict=True)))
        percent = None
        if name is not None and (ratio := self._ratio(name, action, base, places, first)) is not None:
            rises = self._gap(name, action, base, places[0], first)[1] > 0  # of negative values less is a larger share
            sign = 100.0 if (self._goals[name] == "max") is rises else -100.0
            percent = ratio.interval(samples.confidence).mapped(sign, -sign)
        return Gain(reward.interval(samples.confidence), name if percent else None, percent, base is not None)

    def _gap(
        self, name: str | None, action: bytes, base: bytes | None, place: bytes, first: int
    ) -> tuple[Estimate, float]:
        """How much more of a metric, or of the reward, than what it is compared with; and that."""
        samples, spread = self.samples, self._spread(name, place)
        mine = values_of(samples.trials(action, place)[first:], name)
        if base is not None:
            theirs = values_of(samples.trials(base, place)[first:], name)
            return spread.difference(mine, theirs), fmean(theirs)
        own, typical = spread.estimate(mine), samples.typical(place, name)
        return replace(combined([(1.0, own)]), mean=own.mean - typical), typical

    def _ratio(
        self, name: str, action: bytes, base: bytes | None, places: Sequence[bytes], first: int
    ) -> Estimate | None:
        """A metric over what it is compared with; over several contexts the mean gap within them over the mean."""
        samples, spread = self.samples, self._spread(name, places[0])
        if not spread.relative:
            return None
        if len(places) == 1:
            mine = values_of(samples.trials(action, places[0])[first:], name)
            if base is not None:
                return spread.ratio(mine, values_of(samples.trials(base, places[0])[first:], name))
            own, typical = spread.estimate(mine), samples.typical(places[0], name)
            return replace(own, mean=own.mean / typical) if typical else None
        gaps, levels = zip(*(self._gap(name, action, base, place, first) for place in places), strict=True)
        sign = 1.0 if self._goals[name] == "max" else -1.0
        weights = samples.weights([sign * gap.mean for gap in gaps], places)
        whole = math.fsum(map(operator.mul, weights, levels))
        if min(levels) <= 0 <= max(levels):
            return None
        found = combined([(weight / whole, gap) for weight, gap in zip(weights, gaps, strict=True)])
        return replace(found, mean=1 + found.mean)

    def noise(self) -> Noise | None:
        """The spread and the drift of the setting that was measured at the start and at the end."""
        checked = next((trial for trial in self.trials if trial.phase == "noise"), None)
        if checked is None:
            return None
        name = self._judged
        same = exact_key(checked.action, checked.context)
        some = [t for t in self.trials if t.phase != "search" and exact_key(t.action, t.context) == same and t.measured]
        last = max((trial.number for trial in self.trials if trial.phase == "search"), default=math.inf)
        start, end = (values_of([t for t in some if (t.number > last) is late], name) for late in (False, True))
        spread = relative_spread(start) if len(start) > 1 else None
        drift, note = None, None
        if spread is not None and end and (own := pooled([start, end])).relative:
            drift = own.ratio(end, start).interval(self.samples.confidence).mapped(100.0, -100.0)
        if spread is not None and NOISY < spread < math.inf:
            note = f"the same settings vary by {number(100 * spread, 2)} %: is the machine busy?"
        if drift is not None and not drift.low <= 0 <= drift.high:
            note = (
                f"{name or REWARD} of the same settings changed by {number(drift.mean, 2)} % from the start to the end"
            )
        return Noise(checked.action, checked.context, spread, drift, note)

    # the words ----------------------------------------------------------------------------------------

    def _notes(self, chosen: Evidence, shown: Sequence[Evidence], context: bytes | None) -> tuple[str, ...]:
        notes: list[str] = []
        choice = self._choice(context)
        chose = choice is not None and exact_key(choice.action) == exact_key(chosen.action)
        if not self.confirmed:
            confirm = self.samples.head.confirm
            off = confirm is None or confirm.mode == "off"
            why = "confirm is off" if off else "the run has not come to that, or has too few trials for it"
            why = "other contexts were" if self._elsewhere else why
            notes.append(f"not confirmed ({why}): the best value of a search flatters itself")
        if self._near is not None:
            notes.append(f"from {self._near}")
        key = exact_key(chosen.action)
        if failed := chosen.failed + (self.samples.failed_before(key, context) if self.confirmed else 0):
            notes.append(f"{counted(failed, 'trial')} of these settings failed")
        same = self._same(key, context) if self.confirmed else 0
        notes += [f"{counted(same, 'other setting')} did exactly as well in the search"] if same else []
        if chosen.violation:
            closest = "no measured setting keeps the limits, and this one comes closest"
            notes.append(("it exceeds the limits" if chose else closest) + self._exceeded(chosen))
        notes += [
            f"{pairs(one.action)} is not recommended: {counted(one.failed, 'trial')} of it failed"
            for one in shown
            if one.failed and not chosen.failed and self.confirmed and not one.is_baseline
        ]
        front = pareto(self._measurements) if context is None and not self._wanted else ()
        if len(front) > 1:
            which = "the one with the highest reward" + (" of those that were confirmed" if self.confirmed else "")
            notes.append(f"one of {len(front)} settings on the Pareto set, {which}: see best.toml")
        if choice is not None and not chose:
            key, how = exact_key(choice.action), ""
            if not self.samples.is_measured(key, context):
                failed = self.samples.failed(key, context)
                how = ", which failed whenever it was tried there" if failed else ", which was never measured there"
            notes.append(f"the agent's policy chooses {pairs(choice.action)}{how}")
        elif choice is not None and not self.confirmed:
            notes += self._about_choice(choice, chosen, shown, context)
        noise = self.noise() if context is None and not self._wanted else None
        return (*notes, noise.note) if noise is not None and noise.note else tuple(notes)

    def _same(self, action: bytes, context: bytes | None) -> int:
        """How many other settings are as good to the last digit, where a metric is deterministic."""
        found, place = self._measurements.cells, context or next(iter(self.samples.contexts))
        if (context is None and self._several) or self.samples.pool(None).variance > SLACK**2:
            return 0
        seen = {key: values_of(row.get(place, ()), None)[:1] for key, row in found.items()}
        return sum(one == seen.get(action) for key, one in seen.items() if one and key != action)

    def _about_choice(
        self, choice: PolicyChoice, chosen: Evidence, shown: Sequence[Evidence], context: bytes | None
    ) -> Iterator[str]:
        """On the choice of a policy that was not confirmed: how old it is, and what was measured better."""
        assert self._policy is not None
        made = sum(trial.status != "cancelled" for trial in self.trials)
        if self._policy.trials < made:
            yield f"the policy was saved after {self._policy.trials} of {made} trials"
        if context is not None and exact_key(choice.context) != context:
            yield f"the policy was asked at {pairs(choice.context)}, which is nearest"
        best = max((one for one in shown if one is not chosen), key=_level, default=None)
        if best is not None and (
            found := self.samples.advantage(exact_key(best.action), exact_key(chosen.action), context)
        ):
            bounds = found.interval(self.samples.confidence)
            if (bounds.low if bounds.known else found.mean) > SLACK * abs(_level(chosen)):
                how = "was measured" if bounds.known else "looks"
                yield f"{pairs(best.action)} {how} better there"

    def _exceeded(self, one: Evidence) -> str:
        """In brackets the metrics that exceed their limits; empty if none is known to."""
        means = {name: found.mean for name, found in one.metrics.items()}
        found = [
            f"{objective.metric} is {number(means[objective.metric])}, the limit {number(objective.limit)}"
            for objective in self.samples.objectives
            if objective.limit is not None and objective.metric in means and objective.violation(means)
        ]
        return f" ({', '.join(found)})" if found else ""

    def _sentence(self, chosen: Evidence, candidate: Evidence, ties: Sequence[Evidence], context: bytes | None) -> str:
        """``x=4: duration_s 1.02, 12 % less than your settings (95 % CI 9 to 15 %), from 6 confirmation trials``."""
        gain, where = chosen.gain, ""
        if context is not None and self._several:
            where = f"at {pairs(self.samples.values[context])}, "
        elif self._several:
            met, many = len(self._places(exact_key(chosen.action), None)), len(self.samples.contexts)
            every = self.samples.head.params.size
            whole = many if self._wanted else every or many
            all_of = f"over {met} of" if met < whole else "over" if self._wanted or not every else "over all"
            if (share := self._over.share) < 1 and met == many:
                all_of = "in the worst of" if share < 1e-6 else f"over the worst {number(100 * share)} % of"
                whole = many
            all_of = f"{all_of} {whole}" if self._recurs or every else "over all"
            stand = " that stand for all" if self._recurs and not every and not self._wanted else ""
            where = f"{f'at {pairs(self._wanted)}, ' if self._wanted else ''}{all_of} contexts{stand}, "
        what, value = f"{where}{pairs(chosen.action)}", self._value_text(chosen)
        kind = "confirmation trial" if self.confirmed else "trial" if chosen.is_baseline else "search trial"
        rests = f"from {counted(chosen.samples, kind)}"
        rests += "" if self.confirmed else ", not confirmed"
        if chosen.is_baseline:
            why = f"nothing {'else was measured' if candidate is chosen else 'is better for sure'}"
            other = candidate.gain
            if other is not None and other.is_sure and candidate.failed:
                failed = counted(candidate.failed, "trial")
                why = f"{pairs(candidate.action)} is {self._gain_text(candidate, '')}, but {failed} of it failed"
            elif other is not None and other.reward.mean > 0:
                why += f"; the next best, {pairs(candidate.action)}, is {self._gain_text(candidate, '')}"
            return _capital(f"keep your settings ({what}){value}, {rests}: {why}")
        most = "at least " if len(ties) == SHOWN - 1 and not self.confirmed else ""
        tied = f"; {most}{counted(len(ties), 'other setting')} can't be told apart from it" if ties else ""
        named = "" if value or gain is None or gain.metric is None else f"{gain.metric} "
        if gain is not None and gain.on_baseline:
            text = f"{value or ':'}{',' if value else ''} {named}{self._gain_text(chosen, ' than your settings')}"
            return _capital(f"{what}{text}, {rests}{tied}")
        beside = "" if gain is None else f"; {named}{self._gain_text(chosen, ' than the median of the search')}"
        return _capital(f"{what}{value}, {rests}{beside}{tied}")

    def _value_text(self, one: Evidence) -> str:
        name = self._judged or REWARD
        found = one.metrics.get(name, one.reward)
        if found is None:
            return ""
        alone = one.gain is None or not one.gain.on_baseline
        return f": {name} {number(found.mean)}{between(found, '', 4) if alone else ''}"

    def _gain_text(self, one: Evidence, than: str) -> str:
        """``12 % less than your settings (95 % CI 9 to 15 %)``; without an interval where the value has one."""
        assert one.gain is not None
        shown, unit = (one.gain.percent, " %") if one.gain.percent else (one.gain.reward, "")
        if shown.mean == 0:
            return f"no better{than}"
        metric = one.gain.metric or (self._judged if self._is_reward else None)
        up, down = ("less", "more") if self._goals.get(metric or "") == "min" else ("more", "less")
        side = up if shown.mean >= 0 else down
        bounds = shown.mapped(1.0 if shown.mean >= 0 else -1.0)
        alone = one.gain.on_baseline or one.reward is None
        label = "" if metric else " reward"
        return f"{number(bounds.mean, 2)}{unit} {side}{label}{than}{between(bounds, unit, 2) if alone else ''}"


def _level(one: Evidence) -> float:
    """How good a setting is beside others of the same verdict."""
    if one.reward is not None:
        return one.reward.mean
    return one.gain.reward.mean if one.gain is not None else 0.0 if one.is_baseline else -math.inf


def between(found: Interval, unit: str, digits: int, named: bool = True) -> str:
    """`` (95 % CI 9 to 15 %)``, or `` (9 to 15 %)``; empty where nothing is known, or nothing varies."""
    if not found.known or found.low == found.high:
        return ""
    low, high = ([number(end, some) for end in (found.low, found.high)] for some in (digits, digits + 1))
    ends = low if low[0] != low[1] else high
    return f" ({f'{number(100 * found.confidence)} % CI ' if named else ''}{ends[0]} to {ends[1]}{unit})"


def _capital(text: str) -> str:
    return text if "=" in text.split(" ")[0] else text[:1].upper() + text[1:]


def _not_tested(trials: Sequence[Trial], head: Head) -> str:
    """``7 of 240 settings``; of ranges how many values were tried."""
    sizes = [
        int(one.high - one.low) + 1 if isinstance(one, Range) and not one.step and one.dtype == "int" else one.size
        for one in head.space.knobs.values()
    ]
    tried = len({exact_key(trial.action) for trial in trials if trial.measured})
    parts: list[str] = []
    if None in sizes:
        parts.append(f"all but {counted(tried, 'setting')} of a continuous space")
    elif tried < (size := math.prod(one or 1 for one in sizes)):
        parts.append(f"{number(size - tried)} of {counted(size, 'setting')}")
    ranges = [name for name, knob in domains_of(head).items() if isinstance(knob, Range)]
    every, met = head.params.size, len({exact_key(trial.context) for trial in trials if trial.measured})
    parts += [f"{number(every - met)} of {number(every)} contexts"] if every and met < every else []
    parts += [f"values of {name} between the measured ones" for name in ranges]
    return ", ".join(parts)
