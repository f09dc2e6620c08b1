from __future__ import annotations

import statistics
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.testing.pruners import PrunerSuite
from tunegym.tuning.pruners import median
from tunegym.tuning.pruners.median import MedianConfig, MedianPruner

finite = st.integers(-1000, 1000).map(lambda value: value / 8)
curves = st.lists(st.tuples(st.integers(-5, 30), finite), min_size=1, max_size=20)


class TestMedian(PrunerSuite):
    pruner = MedianPruner


class TestMedianWithSettings(PrunerSuite):
    pruner = MedianPruner
    settings: ClassVar[dict[str, Any]] = {"startup_trials": 2, "warmup_steps": 4}


def trained(*levels: float, steps: int = 5, **settings: int) -> MedianPruner:
    """A pruner that has seen one flat measured trial per level."""
    pruner = MedianPruner(MedianConfig(**settings))
    for number, level in enumerate(levels, start=1):
        pruner.closed(number, [(step, level) for step in range(1, steps + 1)], "measured")
    return pruner


def test_no_trial_is_judged_before_the_startup_is_over() -> None:
    pruner = trained(1.0, 2.0, startup_trials=3)
    assert pruner.judge(3, [(1, 0.0)]) is None
    pruner.closed(3, [(1, 3.0)], "measured")
    assert pruner.judge(4, [(1, 0.0)]) is not None


def test_no_trial_is_judged_while_warming_up() -> None:
    pruner = trained(1.0, startup_trials=1, warmup_steps=2)
    assert [pruner.judge(2, [(step, 0.0)]) is None for step in (1, 2, 3)] == [True, True, False]


def test_only_measured_trials_count() -> None:
    pruner = trained(1.0, startup_trials=1)
    for number, status in enumerate(("pruned", "failed", "timed_out", "cancelled"), start=2):
        pruner.closed(number, [(1, 100.0)], status)
    assert pruner.judge(9, [(1, 2.0)]) is None


class ByHand:
    """The same with everything worked out again at every step."""

    def __init__(self) -> None:
        self.past: list[list[tuple[int, float]]] = []

    def judge(self, curve: list[tuple[int, float]]) -> str | None:
        step = curve[-1][0]
        had = [max(r for s, r in past if s <= step) for past in self.past if any(s <= step for s, _ in past)]
        best = max(reward for _, reward in curve)
        if step <= 0 or not had or best >= statistics.median(had):
            return None
        return f"{best:.6g} is below the median {statistics.median(had):.6g} of {len(had)} trials"


walks = st.lists(st.tuples(st.sampled_from([101, 102, 103]), st.integers(-5, 30), finite), min_size=1, max_size=40)


@given(st.lists(curves, min_size=1, max_size=10), walks, st.sampled_from([0, 1, 3, 256]), st.booleans())
def test_as_worked_out_by_hand(
    past: list[list[tuple[int, float]]], walks: list[tuple[int, int, float]], columns: int, ordered: bool
) -> None:
    """Whatever is remembered of steps, in whatever order they come, with trials that close in between."""
    pruner, by_hand = MedianPruner(MedianConfig(startup_trials=1)), ByHand()
    running: dict[int, list[tuple[int, float]]] = {}
    walks = sorted(walks, key=lambda walk: walk[1]) if ordered else walks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(median, "MOST_STEPS", columns)
        for index, (number, step, reward) in enumerate(walks):
            if index < len(past):
                pruner.closed(index, past[index], "measured")
                by_hand.past.append(past[index])
            curve = running.setdefault(number, [])
            curve.append((step, reward))
            assert pruner.judge(number, curve) == by_hand.judge(curve)


@pytest.mark.parametrize(("key", "value"), [("startup_trials", 0), ("warmup_steps", -1)])
def test_impossible_settings(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=key):
        MedianConfig(**{key: value})
