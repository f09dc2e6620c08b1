"""The answer of an experiment: which setting to use over all and in each context, how much better, and how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr

from tunegym.tuning.inference.confirmation import Nomination
from tunegym.tuning.inference.coordinates import Floats, changes_from
from tunegym.tuning.inference.decision import LIKELY, Certainty, Comparison, Decision, Estimate, Jury, rounds_needed
from tunegym.tuning.inference.observations import CostScale, Observations, Question, Row
from tunegym.tuning.inference.process import one_thread
from tunegym.tuning.inference.surrogate import INFLATION, Standard, Surrogate, difference_variance
from tunegym.tuning.model.scenario import Judged, OverContexts
from tunegym.tuning.model.trial import CONFIRM, Trial, samples_of
from tunegym.tuning.model.values import Action, Context, counted

FEWEST = 2
"""Measurements without which nothing is recommended."""
DRIFT = 1.5
"""A drift is told if it is this many times as large as half of its interval: once in 300 runs without any."""
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
    changes: Action
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
    chosen: Candidate | None = None
    best: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()  # the best first, the baseline last
    ties: tuple[Action, ...] = ()
    certainty: Certainty | None = None
    basis: Basis = "nothing"
    rounds: int = 0
    settles_at: int | None = None
    reason: str = ""  # why nothing can be said
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
class Answer:
    """What an experiment found.

    ``is_exact``: every context that can be drawn is represented. ``drift`` is how the baseline changed from the search
    to the rounds, if it surely did.
    """

    overall: Verdict
    per_context: tuple[Verdict, ...]
    baseline: Action | None
    metric: str | None
    goal: str
    is_exact: bool
    over_contexts: OverContexts
    drift: Gain | None
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
            self._nomination = Nomination(self.surrogate, self._observations, 0, self._known, self._measured(own))

    def _measured(self, own: Sequence[Action | None]) -> list[Action | None]:
        """Return a policy's choices by context, as far as they were measured there."""
        cells = {(row.setting, row.context) for row in self._observations.measured()}
        found = [None if action is None else self._observations.find(action) for action in own]
        return [action if (found[context], context) in cells else None for context, action in enumerate(own)]

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

    def front(self) -> list[Candidate]:
        """Return the Pareto set of several objectives."""
        every = range(len(self.question.contexts))
        return [self._evidence(setting, every, None, None) for setting in pareto(self._observations)]

    @one_thread
    def verdict(self, contexts: Sequence[int]) -> Verdict:
        """Return the answer in one represented context, or over several."""
        if self.surrogate is None:
            reason = f"{counted(self._done, 'trial')} gave {counted(self._usable, 'measurement')}"
            if self._done and not self.question.space.knobs:
                reason = "there is no knob"
            return Verdict(context=self._where(contexts), reason=reason)
        overall = self._jury.over(range(len(self.question.contexts)))
        decision = self._jury.within(contexts[0], overall) if len(contexts) == 1 else self._jury.over(contexts)
        return self._by_model(contexts) if decision is None else self._by_rounds(contexts, decision)

    def _where(self, contexts: Sequence[int]) -> Context | None:
        return self.question.contexts.contexts[contexts[0]] if len(contexts) == 1 else None

    def _by_rounds(self, contexts: Sequence[int], decision: Decision) -> Verdict:
        """Answer from fresh samples."""
        chosen = decision.chosen
        arms = [self._jury.arms[context] for context in contexts]
        others = sorted(set(arms[0]).intersection(*arms) - {chosen.setting, self._observations.baseline})
        compared = [self._jury.compare(setting, contexts) for setting in others]
        finalists = [
            self._finalist(comparison, comparison.certainty(), contexts) for comparison in compared if comparison
        ]
        return self._verdict(
            contexts,
            [self._finalist(chosen, decision.certainty, contexts), *finalists],
            ties=tuple(self._observations.actions[setting] for setting in decision.ties),
            backed=decision.certainty != chosen.certainty(),
            basis="rounds",
            rounds=chosen.fresh.count,
            settles_at=self._settles_at(decision),
        )

    def _by_model(self, contexts: Sequence[int]) -> Verdict:
        """Answer from the search alone: never sure."""
        setting = self._nomination.best(contexts)
        if setting is None:
            return self._verdict(contexts, [], basis="model")
        estimate, chance = self._expected(setting, contexts)
        gain = None if estimate is None else Gain.of(estimate, self._scale)
        certainty: Certainty = "likely" if chance >= LIKELY else "unclear"
        return self._verdict(contexts, [self._evidence(setting, contexts, gain, certainty)], basis="model")

    def _verdict(self, contexts: Sequence[int], finalists: Sequence[Candidate], **details: Any) -> Verdict:
        """Return a verdict on finalists, the best first; the baseline stays unless the best is likely better."""
        best = finalists[0] if finalists else None
        baseline = None
        if self._observations.baseline is not None:
            baseline = self._evidence(self._observations.baseline, contexts, None, None)
        where = self._where(contexts)
        if best is None and (baseline is None or not baseline.trials):
            return Verdict(context=where, reason="no setting worked there")
        return Verdict(
            context=where,
            chosen=baseline if _stays(baseline, best) else best,
            best=best,
            candidates=(*finalists, *([baseline] if baseline is not None else [])),
            certainty=None if best is None else best.certainty,
            **details,
        )

    def _finalist(self, comparison: Comparison, certainty: Certainty, contexts: Sequence[int]) -> Candidate:
        """Return a finalist's evidence; the gain is by fresh samples alone."""
        gain = Gain.of(comparison.fresh, self._scale) if self.question.baseline is not None else None
        return self._evidence(comparison.setting, contexts, gain, certainty)

    def _settles_at(self, decision: Decision) -> int | None:
        """Return the budget with which an unclear gain would probably be sure."""
        fresh = decision.chosen.fresh
        rounds = None if decision.certainty == "sure" else rounds_needed(fresh)
        if rounds is None:
            return None
        arms = max(map(len, self._jury.rounds.rounds[-2:]))
        share = sum(row.trial.phase == CONFIRM for row in self._observations.rows) / self._done
        total = self._done + math.ceil(max(rounds - fresh.count, 1) * arms / share)
        digits = 10 ** max(len(str(total)) - 2, 0)
        return math.ceil(total / digits) * digits if total <= MOST_GROWTH * self._done else None

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
        spreads = np.array([difference_variance(covariance, 0, 1) for _, covariance in beliefs])
        parts = self.question.parts(gains, contexts)
        variance = max(INFLATION * float(parts**2 @ spreads), 1e-12)
        mean = float(parts @ gains)
        return Estimate(mean, variance, math.inf, 0), float(ndtr(mean / math.sqrt(variance)))

    # evidence -----------------------------------------------------------------------------------------

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

    def _changes(self, action: Action) -> Action:
        baseline = self.question.baseline
        if baseline is None:
            return dict(action)
        return changes_from(baseline, action)

    def _drift(self) -> Gain | None:
        """Return how the baseline surely changed."""
        rise = None if self.surrogate is None else self._jury.drift()
        if rise is None or abs(rise.mean) <= DRIFT * rise.half:
            return None
        return Gain.of(replace(rise, mean=-rise.mean), self._scale)


def _stays(baseline: Candidate | None, best: Candidate | None) -> bool:
    """Return whether the baseline stays: unless something is likely better, or the baseline itself is broken."""
    if baseline is None or best is None:
        return baseline is not None
    fails = baseline.failed and not best.failed
    return best.certainty == "unclear" and not fails and baseline.violation <= best.violation


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
    typical = Standard.of(cells.mean, cells.context, len(observations.question.contexts)).typical
    above = cells.mean - typical[cells.context]
    return np.array([above[cells.setting == setting].mean() for setting in settings], dtype=float)
