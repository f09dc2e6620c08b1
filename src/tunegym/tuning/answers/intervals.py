"""Confidence intervals of means and of differences, from 1 to about 30 samples of each setting.

Programs are measured a few times each, and their noise is skewed and grows with the value. So the spread is *pooled*:
what the settings of one experiment spread by, relative to their means, is known from all of them together, and a
setting's own samples count beside it (the moderated t of Smyth, 2004, with a bounded number of prior degrees of
freedom). Student's t gives the width. Where all values have one sign the interval is that of the mean's logarithm
(delta method), which is longer on the side of the larger values, where skewed noise needs it; else it is symmetric, and
the pooled spread is absolute.

A sample is one independent measurement: the mean of a trial's repeats. Samples of two settings are *paired* if the k-th
ones were measured in one block, and so share what changes in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

PRIOR = 8.0
"""The most degrees of freedom that the other settings' spread counts for beside a setting's own."""
SLACK = 1e-9
"""Values that differ by a smaller share are the same: they were added up in another order."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and where the true one lies with the given confidence. Infinite bounds mean: unknown."""

    mean: float
    low: float
    high: float
    count: int  # independent samples behind it
    confidence: float

    @property
    def known(self) -> bool:
        """Whether it has bounds."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def mapped(self, slope: float, offset: float = 0.0) -> Interval:
        """The interval of ``slope * x + offset``."""
        low, high = sorted((slope * self.low + offset, slope * self.high + offset))
        return Interval(slope * self.mean + offset, low, high, self.count, self.confidence)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its squared standard error, and the degrees of freedom of that; no freedom means: error unknown."""

    mean: float
    variance: float
    freedom: float
    count: int
    log: bool = False  # the error is that of the logarithm

    def interval(self, confidence: float, comparisons: int = 1) -> Interval:
        """Student's t interval; one of several ``comparisons`` that hold together (Bonferroni) is wider."""
        if self.freedom <= 0:
            return Interval(self.mean, -math.inf, math.inf, self.count, confidence)
        away = math.sqrt(self.variance) * student_t(0.5 + 0.5 * (1 - (1 - confidence) / comparisons), self.freedom)
        if not self.log:
            return Interval(self.mean, self.mean - away, self.mean + away, self.count, confidence)
        factor = math.exp(min(away, 700.0))
        low, high = sorted((self.mean / factor, self.mean * factor))
        return Interval(self.mean, low, high, self.count, confidence)


@dataclass(frozen=True, slots=True)
class Spread:
    """The pooled variance of samples around the means of their settings, and its degrees of freedom."""

    variance: float
    freedom: int
    relative: bool  # to the means: then all values have one sign

    def estimate(self, values: Sequence[float]) -> Estimate:
        """The mean of one setting's samples."""
        mean = fmean(values)
        scale = abs(mean) if self.relative else 1.0
        own = math.fsum(((value - mean) / scale) ** 2 for value in values)
        alike = not 0 < own < self.variance * _least_squares(len(values) - 1)  # else the others spread in another way
        spread = self if alike else Spread(0.0, 0, self.relative)
        return spread._moderated(mean, own, len(values), 1.0, log=self.relative)

    def ratio(self, first: Sequence[float], second: Sequence[float]) -> Estimate:
        """The mean of ``first`` over that of ``second``, of paired samples; only for a relative spread."""
        one, two = fmean(first), fmean(second)
        return self._compared(one / two, [value / one for value in first], [value / two for value in second], log=True)

    def difference(self, first: Sequence[float], second: Sequence[float]) -> Estimate:
        """The mean of ``first`` minus that of ``second``, of paired samples."""
        one, two = fmean(first), fmean(second)
        if not self.relative:
            return self._compared(one - two, first, second, log=False)
        scale = math.hypot(one, two) / math.sqrt(2)
        found = self._compared(
            one - two, [value / scale for value in first], [value / scale for value in second], False
        )
        return Estimate(found.mean, found.variance * scale**2, found.freedom, found.count)

    def _compared(self, mean: float, first: Sequence[float], second: Sequence[float], log: bool) -> Estimate:
        if len(first) != len(second):
            parts = [
                self._moderated(fmean(some), _squares(some), len(some), 1.0, log=False) for some in (first, second)
            ]
            both = combined([(1.0, parts[0]), (-1.0, parts[1])])
            return Estimate(mean, both.variance, both.freedom, both.count, log)
        gaps = [one - two for one, two in zip(first, second, strict=True)]
        return self._moderated(mean, _squares(gaps), len(gaps), 2.0, log)

    def _moderated(self, mean: float, own: float, count: int, parts: float, log: bool) -> Estimate:
        """``own`` is the sum of squares of ``count`` samples, each of so many ``parts`` that spread independently."""
        prior = min(max(self.freedom - (count - 1), 0), PRIOR)
        freedom = prior + count - 1
        variance = (prior * parts * self.variance + own) / freedom if freedom else math.inf
        return Estimate(mean, variance / count, freedom, count, log)


def pooled(groups: Iterable[Sequence[float]]) -> Spread:
    """The spread of several settings' samples."""
    some = [group for group in groups if group]
    values = [value for group in some for value in group]
    relative = bool(values) and (min(values) > 0 or max(values) < 0)
    freedom = len(values) - len(some)
    scales = [abs(fmean(group)) if relative else 1.0 for group in some]
    squares = math.fsum(_squares(group) / scale**2 for group, scale in zip(some, scales, strict=True))
    return Spread(squares / freedom if freedom else math.inf, freedom, relative)


def combined(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """A weighted sum of independent estimates, with the degrees of freedom of Welch and Satterthwaite."""
    mean = math.fsum(weight * one.mean for weight, one in parts)
    count = min(one.count for _, one in parts)
    if any(one.freedom <= 0 for weight, one in parts if weight):
        return Estimate(mean, math.inf, 0.0, count)
    shares = [(weight**2 * one.variance * (one.mean**2 if one.log else 1.0), one.freedom) for weight, one in parts]
    variance = math.fsum(share for share, _ in shares)
    if variance == 0:
        return Estimate(mean, 0.0, min(freedom for _, freedom in shares), count)
    freedom = 1 / math.fsum((share / variance) ** 2 / own for share, own in shares if share)
    return Estimate(mean, variance, freedom, count)


def relative_spread(values: Sequence[float]) -> float:
    """The sample standard deviation over the mean; 0 if all values are the same, infinite around a mean of 0."""
    mean = fmean(values)
    deviation = math.sqrt(_squares(values) / max(len(values) - 1, 1))
    if deviation <= SLACK * abs(mean):
        return 0.0
    return deviation / abs(mean) if mean else math.inf


def student_t(probability: float, freedom: float) -> float:
    """The quantile of Student's t, for probabilities of at least a half (Hill, 1970, Algorithm 396)."""
    tails = 2 * (1 - probability)
    if freedom <= 1:
        return 1 / math.tan(tails * math.pi / 2)
    if freedom == 2:
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * tails) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tails / 2)
        y = x * x
        c += 0.3 * (freedom - 4.5) * (x + 0.6) if freedom < 5 else 0.0
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3) + 0.5 / (freedom + 4)) * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)


def _least_squares(freedom: int) -> float:
    """What chi-squared falls below once in a thousand times (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * max(freedom, 1))
    return freedom * max(0.0, 1 - part - 3.09 * math.sqrt(part)) ** 3


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)
