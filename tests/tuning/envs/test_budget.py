from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.core.errors import BudgetError
from tunegym.tuning.model.scenario import Budget

Benches = Callable[..., Any]


def measure(x: int) -> dict[str, float]:
    return {"m": float(x)}


@pytest.mark.parametrize("slots", [1, 3])
def test_agent_steps_is_exact(bench: Benches, slots: int) -> None:
    """Whatever the lanes hold, trial 6 never starts; failures and hits count like any other."""
    one = bench(measure, slots=slots, budget=Budget(agent_steps=5), constraints=[lambda p: p["x"] != 4])
    started = 0
    while True:
        free = [lane for lane in range(slots) if one.engine.exhausted(lane) is None]
        if not free:
            break
        one.engine.begin({"x": (1, 1, 4)[started % 3]}, free[0])
        started += 1
        one.engine.next_finished()
    assert started == 5
    assert one.engine.exhausted() == "agent_steps = 5 are used up"
    with pytest.raises(BudgetError, match="trial 6 may not start"):
        one.engine.begin({"x": 1})
    one.engine.close()
    assert [trial.number for trial in one.trials()] == [1, 2, 3, 4, 5]


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


def test_time_of_earlier_sessions_counts(bench: Benches, clock: Any) -> None:
    one = bench(measure, clock=clock, budget=Budget(max_time_s=10.0), spent_s=9.5)
    one.step(x=1)
    assert one.engine.exhausted() is None
    clock.now += 0.5
    assert one.engine.exhausted() == "max_time = 10 s is over"


def test_getting_ready_costs_no_budget(bench: Benches, clock: Any) -> None:
    """An agent may take long to import what it needs; it still has all of its time for trials. On record as well."""
    one = bench(measure, clock=clock, budget=Budget(max_time_s=10.0), store="journal")
    one.engine.take_over()
    clock.now += 1000.0
    assert one.engine.exhausted() is None
    one.step(x=1)
    clock.now += 4.0
    one.step(x=2)
    assert one.engine.budget.elapsed_s == 4.0
    one.store.close()
    again = bench(measure, clock=clock, store="journal")
    assert again.store.past.elapsed_s == 4.0


def test_time_between_sessions_does_not_count(bench: Benches, clock: Any) -> None:
    """As a resume counts it, from the journal."""
    first = bench(measure, clock=clock, store="journal")
    first.step(x=1)
    clock.now += 3.0
    first.step(x=2)
    first.store.close()
    clock.now += 86400.0
    again = bench(measure, clock=clock, store="journal")
    assert again.store.past.elapsed_s == 3.0


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
