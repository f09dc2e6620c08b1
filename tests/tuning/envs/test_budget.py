from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunegym.tuning.model.scenario import Budget

Benches = Callable[..., Any]


def measure(x: int) -> dict[str, float]:
    return {"m": float(x)}


def test_max_time(bench: Benches, clock: Any) -> None:
    """No trial starts once it is over; one that runs may end."""

    def function(x: int) -> dict[str, float]:
        clock.now += 4.0
        return {"m": 1.0}

    one = bench(function, clock=clock, cache=False, budget=Budget(max_time_s=10.0))
    trials = 0
    while one.engine.exhausted() is None:
        assert one.step(x=1).duration_s == 4.0
        trials += 1
    assert trials == 3
    assert one.engine.exhausted() == "max_time = 10 s is over"
    assert one.engine.budget.elapsed_s == 12.0


def test_only_time_on_trials_counts(bench: Benches, clock: Any) -> None:
    """That of earlier sessions too; getting ready and learning the past before the first trial cost nothing."""
    budget = Budget(max_time_s=10.0)
    first = bench(measure, clock=clock, budget=budget, store="journal")
    first.engine.take_over()
    clock.now += 1000.0
    first.step(x=1)
    clock.now += 4.0
    first.step(x=2)
    assert first.engine.budget.elapsed_s == 4.0
    first.store.close()
    clock.now += 86400.0
    again = bench(measure, clock=clock, budget=budget, spent_s=4.0, store="journal")
    assert again.store.past.elapsed_s == 4.0
    again.engine.take_over()
    for _ in again.engine.history():
        clock.now += 1000.0
    assert again.engine.exhausted() is None
    again.step(x=2)
    for _ in again.engine.history():  # later, time is time
        clock.now += 2.0
    assert again.engine.exhausted() == "max_time = 10 s is over"


def test_stop_after_no_improvement(bench: Benches) -> None:
    """Counted from the best; an equal one, a failure and a hit are no improvement."""

    def function(x: int) -> dict[str, float]:
        if x == 9:
            raise ValueError("no")
        return {"m": float(x)}

    one = bench(function, budget=Budget(stop_after_no_improvement=4))
    for x in (1, 2, 1, 9, 2, 3):
        assert one.engine.exhausted() is None
        one.step(x=x)
    for x in (3, 9, 0, 1):
        assert one.engine.exhausted() is None
        one.step(x=x)
    assert one.engine.exhausted() == "no improvement in 4 trials"
    assert one.engine.tally.best.number == 6
