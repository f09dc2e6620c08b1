"""Intervals: they contain the mean, follow the scale, get narrower with more samples, and cover what they promise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.answers.intervals import Estimate, combined, pooled, relative_spread, student_t

POSITIVE = st.lists(st.floats(0.1, 1e6), min_size=2, max_size=30)
ANY = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 3, 3.18245),
        (0.975, 10, 2.22814),
        (0.9, 5, 1.47588),
        (0.995, 30, 2.75),
    ],
)
def test_quantiles_of_student_t(probability: float, freedom: float, expected: float) -> None:
    assert student_t(probability, freedom) == pytest.approx(expected, rel=1e-4)


@given(POSITIVE, st.floats(0.01, 100), st.booleans())
def test_an_interval_contains_its_mean_and_follows_the_scale(values: list[float], scale: float, negative: bool) -> None:
    scale = -scale if negative else scale
    found = pooled([values]).estimate(values).interval(0.95)
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(fmean(values))
    scaled = [scale * value for value in values]
    again, mapped = pooled([scaled]).estimate(scaled).interval(0.95), found.mapped(scale)
    assert (again.low, again.high) == pytest.approx((mapped.low, mapped.high), rel=1e-6)


@given(ANY)
def test_values_of_both_signs_have_a_symmetric_interval(values: list[float]) -> None:
    values = [*values, -1.0, 1.0]
    found = pooled([values]).estimate(values).interval(0.95)
    assert found.high - found.mean == pytest.approx(found.mean - found.low, rel=1e-6, abs=1e-6)
    assert found.high - found.mean == pytest.approx(
        student_t(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values)), rel=1e-6
    )


@given(POSITIVE)
def test_more_confidence_and_more_comparisons_are_wider(values: list[float]) -> None:
    one = pooled([values]).estimate(values)
    widths = [one.interval(c, k).high - one.interval(c, k).low for c, k in ((0.8, 1), (0.95, 1), (0.95, 4), (0.99, 4))]
    assert widths == sorted(widths)


def test_what_is_unknown_and_what_is_exact() -> None:
    assert not pooled([[3.0]]).estimate([3.0]).interval(0.95).known
    found = pooled([[3.0], [1.0, 1.0, 1.0]]).estimate([3.0]).interval(0.95)
    assert (found.low, found.mean, found.high) == (3.0, 3.0, 3.0), "the metric is deterministic"
    found = pooled([[3.0], [1.0, 1.1, 0.9]]).estimate([3.0]).interval(0.95)
    assert 0 < found.low < 3 < found.high < math.inf, "the others' spread says how far it may be off"
    assert relative_spread([2.0, 2.0]) == 0
    assert relative_spread([-1.0, 1.0]) == math.inf
    assert relative_spread([9.0, 11.0]) == pytest.approx(math.sqrt(2) / 10)


def test_a_spread_that_is_not_that_of_others_stays_its_own() -> None:
    """Noise that doesn't grow with the value: relative to its mean, the small one spreads fifty times as much."""
    small, large = [1.0 + 0.5 * (-1) ** k for k in range(8)], [50.0 + 0.5 * (-1) ** k for k in range(8)]
    found = pooled([small, large]).estimate(large).interval(0.95)
    assert found.high - found.low < 1.5 * 2 * student_t(0.975, 7) * stdev(large) / math.sqrt(8)


def test_pairs_share_what_changes_in_time() -> None:
    drift = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    one, two = [10 + d + 0.01 * (-1) ** k for k, d in enumerate(drift)], [11 + d for d in drift]
    spread = pooled([one, two])
    paired, apart = spread.difference(two, one).interval(0.95), spread.difference(two, one[:-1]).interval(0.95)
    assert paired.high - paired.low < apart.high - apart.low
    assert spread.ratio(two, one).mean == pytest.approx(fmean(two) / fmean(one))


def test_a_sum_over_contexts() -> None:
    parts = [(0.5, Estimate(2.0, 1.0, 5, 6)), (0.5, Estimate(4.0, 1.0, 5, 6))]
    found = combined(parts)
    assert (found.mean, found.variance, found.freedom) == (3.0, 0.5, pytest.approx(10))
    assert combined([(1.0, Estimate(2.0, 0.0, 0, 1))]).freedom == 0, "of what is unknown, the sum is, too"


Draw = Callable[[random.Random], float]
NOISES: dict[str, tuple[Draw, float]] = {
    "lognormal 15 %": (lambda r: math.exp(r.gauss(0, 0.15) - 0.15**2 / 2), 0.92),
    "lognormal 50 %": (lambda r: math.exp(r.gauss(0, 0.5) - 0.5**2 / 2), 0.89),
    "shifted exponential": (lambda r: 0.8 + 0.2 * r.expovariate(1), 0.89),
    "Student t, 3 degrees": (lambda r: 1 + 0.1 * r.gauss(0, 1) / math.sqrt(r.gammavariate(1.5, 2) / 3), 0.92),
}


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("count", [3, 6, 20])
def test_coverage_of_a_pooled_interval(name: str, count: int) -> None:
    """Four settings of different means, the first of which is reported."""
    draw, least = NOISES[name]
    source = random.Random(f"{name} {count}")
    covered, wider = 0, []
    for _ in range(600):
        groups: list[Sequence[float]] = [[m * draw(source) for _ in range(count)] for m in (1.0, 1.1, 1.2, 2.0)]
        found = pooled(groups).estimate(groups[0]).interval(0.95)
        covered += found.low <= 1.0 <= found.high
        plain = student_t(0.975, count - 1) * stdev(groups[0]) / math.sqrt(count)
        wider.append((found.high - found.low) / 2 / plain)
    assert covered / 600 >= least
    assert sorted(wider)[300] <= 1.5
