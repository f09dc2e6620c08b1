"""What fresh samples say: how much better than the baseline a setting is, and how sure that is.

Gains are differences of costs within rounds. Their 95 % interval is Student's t, with a variance that leans on all
contexts and on repeats of the search. A gain is *sure* if its interval excludes none: no model enters that. It is
*likely* if the model, its variance inflated, and the fresh samples together say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import t as student

from tunegym.tuning.inference.confirmation import Rounds
from tunegym.tuning.inference.coordinates import Floats, changes_from
from tunegym.tuning.inference.observations import Observations, Spread
from tunegym.tuning.inference.surrogate import INFLATION, Surrogate, difference_variance
from tunegym.tuning.model.trial import CONFIRM

CONFIDENCE = 0.95
WEIGHT = 8.0
"""Degrees of freedom that the common variance counts for in each context."""
LIKELY, EVEN = 0.8, 0.5

Certainty: TypeAlias = Literal["sure", "likely", "unclear"]


@dataclass(frozen=True)
class Estimate:
    """A mean with its variance and the variance's degrees of freedom."""

    mean: float
    variance: float
    degrees: float
    count: int

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        if self.degrees <= 0:
            return math.inf
        return float(student.ppf(0.5 + CONFIDENCE / 2, self.degrees)) * math.sqrt(self.variance)

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + self.half


@dataclass(frozen=True)
class Comparison:
    """A finalist beside the reference: the gain by fresh samples, and with the model what is expected."""

    setting: int
    fresh: Estimate
    expected: float
    precision: float  # of what is expected

    @property
    def chance(self) -> float:
        """The chance that it is better, by the model and the fresh samples together."""
        return float(student.cdf(self.expected * math.sqrt(self.precision), self.fresh.degrees))

    def reversed(self, reference: int) -> Comparison:
        """Return the reference beside the setting."""
        fresh = replace(self.fresh, mean=-self.fresh.mean)
        return replace(self, setting=reference, fresh=fresh, expected=-self.expected)

    def certainty(self) -> Certainty:
        """Say how sure it is that the setting is better."""
        if self.fresh.low > 0:
            return "sure"
        return "likely" if self.chance >= LIKELY else "unclear"


@dataclass(frozen=True)
class Decision:
    """The comparison of what is recommended, or looks best, in one context or over all, and its certainty."""

    chosen: Comparison
    certainty: Certainty
    ties: tuple[int, ...] = ()


