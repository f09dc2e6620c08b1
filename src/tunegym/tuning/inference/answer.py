"""The answer of an experiment: which setting to use over all and in each context, how much better, and how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtr

from tunegym.tuning.inference.confirmation import Nomination
from tunegym.tuning.inference.coordinates import Floats, changes_from
from tunegym.tuning.inference.decision import LIKELY, Certainty, Comparison, Decision, Estimate, Jury, rounds_needed
from tunegym.tuning.inference.observations import CostScale, Observations, Question, Row
from tunegym.tuning.inference.surrogate import INFLATION, Standard, Surrogate
from tunegym.tuning.model.scenario import Judged, OverContexts
from tunegym.tuning.model.trial import CONFIRM, Trial, samples_of
from tunegym.tuning.model.values import Action, Context

FEWEST = 2
"""Measurements without which nothing is recommended."""
MOST_GROWTH = 10
"""A budget that is this many times as large is no advice."""

Basis = Literal["rounds", "model", "nothing"]
"""What an answer rests on: fresh samples in rounds, the model of the search, or too little."""


@dataclass(frozen=True)
class Interval:
    """A mean with a 95 % interval; its ends are None where they are unknown."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Gain:
    """How much better than the baseline: a ratio, better above 1, or a difference, better above 0."""

    mean: float
    low: float
    high: float
    is_ratio: bool

    @classmethod
    def of(cls, estimate: Estimate, scale: CostScale) -> Gain:
        """Return a gain of costs on the scale that people read."""
        ends = (estimate.mean, estimate.low, estimate.high)
        if scale.is_ratio:
            ends = tuple(math.exp(min(max(end, -700.0), 700.0)) for end in ends)
        return cls(*ends, is_ratio=scale.is_ratio)


@dataclass(frozen=True)
class Candidate:
    """A setting that the answer compares, with what is known of it in one context or over several.

    ``values`` are of metrics, and empty over several contexts: their values don't compare. ``trials`` are the numbers
    of the trials behind them, ``failed`` counts all that failed.
    """

    action: Action
    changes: Mapping[str, object]
    is_baseline: bool
    gain: Gain | None
    certainty: Certainty | None
    values: Mapping[str, Interval]
    reward: Interval | None
    trials: tuple[int, ...]
    failed: int
    violation: float

    @property
    def samples(self) -> int:
        """How many measurements its values rest on."""
        return len(self.trials)


@dataclass(frozen=True)
class Verdict:
    """The answer in one context, or over several (context None).

    ``chosen`` is what to use: the baseline where ``best``, which looks best, is not at least likely better. Both are
    None if nothing can be said. ``settles_at`` is the budget that would probably make it sure.
    """

    context: Context | None
    chosen: Candidate | None
    best: Candidate | None
    candidates: tuple[Candidate, ...]
    ties: tuple[Action, ...]
    certainty: Certainty | None
    basis: Basis
    rounds: int
    settles_at: int | None
    reason: str
    backed: bool = False  # likely because it is sure over all contexts
    notes: tuple[str, ...] = ()
    sentence: str = ""

    @property
    def confirmed(self) -> bool:
        """Whether it rests on samples measured after the search."""
        return self.basis == "rounds"

    @property
    def keeps_baseline(self) -> bool:
        """Whether the settings in use today stay."""
        return self.chosen is not None and self.chosen.is_baseline


@dataclass(frozen=True)
class Drift:
    """How the baseline changed from the search to the rounds: its cost rose by this factor or difference."""

    context: Context
    change: Gain


@dataclass(frozen=True)
class Answer:
    """What an experiment found.

    ``is_exact``: every context that can be drawn is represented. ``drift`` lists the contexts in which the machine
    surely changed.
    """

    overall: Verdict
    per_context: tuple[Verdict, ...]
    baseline: Action | None
    metric: str | None
    goal: str
    is_exact: bool
    over_contexts: OverContexts
    drift: tuple[Drift, ...]
    deterministic: bool


