"""The pruners: the contract of all, and what each of them compares with."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.randomness import unit
from tunegym.testing.pruners import PrunerSuite
from tunegym.tuning.pruners.hyperband import HyperbandConfig, HyperbandPruner
from tunegym.tuning.pruners.median import MedianConfig, MedianPruner

Curve = list[tuple[int, float]]


def suite(tested: Any, **settings: Any) -> Any:
    """A test class for a pruner."""
    return type("Suite", (PrunerSuite,), {"pruner": tested, "settings": settings, "__module__": __name__})


TestMedian = suite(MedianPruner)
TestMedianWithSettings = suite(MedianPruner, startup_trials=2, warmup_steps=4)
TestHyperband = suite(HyperbandPruner)
TestHyperbandWithSettings = suite(HyperbandPruner, min_steps=2, reduction=2, max_steps=30)


# median ---------------------------------------------------------------------------------------------------


def by_hand(past: list[Curve], curve: Curve) -> str | None:
    """The median pruner's answer, from its definition."""
    step = curve[-1][0]
    had = [max(r for s, r in one if s <= step) for one in past if any(s <= step for s, _ in one)]
    best = max(reward for _, reward in curve)
    if step <= 0 or not had or best >= statistics.median(had):
        return None
    return f"{best:.6g} is below the median {statistics.median(had):.6g} of {len(had)} trials"


rewards = st.integers(-1000, 1000).map(lambda value: value / 8)
curves = st.lists(st.tuples(st.integers(-5, 30), rewards), min_size=1, max_size=20)
reports = st.lists(st.tuples(st.sampled_from([101, 102, 103]), st.integers(-5, 30), rewards), min_size=1, max_size=40)


@given(st.lists(curves, min_size=1, max_size=10), reports)
def test_the_median_is_that_of_the_measured_trials(past: list[Curve], reports: list[tuple[int, int, float]]) -> None:
    """In whatever order steps come, with trials that close in between."""
    pruner = MedianPruner(MedianConfig(startup_trials=1))
    running: dict[int, Curve] = {}
    for index, (number, step, reward) in enumerate(reports):
        if index < len(past):
            pruner.closed(index, past[index], "measured")
        curve = running.setdefault(number, [])
        curve.append((step, reward))
        assert pruner.judge(number, curve) == by_hand(past[: index + 1], curve)


def test_startup_and_warmup_prune_nothing() -> None:
    pruner = MedianPruner(MedianConfig(startup_trials=3, warmup_steps=2))
    for number, status in enumerate(("measured", "measured", "pruned", "failed", "timed_out", "cancelled"), start=1):
        pruner.closed(number, [(1, 1.0)], status)
    assert pruner.judge(8, [(3, 0.0)]) is None, "only measured trials count"
    pruner.closed(7, [(1, 1.0)], "measured")
    assert [pruner.judge(9, [(step, 0.0)]) is None for step in (1, 2, 3)] == [True, True, False]


# hyperband ------------------------------------------------------------------------------------------------

RUNGS = [(1, 3, 9), (3, 9), (9,), ()]
"""Of each bracket, for 27 steps from 1, three by three."""


@pytest.fixture
def hyperband() -> HyperbandPruner:
    return HyperbandPruner(HyperbandConfig(max_steps=27))


def run(pruner: HyperbandPruner, number: int, level: float, steps: Any = range(1, 28)) -> int | None:
    """One whole trial of a flat curve; the step at which it was pruned."""
    curve: Curve = []
    for step in steps:
        curve.append((step, level))
        if pruner.judge(number, curve) is not None:
            pruner.closed(number, curve, "pruned")
            return step
    pruner.closed(number, curve, "measured")
    return None


def bracket(number: int) -> int:
    """The bracket of a trial among four, by the shares 27, 12, 6 and 4."""
    place = unit(0, "hyperband", number) * 49
    return next(index for index, edge in enumerate((27, 39, 45, 49)) if place < edge)


def in_first_bracket(count: int) -> list[int]:
    return [number for number in range(1, 5000) if bracket(number) == 0][:count]


def test_trials_end_at_the_rungs_of_their_bracket(hyperband: HyperbandPruner) -> None:
    ended: dict[int, Counter[int]] = {index: Counter() for index in range(4)}
    for number in range(1, 1001):
        step = run(hyperband, number, unit(5, "level", number))
        if step is not None:
            ended[bracket(number)][step] += 1
    for index, rungs in enumerate(RUNGS):
        assert set(ended[index]) == set(rungs)


def test_about_one_in_three_continues(hyperband: HyperbandPruner) -> None:
    ended = Counter(run(hyperband, number, unit(6, "level", number)) for number in in_first_bracket(600))
    assert 0.25 < 1 - ended[1] / 600 < 0.45
    assert ended[None] < 60


def test_a_rung_with_few_trials_ends_none(hyperband: HyperbandPruner) -> None:
    """Running trials count at once."""
    first, second, third, fourth = in_first_bracket(4)
    assert hyperband.judge(first, [(1, 5.0)]) is None
    assert run(hyperband, second, 4.0) is None
    assert hyperband.judge(third, [(1, 1.0)]) == "1 is not among the best of 3 trials at rung 1"
    assert run(hyperband, fourth, 5.0) is None, "as good as the best"


@pytest.mark.parametrize(("status", "counts"), [("pruned", True), ("failed", False)])
def test_pruned_trials_count_and_failed_ones_do_not(hyperband: HyperbandPruner, status: str, counts: bool) -> None:
    *others, last = in_first_bracket(3)
    for number in others:
        hyperband.judge(number, [(1, 5.0)])
        hyperband.closed(number, [(1, 5.0)], status)
    assert (hyperband.judge(last, [(1, 1.0)]) is not None) == counts


def test_without_max_steps_the_longest_measured_trial_counts() -> None:
    """Until there is one no trial is judged, and a trial is never ended at its last step."""
    pruner = HyperbandPruner(HyperbandConfig())
    for number in range(1, 10):
        assert all(pruner.judge(number, [(step, -float(number))]) is None for step in range(1, 28))
    assert run(pruner, 10, 100.0) is None
    assert {run(pruner, number, -1.0 - number) for number in range(11, 200)} == {1, 3, 9, None}


def test_a_rung_is_reached_with_the_first_report_at_or_above_it() -> None:
    pruner = HyperbandPruner(HyperbandConfig(max_steps=100, min_steps=10))
    steps = (4, 25, 12, 70, 100)
    assert {run(pruner, number, unit(7, "level", number), steps) for number in range(1, 500)} == {None, 25, 70, 100}