class Jury:
    """Compares finalists with the reference of their context, the baseline or a runner-up, by the rounds."""

    def __init__(self, observations: Observations, surrogate: Surrogate) -> None:
        self._observations, self._surrogate = observations, surrogate
        self.rounds = Rounds.of(observations)
        self._costs = self._costs_by_round()
        self._contexts = observations.question.contexts
        self.arms = [self._arms(context) for context in range(len(self._contexts))]
        self._repeats = observations.repeats()
        self._pair = self._pooled_pairs()
        self._single = self._pooled_singles()

    def _costs_by_round(self) -> list[dict[tuple[int, int], float]]:
        scale = self._observations.scale
        costs: list[dict[tuple[int, int], float]] = []
        for measured in self.rounds.rounds:
            cells = [cell for cell, row in measured.items() if row.worked]
            values = self._observations.costs([measured[cell] for cell in cells], scale)
            costs.append(dict(zip(cells, map(float, values), strict=True)))
        return costs

    def _arms(self, context: int) -> tuple[int, ...]:
        """Return the arms of a context's rounds, the reference first; without those that failed in a round.

        Rounds of a search that was extended count beside the newer ones: the baseline is in all of them. Without a
        baseline only the last rounds count, and the reference is the arm that the search liked least. A last round that
        was cut off counts with the one before.
        """
        rounds = [{setting for setting, where in cells if where == context} for cells in self.rounds.rounds]
        rounds = [settings for settings in rounds if settings]
        if not rounds:
            return ()
        baseline = self._observations.baseline
        if baseline is not None:
            others = set().union(*rounds) - {baseline}
            return (baseline, *sorted(arm for arm in others if not self.rounds.failed(arm)))
        last = rounds[-1]
        before = rounds[-2] if len(rounds) > 1 else last
        arms = last if len(last) >= len(before) else before | last
        left = sorted(arm for arm in arms if not self.rounds.failed(arm))
        points = self._surrogate.points([self._observations.actions[arm] for arm in left])
        costs = self._surrogate.cost.means(self._surrogate.cost.reach(points))[context] if left else []
        return tuple(left[place] for place in np.argsort(costs)[::-1])

    def samples(self, setting: int, context: int) -> list[float]:
        """Return the costs of a setting in the rounds of a context."""
        return [costs[setting, context] for costs in self._costs if (setting, context) in costs]

    def pairs(self, setting: int, reference: int, context: int) -> Floats:
        """Return by how much a setting cost less than the reference in each round that has both."""
        both = [costs for costs in self._costs if (setting, context) in costs and (reference, context) in costs]
        return np.array([costs[reference, context] - costs[setting, context] for costs in both])

    def _pooled_pairs(self) -> Spread:
        """Return the spread of pairs over all contexts and the search's repeats."""
        every = self._observations.repeats(rounds=True)
        if every.is_exact:
            return Spread(0.0, every.degrees)
        total = Spread(2.0 * self._repeats.squares, self._repeats.degrees)
        for context, arms in enumerate(self.arms):
            for setting in arms[1:]:
                total += _spread(self.pairs(setting, arms[0], context))
        return total

    def _pooled_singles(self) -> Spread:
        total = self._repeats
        for context, arms in enumerate(self.arms):
            for setting in arms:
                total += _spread(np.array(self.samples(setting, context)))
        return total

    def value(self, setting: int, context: int) -> Estimate | None:
        """Return the typical cost of a setting by the rounds; None without any."""
        samples = np.array(self.samples(setting, context))
        return _moderated(samples, self._single) if len(samples) else None

    def _compared(self, setting: int, reference: int, context: int) -> Comparison | None:
        """Return a finalist beside the reference of a context; None with too few rounds."""
        pairs = self.pairs(setting, reference, context)
        if len(pairs) < 2 and not (len(pairs) and self._pair.is_exact):
            return None
        fresh = _moderated(pairs, self._pair)
        return self._combined(setting, reference, context, fresh)

    def _combined(self, setting: int, reference: int, context: int, fresh: Estimate) -> Comparison:
        actions = self._observations.actions
        points = self._surrogate.points([actions[reference], actions[setting]])
        mean, covariance = self._surrogate.beliefs(points, context)
        variance = INFLATION * difference_variance(covariance, 0, 1) + 1e-12
        own = 1.0 / max(fresh.variance, 1e-18)
        precision = own + 1.0 / variance
        expected = (fresh.mean * own + (mean[0] - mean[1]) / variance) / precision
        return Comparison(setting, fresh, float(expected), float(precision))

    # decisions ----------------------------------------------------------------------------------------

    def over(self, contexts: Sequence[int]) -> Decision | None:
        """Return the best of the settings that were compared in each of some contexts; None if there is none."""
        shared = set(self.arms[contexts[0]][1:]).intersection(*(self.arms[context][1:] for context in contexts))
        comparisons = [self.compare(setting, contexts) for setting in sorted(shared)]
        complete = [comparison for comparison in comparisons if comparison is not None]
        if not complete:
            return None
        best = _greatest([comparison for comparison in complete if comparison.certainty() != "unclear"] or complete)
        return Decision(best, best.certainty())

    def compare(self, setting: int, contexts: Sequence[int]) -> Comparison | None:
        """Return a finalist beside the references of some contexts: the weighted mean of its gains within them."""
        comparisons = [self._compared(setting, self.arms[context][0], context) for context in contexts]
        complete = [comparison for comparison in comparisons if comparison is not None]
        if len(complete) < len(comparisons):
            return None
        gains = np.array([comparison.fresh.mean for comparison in complete])
        parts = self._observations.question.parts(gains, contexts)
        variances = np.array([comparison.fresh.variance for comparison in complete])
        counts = [comparison.fresh.count for comparison in complete]
        degrees = min(WEIGHT, self._pair.degrees) + sum(count - 1 for count in counts)
        fresh = Estimate(float(parts @ gains), float(parts**2 @ variances), degrees, min(counts))
        expected = float(parts @ np.array([comparison.expected for comparison in complete]))
        spread = float(parts**2 @ np.array([1.0 / comparison.precision for comparison in complete]))
        return Comparison(setting, fresh, expected, 1.0 / max(spread, 1e-18))

    def within(self, context: int, overall: Decision | None) -> Decision | None:
        """Return the best setting of a context: never one that is worse on the evidence than the over-all one."""
        arms = self.arms[context]
        compared = [self._compared(setting, arms[0], context) for setting in arms[1:]]
        comparisons = [comparison for comparison in compared if comparison is not None]
        if not comparisons:
            return None
        if self._observations.baseline is None:
            best = _greatest(comparisons)
            winner = best if best.expected >= 0 else best.reversed(arms[0])
            return Decision(winner, winner.certainty())
        likely = [comparison for comparison in comparisons if self._certainty(comparison, overall) != "unclear"]
        if not likely:
            return Decision(_greatest(comparisons), "unclear")
        return self._nearest(likely, context, overall)

    def _nearest(self, likely: Sequence[Comparison], context: int, overall: Decision | None) -> Decision:
        """Return the setting that is nearest to the baseline of those that can't be told apart from the best.

        The over-all one is kept if it is the best: a context's answer is never worse on the evidence.
        """
        best = _greatest(likely)
        ties = [other for other in likely if other is best or self._is_tied(best, other, context)]
        is_shared = overall is not None and overall.chosen.setting == best.setting
        chosen = best if is_shared else min(ties, key=lambda other: self._changes(other.setting))
        others = tuple(other.setting for other in ties if other is not chosen)
        return Decision(chosen, self._certainty(chosen, overall), others)

    def _certainty(self, comparison: Comparison, overall: Decision | None) -> Certainty:
        """Say how sure a gain is; one that is sure over all is likely where nothing speaks against it."""
        certainty = comparison.certainty()
        backed = overall is not None and overall.certainty == "sure" and overall.chosen.setting == comparison.setting
        if certainty == "unclear" and backed and comparison.chance >= EVEN:
            return "likely"
        return certainty

    def _is_tied(self, best: Comparison, other: Comparison, context: int) -> bool:
        pairs = self.pairs(best.setting, other.setting, context)
        return len(pairs) > 1 and _moderated(pairs, self._pair).low <= 0

    def _changes(self, setting: int) -> int:
        baseline = self._observations.question.baseline
        return len(changes_from(baseline or {}, self._observations.actions[setting]))

    def drift(self) -> Estimate | None:
        """Return how much the baseline's cost rose from the search to the rounds, in the mean over contexts."""
        baseline, scale = self._observations.baseline, self._observations.scale
        rises: list[tuple[Estimate, Estimate]] = []
        for context in range(len(self._contexts)):
            rows = [row for row in self._observations.measured() if (row.setting, row.context) == (baseline, context)]
            early = self._observations.costs([row for row in rows if row.trial.phase != CONFIRM], scale)
            late = self._observations.costs([row for row in rows if row.trial.phase == CONFIRM], scale)
            if len(late) > 1 and len(early):
                rises.append((_moderated(early, self._single), _moderated(late, self._single)))
        if not rises:
            return None
        mean = sum(late.mean - early.mean for early, late in rises) / len(rises)
        variance = sum(late.variance + early.variance for early, late in rises) / len(rises) ** 2
        return Estimate(mean, variance, min(late.degrees for _, late in rises), len(rises))


