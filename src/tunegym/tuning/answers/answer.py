"""The answer of an experiment: which setting to use over all and in each context, how good it is, how sure that is.

With confirmation trials, values come from these alone; without, from the search, and the answer says "not confirmed".
Decisions follow the reward; percentages are of a metric that has a goal.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from tunegym.tuning.answers.contexts import distance, domain, domains_of
from tunegym.tuning.answers.finalists import FreshSamples, values_of
from tunegym.tuning.answers.intervals import Estimate, Interval, Spread, combined, relative_spread
from tunegym.tuning.answers.ranking import Measurements, best_among, samples_of
from tunegym.tuning.model.scenario import Objective, aims
from tunegym.tuning.model.space import Knob, Range
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, counted, exact_key, number, pairs

if TYPE_CHECKING:
    from tunegym.tuning.answers.recommendation import PolicyTable

SHOWN = 5
"""How many settings of an unconfirmed search are shown."""
NOISY = 0.1
"""A relative spread above this is worth a note."""
REPORT = 2
"""The fewest blocks that are reported alone; with fewer, all blocks are."""
REWARD = "reward"

_FIRST_METRIC = (None, "identity", "negative")
"""Rewards that are the first metric, or minus it."""


@dataclass(frozen=True)
class RewardMetric:
    """The metric that a reward is, or minus which it is; with ``limited`` only while every limit is kept."""

    name: str
    limited: bool


def reward_metric(
    metrics: Sequence[str], objectives: Sequence[Objective], declared: Mapping[str, Any]
) -> RewardMetric | None:
    """Which metric the reward is; None where it is computed from several.

    ``metrics`` are those that the agent sees, ``declared`` is the experiment in the scenario.
    """
    name = declared.get("agent_reward_function")
    if name is None and objectives:
        goals = aims(objectives)
        limited = any(objective.limit is not None for objective in objectives)
        return RewardMetric(goals[0].metric, limited) if len(goals) == 1 else None
    return RewardMetric(metrics[0], limited=False) if metrics and name in _FIRST_METRIC else None


@dataclass(frozen=True)
class Gain:
    """How much better than the baseline; positive is better."""

    reward: Interval  # difference of rewards
    metric: str | None  # the metric that ``percent`` is of; None where no metric has a goal
    percent: Interval | None  # of the baseline's metric

    @property
    def is_sure(self) -> bool:
        """Whether it is better, at the interval's confidence."""
        return self.reward.low > 0


@dataclass(frozen=True)
class Evidence:
    """What is known of one setting, in one context or over all of them (context None)."""

    action: Action
    context: Context | None
    reward: Interval | None  # None without a measurement; over all contexts the weighted mean of theirs
    metrics: Mapping[str, Interval]
    spread: Mapping[str, float]  # sample standard deviation by metric; empty with fewer than two samples
    samples: int  # independent trials behind it
    failed: int  # of its trials in that phase
    trials: tuple[int, ...]  # their numbers
    is_baseline: bool
    gain: Gain | None  # over the baseline; None without one, and for the baseline itself


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
        return _plain(asdict(self))


def answer(
    trials: Sequence[Trial],
    head: Mapping[str, Any],
    declared: Mapping[str, Any],
    policy: PolicyTable | None = None,
) -> Answer:
    """What an experiment found.

    Args:
        trials: every closed trial.
        head: the journal's first record.
        declared: the experiment in the scenario.
        policy: of the agent, if it has one; its choices were finalists.
    """
    judge = _Judge(trials, head, declared, policy)
    places = list(judge.fresh.contexts)
    several = len(places) > 1
    per_context = tuple(judge.verdict(place) for place in places if several and judge.is_known(place))
    overall = judge.verdict(None)
    return Answer(overall, per_context, head.get("baseline") or None, judge.noise(), _not_tested(trials, head))


def answer_at(
    context: Context,
    trials: Sequence[Trial],
    head: Mapping[str, Any],
    declared: Mapping[str, Any],
    policy: PolicyTable | None = None,
) -> Verdict:
    """The answer in a context, wholly or in part given; of one that was never measured, from its nearest neighbour."""
    judge = _Judge(trials, head, declared, policy)
    if not context or len(judge.fresh.contexts) < 2:
        return judge.verdict(None)
    away = distance(context, domains_of(head))
    known = {place: away(judge.fresh.values[place]) for place in judge.fresh.contexts if judge.is_known(place)}
    there = [place for place, gap in known.items() if gap == 0]
    if len(there) > 1:
        judge.fresh.restrict(there)
        return judge.verdict(None)
    if there:
        return judge.verdict(there[0])
    near = min(known, key=lambda place: known[place], default=None)
    if near is None or known[near] == math.inf:
        found = judge.verdict(None)
        note = f"{pairs(context)} was never measured: this is the answer over all contexts"
    else:
        found = judge.verdict(near)
        note = (
            f"{pairs(context)} was never measured: this is the answer at {pairs(judge.fresh.values[near])}, the nearest"
        )
    return replace(found, notes=(note, *found.notes), sentence=f"{found.sentence} {note[0].upper()}{note[1:]}.")


