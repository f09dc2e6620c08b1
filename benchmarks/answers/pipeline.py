"""One search with many confirmations: what each answer claims, beside the truth.

The search is made once. Its rounds are then measured again and again, as if the run had been confirmed on other days.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np

from benchmarks.families.catalog import family as family_of
from benchmarks.families.family import Family
from benchmarks.searchers import Bayes, StudyPerContext, allow, closed_trial, mean_regret, question_of, search
from tunegym.tuning.inference.confirmation import Confirmation, reserve
from tunegym.tuning.inference.decision import Certainty, Decision, Jury
from tunegym.tuning.inference.observations import Observations
from tunegym.tuning.inference.surrogate import Surrogate
from tunegym.tuning.model.trial import BASELINE, CONFIRM, Trial
from tunegym.tuning.model.values import Action, Context, exact_key

SHARE = 0.2
"""Share of the budget that the confirmation gets: the product's default."""


@dataclass(frozen=True)
class Claim:
    """An answer beside the truth: in one context, or over all of several (context None).

    Attributes:
        certainty: None where nothing was confirmed: the baseline stays.
        gain: the true gain of the setting that was compared.
        covers_gain: whether the gain's interval holds it.
        covers_value: whether the interval of the recommended setting's metric holds the truth.
        flattery: how much better the reported metric of the recommended setting looks than it is.
        regret: the true regret of the recommended setting.
        best_gain: the true gain of the optimum.
    """

    context: int | None
    certainty: Certainty | None
    gain: float
    covers_gain: bool | None
    covers_value: bool | None
    flattery: float | None
    regret: float
    best_gain: float

    @property
    def is_likely(self) -> bool:
        """Whether the answer says that the setting is at least likely better."""
        return self.certainty in ("sure", "likely")

    @property
    def is_wrong(self) -> bool:
        """Whether a setting that is no better than the baseline is called sure."""
        return self.certainty == "sure" and self.gain <= 1.0 + 1e-9


@dataclass(frozen=True)
class Run:
    """The claims after one search, and what Optuna's TPE gives with as many measurements and its own best."""

    claims: tuple[Claim, ...]
    tpe_regret: float
    tpe_flattery: float


def run(name: str, seed: int, confirmations: int) -> Run:
    """Search once, confirm often."""
    family = family_of(name)
    searched = _Searched(family, seed)
    claims = [claim for redraw in range(confirmations) for claim in searched.claims(redraw)]
    tpe = StudyPerContext(family, seed, "tpe")
    search(tpe, family, seed, family.trials)
    return Run(tuple(claims), mean_regret(tpe, family), _flattery(tpe, family))


def _flattery(tpe: StudyPerContext, family: Family) -> float:
    """How much better the best observed metrics look than they are, in the mean over contexts."""
    flatteries = []
    for context, weight in family.contexts:
        action, metric = tpe.observed.best(context)
        truth = family.truth(action, context)
        assert truth is not None
        flatteries.append(weight * (family.ratio(truth, metric) - 1.0))
    return math.fsum(flatteries)