class Analysis:
    """Answers questions about an experiment's trials. ``own`` are a policy's choices by represented context."""

    def __init__(self, question: Question, trials: Sequence[Trial], own: Sequence[Action | None] = ()) -> None:
        ordered = sorted(trials, key=lambda trial: trial.number)
        self.question, self._own = question, own
        search = Observations(question, [trial for trial in ordered if trial.phase != CONFIRM])
        self._observations = Observations(question)
        for action in search.actions:
            self._observations.setting(action)
        for trial in ordered:
            self._observations.add(trial)
        self._done = len(ordered)
        self._usable = sum(len(samples_of(row.trial)) for row in self._observations.measured())
        self._scale = self._observations.scale
        self.surrogate: Surrogate | None = None
        if self._usable >= FEWEST:
            source = search if search.measured() else self._observations
            self.surrogate = Surrogate(source)
            self._jury = Jury(self._observations, self.surrogate)
            self._nomination = Nomination(self.surrogate, self._observations, 0, self._known, own)

    def _known(self, action: Action, context: Context) -> bool:
        """Return whether a setting was tried: no other is recommended without a measurement."""
        del context
        return self._observations.find(action) is not None

    def answer(self) -> Answer:
        """Return the whole answer."""
        contexts = range(len(self.question.contexts))
        overall = self.verdict(list(contexts))
        several = [self.verdict([context]) for context in contexts] if len(contexts) > 1 else []
        return Answer(
            overall=overall,
            per_context=tuple(several),
            baseline=self.question.baseline,
            metric=self.question.judged.metric,
            goal=self.question.judged.goal,
            is_exact=self.question.contexts.exact,
            over_contexts=self.question.over_contexts,
            drift=self._drift(),
            deterministic=self._observations.repeats().is_exact,
        )

    def verdict(self, contexts: Sequence[int]) -> Verdict:
        """Return the answer in one represented context, or over several."""
        where = self.question.contexts.contexts[contexts[0]] if len(contexts) == 1 else None
        if self.surrogate is None:
            reason = f"{self._done:,} trials gave {self._usable:,} measurements"
            return _nothing(where, reason)
        overall = self._jury.over(range(len(self.question.contexts)))
        decision = self._jury.within(contexts[0], overall) if len(contexts) == 1 else self._jury.over(contexts)
        if decision is None:
            return self._by_model(contexts, where)
        return self._by_rounds(contexts, where, decision)

    def front(self) -> list[Candidate]:
        """Return the Pareto set of several objectives."""
        every = range(len(self.question.contexts))
        return [self._evidence(setting, every, None, None) for setting in pareto(self._observations)]

    # by fresh samples ---------------------------------------------------------------------------------

    def _by_rounds(self, contexts: Sequence[int], where: Context | None, decision: Decision) -> Verdict:
        best = self._candidate(decision.chosen, decision.certainty, contexts)
        others = [self._other(setting, contexts) for setting in self._finalists(contexts, decision)]
        baseline = self._baseline(contexts)
        keeps = _keeps(baseline, best, decision.certainty)
        rows = [best, *[other for other in others if other is not None], *([baseline] if baseline else [])]
        return Verdict(
            context=where,
            chosen=baseline if keeps else best,
            best=best,
            candidates=tuple(rows),
            ties=tuple(self._observations.actions[setting] for setting in decision.ties),
            certainty=decision.certainty,
            backed=decision.certainty != decision.chosen.certainty(),
            basis="rounds",
            rounds=decision.chosen.fresh.count,
            settles_at=self._settles_at(decision, contexts),
            reason="",
        )

    def _finalists(self, contexts: Sequence[int], decision: Decision) -> list[int]:
        """Return the other settings that were compared in all of these contexts."""
        arms = [self._jury.arms[context] for context in contexts]
        shared = set(arms[0]).intersection(*arms)
        return sorted(shared - {decision.chosen.setting, self._observations.baseline})

    def _other(self, setting: int, contexts: Sequence[int]) -> Candidate | None:
        comparison = self._jury.compare(setting, contexts)
        return None if comparison is None else self._candidate(comparison, comparison.certainty(), contexts)

    def _candidate(self, comparison: Comparison, certainty: Certainty, contexts: Sequence[int]) -> Candidate:
        """Return a finalist's evidence; the gain is by fresh samples alone."""
        gain = Gain.of(comparison.fresh, self._scale) if self.question.baseline is not None else None
        return self._evidence(comparison.setting, contexts, gain, certainty)

    def _settles_at(self, decision: Decision, contexts: Sequence[int]) -> int | None:
        """Return the budget with which an unclear gain would probably be sure."""
        fresh = decision.chosen.fresh
        rounds = None if decision.certainty == "sure" else rounds_needed(fresh)
        if rounds is None:
            return None
        arms = sum(len(self._jury.arms[context]) for context in range(len(self.question.contexts)))
        share = max(sum(row.trial.phase == CONFIRM for row in self._observations.rows) / max(self._done, 1), 0.05)
        more = max(rounds - fresh.count, 1) * arms
        total = self._done + math.ceil(more / share)
        return _rounded_up(total) if total <= MOST_GROWTH * self._done else None

    # by the model -------------------------------------------------------------------------------------

    def _by_model(self, contexts: Sequence[int], where: Context | None) -> Verdict:
        """Answer from the search alone: never sure."""
        assert self.surrogate is not None
        setting = self._nomination.best(contexts)
        baseline = self._baseline(contexts)
        if setting is None and (baseline is None or not baseline.trials):
            return _nothing(where, "no setting worked there")
        certainty: Certainty = "unclear"
        best = None
        if setting is not None:
            estimate, chance = self._expected(setting, contexts)
            certainty = "likely" if chance >= LIKELY else "unclear"
            gain = None if estimate is None else Gain.of(estimate, self._scale)
            best = self._evidence(setting, contexts, gain, certainty)
        keeps = _keeps(baseline, best, certainty)
        rows = [candidate for candidate in (best, baseline) if candidate is not None]
        return Verdict(
            context=where,
            chosen=baseline if keeps else best,
            best=best,
            candidates=tuple(rows),
            ties=(),
            certainty=certainty,
            basis="model",
            rounds=0,
            settles_at=None,
            reason="",
        )

    def _expected(self, setting: int, contexts: Sequence[int]) -> tuple[Estimate | None, float]:
        """Return the gain that the model expects, and the chance that there is one."""
        assert self.surrogate is not None
        baseline = self._observations.baseline
        if baseline is None or baseline not in {row.setting for row in self._observations.measured()}:
            return None, 0.0
        actions = self._observations.actions
        points = self.surrogate.points([actions[baseline], actions[setting]])
        beliefs = [self.surrogate.beliefs(points, context) for context in contexts]
        gains = np.array([mean[0] - mean[1] for mean, _ in beliefs])
        spreads = np.array([cov[0, 0] + cov[1, 1] - 2.0 * cov[0, 1] for _, cov in beliefs])
        parts = self.question.parts(gains, contexts)
        variance = max(INFLATION * float(parts**2 @ spreads), 1e-12)
        mean = float(parts @ gains)
        return Estimate(mean, variance, 1e6, 0), float(ndtr(mean / math.sqrt(variance)))

    # evidence -----------------------------------------------------------------------------------------

    def _baseline(self, contexts: Sequence[int]) -> Candidate | None:
        baseline = self._observations.baseline
        if baseline is None:
            return None
        return self._evidence(baseline, contexts, None, None)

    def _evidence(
        self, setting: int, contexts: Sequence[int], gain: Gain | None, certainty: Certainty | None
    ) -> Candidate:
        """Return what was measured of a setting in some contexts: in rounds if it was, else in the search."""
        rows = [row for row in self._observations.rows if row.setting == setting and row.context in contexts]
        fresh = [row for row in rows if row.trial.phase == CONFIRM]
        counted = [row for row in fresh or rows if row.worked]
        action = self._observations.actions[setting]
        values = self._values(counted, setting, contexts[0]) if counted and len(contexts) == 1 else {}
        return Candidate(
            action=action,
            changes=self._changes(action),
            is_baseline=setting == self._observations.baseline,
            gain=gain,
            certainty=certainty,
            values={name: interval for name, interval in values.items() if name},
            reward=values.get(""),
            trials=tuple(row.trial.number for row in counted),
            failed=sum(not row.worked for row in rows),
            violation=float(np.mean([self._observations.violation(row) for row in counted])) if counted else 0.0,
        )

    def _values(self, rows: Sequence[Row], setting: int, context: int) -> dict[str, Interval]:
        """Return the typical values of all metrics, and under "" of the reward; the judged one has an interval."""
        names = dict.fromkeys(name for row in rows for name in row.trial.metrics)
        values = {
            name: Interval(float(np.mean([row.trial.metrics[name] for row in rows if name in row.trial.metrics])))
            for name in names
        }
        values[""] = Interval(float(np.mean([row.trial.reward for row in rows])))
        estimate = self._jury.value(setting, context)
        if estimate is not None:
            ends = [self._scale.value(cost) for cost in (estimate.low, estimate.high)]
            known = math.isfinite(estimate.half)
            low, high = (min(ends), max(ends)) if known else (None, None)
            judged = self.question.judged.metric or ""
            values[judged] = Interval(self._scale.value(estimate.mean), low, high)
        return values

    def _changes(self, action: Action) -> dict[str, object]:
        baseline = self.question.baseline
        if baseline is None:
            return dict(action)
        return changes_from(baseline, action)

    def _drift(self) -> tuple[Drift, ...]:
        """Return the contexts in which the baseline surely changed."""
        if self.surrogate is None:
            return ()
        drifts = self._jury.drift()
        contexts = self.question.contexts.contexts
        return tuple(
            Drift(contexts[context], Gain.of(replace(change, mean=-change.mean), self._scale))
            for context, change in drifts.items()
            if change.low > 0 or change.high < 0
        )