class _Judge:
    """Decides from the confirmation's samples; without any from the search's, which is then said."""

    def __init__(
        self,
        trials: Sequence[Trial],
        head: Mapping[str, Any],
        declared: Mapping[str, Any],
        policy: PolicyTable | None,
    ) -> None:
        self.trials, self._policy = trials, policy
        self.fresh = FreshSamples(head, trials)
        self.confirmed = self.fresh.count > 0
        if not self.confirmed:
            self.fresh = FreshSamples(head, trials, confirmed=False)
        objectives = self.fresh.objectives
        self._domains = domains_of(head)
        self._goals: Mapping[str, str] = head.get("goals", {})
        judged = reward_metric(head.get("metrics", []), objectives, declared)
        names = [judged.name] if judged else [one.metric for one in aims(objectives)]
        self._judged = next((name for name in (*names, *head.get("metrics", ())) if name in self._goals), None)
        self._spreads: dict[str | None, Spread] = {}

    def is_known(self, place: bytes) -> bool:
        """Whether anything was measured in a context."""
        return any(self.fresh.rewards(action, place) for action in self.fresh.settings(place))

    def verdict(self, context: bytes | None) -> Verdict:
        """The answer in a context, or over all."""
        fresh = self.fresh
        where = None if context is None else fresh.values[context]
        usable = sum(len(samples_of(trial)) for trial in self.trials if trial.cached_from is None)
        ranked = self._ranked(context)
        if usable < 2 or not ranked:
            why = f"{counted(len(self.trials), 'trial')} gave {counted(usable, 'measurement')}"
            if usable > 1:
                why = "no setting was measured in every context" if context is None else "nothing was measured there"
            return Verdict(where, None, (), (), self.confirmed, (), f"Nothing can be recommended: {why}.")
        best, first = ranked[0], self._first(ranked[0], context)
        shown = [self._evidence(one, context, first if one == best else 0) for one in ranked]
        base = fresh.baseline
        if base is not None and any(fresh.rewards(base, place) for place in self._places(context)):
            shown.append(self._evidence(base, context, 0))
        chosen = self._chosen(shown)
        others = [one for one in shown if one is not chosen]
        ties = tuple(one for one in others if self._is_tie(chosen, one, context, len(others)))
        shown = [chosen, *sorted(others, key=lambda one: -_mean(one))]
        notes = self._notes(chosen, shown, ties, context)
        sentence = self._sentence(chosen, shown, ties, context)
        return Verdict(where, chosen, tuple(shown), ties, self.confirmed, notes, sentence)

    def _places(self, context: bytes | None) -> list[bytes]:
        return list(self.fresh.contexts) if context is None else [context]

    # the choice ---------------------------------------------------------------------------------------

    def _ranked(self, context: bytes | None) -> list[bytes]:
        """The settings but the baseline, the winner first."""
        fresh = self.fresh
        if not self.confirmed:
            return self._searched(context)
        some = [one for one in fresh.settings(context) if one != fresh.baseline]
        if not some:  # the confirmation has just begun
            return []
        scores = fresh.scores(some, context)
        ranked = sorted(some, key=lambda one: self._rank(one, context, scores), reverse=True)
        leading = [
            one for one in ranked if self._rank(one, context, scores)[:2] == self._rank(ranked[0], context, scores)[:2]
        ]
        if context is not None and len(fresh.contexts) > 1:
            # The winner there, unless the one over all is better for sure. Reported samples don't choose between them.
            single = self._single
            best = max([one for one in leading if one != single] or leading, key=lambda one: scores[one])
            best = single if single in leading and fresh.is_better(single, best, context) else best
        else:
            best = fresh.choose(leading, context) if leading else None
        return [one for one in (best,) if one is not None] + [one for one in ranked if one != best]

    @cached_property
    def _single(self) -> bytes:
        """The best setting over all contexts; empty if there is none."""
        return next(iter(self._ranked(None)), b"")

    def _rank(self, one: bytes, context: bytes | None, scores: Mapping[bytes, Any]) -> tuple[bool, int, Any]:
        blocks = min(len(self.fresh.trials(one, place)) for place in self._places(context))
        return not self.fresh.failed(one, context), blocks, scores[one]

    def _searched(self, context: bytes | None) -> list[bytes]:
        """The best settings of the search."""
        found = Measurements([t for t in self.trials if t.phase != "confirm"], self.fresh.objectives)
        for action in found.actions:
            self.fresh.key(found.values[action])
        if context is None:
            best = best_among(found).overall
            everywhere = set(self.fresh.settings(None)) if len(self.fresh.contexts) > 1 else set(found.actions)
            some = [one for one in found.actions if one in everywhere]
            first = [] if best is None else [exact_key(best.action)]
            ranked = sorted(some, key=found.order, reverse=True)
        else:
            first = []
            some = [one for one in found.actions if found.measured(one, context)]
            ranked = sorted(some, key=lambda one: found.order(one, context), reverse=True)
        return [one for one in dict.fromkeys([*first, *ranked]) if one != self.fresh.baseline or not ranked[1:]][:SHOWN]

    def _first(self, action: bytes, context: bytes | None) -> int:
        """The block from which on the winner is reported: that after the race that chose it."""
        fresh = self.fresh
        if not self.confirmed:
            return 0
        count = min(len(fresh.trials(action, place)) for place in self._places(context))
        raced = len(fresh.contexts) > 1  # there at least the first block is a race
        for place in fresh.contexts:
            counts = [
                len(fresh.trials(one, place))
                for one in fresh.settings(place)
                if one not in (action, fresh.baseline) and not fresh.failed(one)
            ]
            raced = max([raced, *(one for one in counts if one < count)])
        return int(raced) if count - raced >= REPORT else 0

    def _chosen(self, shown: Sequence[Evidence]) -> Evidence:
        """The first one; the baseline if that is not better for sure, and nothing is wrong with the baseline."""
        first, base = shown[0], shown[-1]
        if len(shown) < 2 or not base.is_baseline or (base.failed and not first.failed):
            return first
        if self.confirmed:
            spoilt = first.failed and not base.failed
            return first if first.gain is not None and first.gain.is_sure and not spoilt else base
        return first if first.gain is None or first.gain.reward.mean > 0 else base

    def _is_tie(self, chosen: Evidence, other: Evidence, context: bytes | None, comparisons: int) -> bool:
        one, two = exact_key(chosen.action), exact_key(other.action)
        if self.fresh.violation(two, context) > self.fresh.violation(one, context):
            return False
        found = self.fresh.advantage(one, two, context)
        if found is None:
            return False
        bounds = found.interval(self.fresh.confidence, comparisons)
        return bounds.known and bounds.low <= 0

    # the evidence -------------------------------------------------------------------------------------

    def _evidence(self, action: bytes, context: bytes | None, first: int) -> Evidence:
        fresh, places = self.fresh, self._places(context)
        cells = {place: [t for t in fresh.trials(action, place)[first:] if t.measured] for place in places}
        cells = {place: trials for place, trials in cells.items() if trials}
        trials = [trial for some in cells.values() for trial in some]
        names = dict.fromkeys(name for trial in trials for name in trial.metrics)
        found = {name: one for name in (None, *names) if (one := self._mean_of(cells, name)) is not None}
        values = {name or REWARD: values_of(trials, name) for name in found}
        is_baseline = action == fresh.baseline
        return Evidence(
            action=fresh.values[action],
            context=None if context is None else fresh.values[context],
            reward=found.get(None),
            metrics={name: one for name, one in found.items() if name is not None},
            spread={name: stdev(some) for name, some in values.items() if len(some) > 1 and len(cells) == 1},
            samples=len(trials),
            failed=fresh.failed(action, context),
            trials=tuple(trial.number for trial in trials),
            is_baseline=is_baseline,
            gain=None if is_baseline else self._gain(action, context, first),
        )

    def _spread(self, name: str | None) -> Spread:
        if name not in self._spreads:
            self._spreads[name] = self.fresh.pool(name)
        return self._spreads[name]

    def _mean_of(self, cells: Mapping[bytes, Sequence[Trial]], name: str | None) -> Interval | None:
        """Over several contexts the mean by their weights."""
        values = {place: values_of(some, name) for place, some in cells.items()}
        parts = [
            (self.fresh.contexts.get(place, 1.0), self._spread(name).estimate(some))
            for place, some in values.items()
            if some
        ]
        if not parts:
            return None
        total = math.fsum(weight for weight, _ in parts)
        found = parts[0][1] if len(parts) == 1 else combined([(weight / total, one) for weight, one in parts])
        return found.interval(self.fresh.confidence)

    def _gain(self, action: bytes, context: bytes | None, first: int) -> Gain | None:
        fresh, base = self.fresh, self.fresh.baseline
        if base is None or (found := fresh.advantage(action, base, context, first)) is None:
            return None
        name, percent = self._judged, None
        if name is not None and (ratio := self._ratio(action, base, context, first, name)) is not None:
            sign = 100.0 if self._goals[name] == "max" else -100.0
            percent = ratio.interval(fresh.confidence).mapped(sign, -sign)
        return Gain(found.interval(fresh.confidence), name if percent else None, percent)

    def _ratio(self, action: bytes, base: bytes, context: bytes | None, first: int, name: str) -> Estimate | None:
        """A metric over the baseline's; over several contexts the mean gap within them, over the baseline's mean."""
        spread, places = self._spread(name), self._places(context)
        mine, theirs = (
            [values_of(self.fresh.trials(one, place)[first:], name) for place in places] for one in (action, base)
        )
        if not spread.relative or not all(mine) or not all(theirs):
            return None
        if len(places) == 1:
            return spread.ratio(mine[0], theirs[0])
        gaps = [spread.difference(one, two) for one, two in zip(mine, theirs, strict=True)]
        sign = 1.0 if self._goals[name] == "max" else -1.0
        weights = self.fresh.weights([sign * gap.mean for gap in gaps], places)
        whole = math.fsum(weight * fmean(some) for weight, some in zip(weights, theirs, strict=True))
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
        if spread is not None and end and self._spread(name).relative:
            drift = self._spread(name).ratio(end, start).interval(self.fresh.confidence).mapped(100.0, -100.0)
        if spread is not None and spread > NOISY:
            note = f"the same settings vary by {number(100 * spread, 2)} %: is the machine busy?"
        if drift is not None and not drift.low <= 0 <= drift.high:
            note = (
                f"{name or REWARD} of the same settings changed by {number(drift.mean, 2)} % from the start to the end"
            )
        return Noise(checked.action, checked.context, spread, drift, note)

    # the words ----------------------------------------------------------------------------------------

    def _notes(
        self, chosen: Evidence, shown: Sequence[Evidence], ties: Sequence[Evidence], context: bytes | None
    ) -> tuple[str, ...]:
        notes: list[str] = []
        if not self.confirmed:
            notes.append("not confirmed: the best value of a search flatters itself")
        if chosen.failed:
            notes.append(f"{counted(chosen.failed, 'trial')} of these settings failed")
        notes += [
            f"{pairs(one.action)} is not recommended: {counted(one.failed, 'trial')} of it failed"
            for one in shown
            if one.failed and not chosen.failed and self.confirmed
        ]
        if ties:
            notes.append(f"{counted(len(ties), 'other setting')} can't be told apart from it")
        choice = None
        if self._policy is not None and (context is not None or not self._domains):
            choice = self._policy.at({} if context is None else self.fresh.values[context], self._domains)
        if choice is not None and exact_key(choice.action) != exact_key(chosen.action):
            notes.append(f"the agent's policy chooses {pairs(choice.action)}")
        return tuple(notes)

    def _sentence(
        self, chosen: Evidence, shown: Sequence[Evidence], ties: Sequence[Evidence], context: bytes | None
    ) -> str:
        """``x=4: duration_s 1.02, 12 % less than your settings (95 % CI 9 to 15 %), from 6 confirmation trials``."""
        where = ""
        if len(self.fresh.contexts) > 1:
            where = (
                f"over all {len(self.fresh.contexts)} contexts, "
                if context is None
                else f"at {pairs(self.fresh.values[context])}, "
            )
        what = f"{where}{pairs(chosen.action)}"
        value = self._value_text(
            chosen, bounds=chosen.gain is None, alone=context is not None or len(self.fresh.contexts) < 2
        )
        unit = "confirmation trial" if self.confirmed else "search trial"
        elsewhere = sum(t.measured and exact_key(t.action) == exact_key(chosen.action) for t in self.trials)
        many = counted(chosen.samples or elsewhere, unit) + ("" if chosen.samples else " in other contexts")
        rests = f"from {many}" + ("" if self.confirmed else ", not confirmed")
        if chosen.is_baseline:
            best = next((one for one in shown if not one.is_baseline and one.gain is not None), None)
            beside = "" if best is None else f"; the next best, {pairs(best.action)}, is {self._gain_text(best, '')}"
            return _capital(f"keep your settings ({what}){value}, {rests}: nothing is better for sure{beside}.")
        if chosen.gain is not None:
            gain = self._gain_text(chosen, " than your settings")
            named = "" if value else f"{chosen.gain.metric or REWARD} "
            return _capital(f"{what}{value or ':'}{',' if value else ''} {named}{gain}, {rests}.")
        return _capital(f"{what}{value}, {rests}{self._beside(chosen, context)}.")

    def _value_text(self, one: Evidence, *, bounds: bool, alone: bool) -> str:
        name = self._judged or REWARD
        found = one.metrics.get(name, one.reward)
        if found is None or not alone:
            return ""
        between = f" ({_percent(found.confidence)} CI {number(found.low)} to {number(found.high)})"
        return f": {name} {number(found.mean)}{between if bounds and found.known else ''}"

    def _gain_text(self, one: Evidence, than: str) -> str:
        """``12 % less than your settings (95 % CI 9 to 15 %)``."""
        assert one.gain is not None
        shown, unit = one.gain.percent or one.gain.reward, " %" if one.gain.percent else ""
        up, down = ("less", "more") if self._goals.get(one.gain.metric or "") == "min" else ("more", "less")
        side = up if shown.mean >= 0 else down
        sign = 1.0 if shown.mean >= 0 else -1.0
        bounds = shown.mapped(sign)
        label = "" if unit else " reward"
        between = f" ({_percent(shown.confidence)} CI {number(bounds.low, 2)} to {number(bounds.high, 2)}{unit})"
        return f"{number(bounds.mean, 2)}{unit}{label} {side}{than}{between if shown.known else ''}"

    def _beside(self, chosen: Evidence, context: bytes | None) -> str:
        """Without a baseline: compared to the search's typical trial, within each context."""
        name, places, shares = self._judged, self._places(context), []
        if name is None:
            return ""
        for place in places:
            found = [t for t in self.trials if t.phase == "search" and t.cached_from is None]
            found = [t for t in found if len(self.fresh.contexts) < 2 or exact_key(t.context) == place]
            typical = values_of([t for t in found if t.measured], name)
            mine = values_of(
                [t for t in self.trials if t.number in chosen.trials and exact_key(t.context) == place], name
            )
            if len(typical) < 2 or not mine or not (middle := median(typical)):
                return ""
            shares.append(100 * (fmean(mine) / middle - 1))
        sign = 1.0 if self._goals[name] == "max" else -1.0
        share = math.fsum(map(operator.mul, self.fresh.weights([sign * one for one in shares], places), shares))
        side, named = "more" if share > 0 else "less", f"{name} " if len(places) > 1 else ""
        return f"; {named}{number(abs(share), 2)} % {side} than the median of the search"


