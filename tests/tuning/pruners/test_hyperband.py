from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from tunegym.core.randomness import unit
from tunegym.testing.pruners import PrunerSuite
from tunegym.tuning.pruners.hyperband import HyperbandConfig, HyperbandPruner

RUNGS = [(1, 3, 9), (3, 9), (9,), ()]
"""Of each bracket, for 27 steps from 1, three by three."""


class TestHyperband(PrunerSuite):
    pruner = HyperbandPruner


class TestHyperbandWithSettings(PrunerSuite):
    pruner = HyperbandPruner
    settings: ClassVar[dict[str, Any]] = {"min_steps": 2, "reduction": 2, "max_steps": 30}


def run(pruner: HyperbandPruner, number: int, level: float, steps: int = 27) -> int | None:
    """One whole trial of a flat curve; the step at which it was pruned."""
    curve: list[tuple[int, float]] = []
    for step in range(1, steps + 1):
        curve.append((step, level))
        if pruner.judge(number, curve) is not None:
            pruner.closed(number, curve, "pruned")
            return step
    pruner.closed(number, curve, "measured")
    return None


def bracket(number: int, seed: int = 0) -> int:
    """The bracket of a trial among four, by the shares 27, 12, 6 and 4."""
    place = unit(seed, "hyperband", number) * 49
    return next(index for index, edge in enumerate((27, 39, 45, 49)) if place < edge)


def numbers_in(wanted: int, count: int) -> list[int]:
    return [number for number in range(1, 5000) if bracket(number) == wanted][:count]


def test_trials_end_at_rungs_only() -> None:
    """At those of the bracket that belongs to the number, and never in the last bracket."""
    pruner = HyperbandPruner(HyperbandConfig(max_steps=27))
    ended: dict[int, Counter[int]] = {index: Counter() for index in range(4)}
    for number in range(1, 1001):
        step = run(pruner, number, unit(5, "level", number))
        if step is not None:
            ended[bracket(number)][step] += 1
    for index, rungs in enumerate(RUNGS):
        assert set(ended[index]) == set(rungs)


def test_about_one_in_three_goes_on() -> None:
    pruner = HyperbandPruner(HyperbandConfig(max_steps=27))
    numbers = numbers_in(0, 600)
    ended = Counter(run(pruner, number, unit(6, "level", number)) for number in numbers)
    assert 0.25 < 1 - ended[1] / 600 < 0.45
    assert ended[None] < 60


def test_too_few_to_compare_with() -> None:
    """Fewer than ``reduction`` at a rung: every trial goes on. Running trials count at once."""
    pruner = HyperbandPruner(HyperbandConfig(max_steps=27))
    first, second, third, fourth = numbers_in(0, 4)
    assert pruner.judge(first, [(1, 5.0)]) is None
    assert run(pruner, second, 4.0) is None
    assert pruner.judge(third, [(1, 1.0)]) == "1 is not among the best of 3 trials at rung 1"
    assert run(pruner, fourth, 5.0) is None  # as good as the best


def test_pruned_trials_count_and_failed_ones_dont() -> None:
    for status, ended in (("pruned", True), ("failed", False)):
        pruner = HyperbandPruner(HyperbandConfig(max_steps=27))
        *others, last = numbers_in(0, 3)
        for number in others:
            pruner.judge(number, [(1, 5.0)])
            pruner.closed(number, [(1, 5.0)], status)
        assert (pruner.judge(last, [(1, 1.0)]) is not None) == ended


def test_without_max_steps_the_longest_measured_one_counts() -> None:
    """Until there is one no trial is judged, and a trial is never ended at its last step."""
    pruner = HyperbandPruner(HyperbandConfig())
    for number in range(1, 10):
        for step in range(1, 28):
            assert pruner.judge(number, [(step, -float(number))]) is None
    assert run(pruner, 10, 100.0) is None
    ended = Counter(run(pruner, number, -1.0 - number) for number in range(11, 200))
    assert set(ended) == {1, 3, 9, None}


def test_steps_that_jump() -> None:
    """A rung is reached with the first report at or above it."""
    pruner = HyperbandPruner(HyperbandConfig(max_steps=100, min_steps=10))
    ended: dict[int, int | None] = dict.fromkeys(range(1, 500))
    for number in ended:
        curve: list[tuple[int, float]] = []
        for step in (4, 25, 12, 70, 100):
            curve.append((step, unit(7, "level", number)))
            if pruner.judge(number, curve) is not None:
                ended[number] = step
                break
        pruner.closed(number, curve, "pruned" if ended[number] else "measured")
    assert {step for step in ended.values() if step} == {25, 70, 100}


@pytest.mark.parametrize("settings", [{"min_steps": 0}, {"reduction": 1}, {"max_steps": 1}])
def test_impossible_settings(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        HyperbandConfig(**settings)