class _Searched:
    """A search that has ended, ready to be confirmed."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family, self._seed = family, seed
        searcher, allowance = _search(family, seed)
        self._trials, self._question = searcher.trials, searcher.question
        self._plan = Confirmation(self._question, self._trials, allowance, seed, allow)
        # The model of the answer: the rounds are no part of it, so that one fit serves all confirmations.
        self._surrogate = Surrogate(Observations(self._question, self._trials))

    def claims(self, redraw: int) -> list[Claim]:
        """The answer after the rounds of one confirmation."""
        observations = Observations(self._question)
        for action in self._surrogate.observations.actions:
            observations.setting(action)
        for trial in [*self._trials, *self._rounds(redraw)]:
            observations.add(trial)
        return _Judged(self._family, observations, Jury(observations, self._surrogate)).claims()

    def _rounds(self, redraw: int) -> list[Trial]:
        """Measure the rounds that the plan asks for."""
        noise = np.random.default_rng([self._seed, 6, redraw])
        plan = copy.deepcopy(self._plan)
        trials: list[Trial] = []
        while cells := plan.next_round():
            for action, context in cells:
                number = len(self._trials) + len(trials) + 1
                metric = self._family.measure(action, context, noise, number / self._family.trials)
                trials.append(closed_trial(number, context, action, metric, CONFIRM))
            plan.add(trials[-len(cells) :])
        return trials


def _search(family: Family, seed: int) -> tuple[Bayes, int]:
    """Measure the baseline in each context, then search; the rest of the budget is the confirmation's."""
    allowance = reserve(question_of(family, with_baseline=True), family.trials, SHARE)
    searcher = Bayes(family, seed, family.trials - allowance - len(family.contexts), with_baseline=True)
    noise = np.random.default_rng([seed, 5])
    for number, (context, _) in enumerate(family.contexts, start=1):
        metric = family.measure(family.baseline, context, noise, number / family.trials)
        searcher.add(closed_trial(number, context, family.baseline, metric, BASELINE))
    search(searcher, family, seed, family.trials - allowance, first=len(family.contexts) + 1)
    return searcher, allowance


class _Judged:
    """What a jury says after its rounds, beside the truth."""

    def __init__(self, family: Family, observations: Observations, jury: Jury) -> None:
        self._family, self._jury = family, jury
        self._actions = observations.actions
        self._scale = observations.scale
        self._overall = jury.over(range(len(family.contexts)))

    def claims(self) -> list[Claim]:
        """The claims of every context, and over all if there are several."""
        claims = [self._within(index, context) for index, (context, _) in enumerate(self._family.contexts)]
        return claims if len(claims) == 1 else [*claims, self._over_all()]

    def _within(self, index: int, context: Context) -> Claim:
        decision = self._jury.within(index, self._overall)
        action = self._recommended(decision)
        truth = self._family.truth(action, context)
        assert truth is not None
        gain = self._family.gain(self._compared(decision), context)
        reported = None if decision is None else self._jury.value(self._setting(decision), index)
        true_cost = self._scale.cost(truth)
        return Claim(
            context=index,
            certainty=None if decision is None else decision.certainty,
            gain=gain,
            covers_gain=_covers(decision, math.log(gain)),
            covers_value=None if reported is None else reported.low <= true_cost <= reported.high,
            flattery=None if reported is None else self._scale.value(reported.mean) / truth - 1.0,
            regret=self._family.regret(action, context),
            best_gain=self._family.gain(self._family.baseline, context)
            * (1.0 + self._family.regret(self._family.baseline, context)),
        )

    def _over_all(self) -> Claim:
        """The weighted mean of the gains, on the scale of ratios."""
        contexts, decision = self._family.contexts, self._overall
        compared, action = self._compared(decision), self._recommended(decision)
        gain = math.fsum(weight * math.log(self._family.gain(compared, context)) for context, weight in contexts)
        return Claim(
            context=None,
            certainty=None if decision is None else decision.certainty,
            gain=math.exp(gain),
            covers_gain=_covers(decision, gain),
            covers_value=None,
            flattery=None,
            regret=math.fsum(weight * self._family.regret(action, context) for context, weight in contexts),
            best_gain=1.0,
        )

    def _compared(self, decision: Decision | None) -> Action:
        return self._family.baseline if decision is None else self._actions[decision.chosen.setting]

    def _recommended(self, decision: Decision | None) -> Action:
        """The setting that was compared if it is at least likely better, else the baseline."""
        is_kept = decision is None or decision.certainty == "unclear"
        return self._family.baseline if is_kept else self._compared(decision)

    def _setting(self, decision: Decision) -> int:
        """The index of what is recommended."""
        keys = [exact_key(action) for action in self._actions]
        return keys.index(exact_key(self._recommended(decision)))


def _covers(decision: Decision | None, gain: float) -> bool | None:
    if decision is None:
        return None
    fresh = decision.chosen.fresh
    return fresh.low <= gain <= fresh.high