def _keeps(baseline: Candidate | None, best: Candidate | None, certainty: Certainty) -> bool:
    """Return whether the baseline stays: unless something is likely better, or the baseline itself is broken."""
    if baseline is None or best is None:
        return baseline is not None
    fails = baseline.failed and not best.failed
    exceeds = baseline.violation > best.violation
    return certainty == "unclear" and not fails and not exceeds


def pareto(observations: Observations) -> list[int]:
    """Return the settings of which none is better than another in every aim: their means, contexts weighed."""
    aims = observations.question.aims
    if len(aims) < 2:
        return []
    rows = observations.measured()
    exceeding = {row.setting for row in rows if observations.violation(row) > 0}
    settings = sorted({row.setting for row in rows} - exceeding) or sorted(exceeding)
    scales = [observations.scale_of(Judged(metric=aim.metric, goal=aim.goal)) for aim in aims]
    costs = np.column_stack([_mean_costs(observations, settings, scale) for scale in scales])
    return [
        setting
        for setting, own in zip(settings, costs, strict=True)
        if not ((costs <= own).all(axis=1) & (costs < own).any(axis=1)).any()
    ]


def _mean_costs(observations: Observations, settings: Sequence[int], scale: CostScale) -> Floats:
    """Return each setting's mean cost above what is typical in its contexts."""
    cells = observations.cells(observations.measured(), scale)
    typical = Standard.of(cells, len(observations.question.contexts)).typical
    above = cells.mean - typical[cells.context]
    return np.array([np.mean(above[cells.setting == setting]) for setting in settings])


def _nothing(context: Context | None, reason: str) -> Verdict:
    return Verdict(
        context=context,
        chosen=None,
        best=None,
        candidates=(),
        ties=(),
        certainty=None,
        basis="nothing",
        rounds=0,
        settles_at=None,
        reason=reason,
    )


def _rounded_up(count: int) -> int:
    """Return a budget as people write it."""
    digits = 10 ** max(len(str(count)) - 2, 0)
    return math.ceil(count / digits) * digits