def _mean(one: Evidence) -> float:
    return -math.inf if one.reward is None else one.reward.mean


def _percent(confidence: float) -> str:
    return f"{number(100 * confidence)} %"


def _capital(text: str) -> str:
    return text if "=" in text.split(" ")[0] else text[:1].upper() + text[1:]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _not_tested(trials: Sequence[Trial], head: Mapping[str, Any]) -> str:
    """``7 of 240 settings``; of ranges how many values were tried."""
    knobs = [domain(spec) for spec in head.get("knobs", {}).values()]
    sizes = [_count(knob) for knob in knobs]
    tried = len({exact_key(trial.action) for trial in trials if trial.measured})
    parts: list[str] = []
    if None in sizes:
        parts.append(f"all but {counted(tried, 'setting')} of a continuous space")
    elif tried < (size := math.prod(one or 1 for one in sizes)):
        parts.append(f"{number(size - tried)} of {counted(size, 'setting')}")
    ranges = [name for name, knob in domains_of(head).items() if isinstance(knob, Range)]
    parts += [f"values of {name} between the measured ones" for name in ranges]
    return ", ".join(parts)


def _count(knob: Knob) -> int | None:
    """The number of a knob's values; None for a continuous one."""
    if isinstance(knob, Range) and knob.step is None and knob.dtype == "int":
        return int(knob.high - knob.low) + 1
    return knob.size