def _greatest(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the comparison with the greatest expected gain."""
    return max(comparisons, key=lambda comparison: comparison.expected)


def _spread(samples: Floats) -> Spread:
    if len(samples) < 2:
        return Spread(0.0, 0.0)
    return Spread(float(((samples - samples.mean()) ** 2).sum()), len(samples) - 1.0)


def _moderated(samples: Floats, common: Spread) -> Estimate:
    """Return the mean of samples; their variance leans on the common one."""
    own = _spread(samples)
    weight = min(WEIGHT, common.degrees)
    degrees = weight + len(samples) - 1
    squares = own.squares + (weight * common.variance if weight else 0.0)
    variance = squares / degrees if degrees else math.inf
    return Estimate(float(samples.mean()), variance / len(samples), degrees, len(samples))


def rounds_needed(estimate: Estimate) -> int | None:
    """Return how many rounds in all would make a gain sure, if it is as it looks; None if that is out of reach."""
    if estimate.mean <= 0 or not math.isfinite(estimate.variance):
        return None
    variance = estimate.variance * estimate.count
    for rounds in (2**step for step in range(1, 9)):
        quantile = float(student.ppf(0.5 + CONFIDENCE / 2, max(estimate.degrees - estimate.count + rounds, 1)))
        if estimate.mean > 1.2 * quantile * math.sqrt(variance / rounds):
            return rounds
    return None
