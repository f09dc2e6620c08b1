from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tunegym.tuning.agents.grid import GridConfig, GridSearch
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Choice, Range, Space
from tunegym.tuning.model.trial import Observation

Benches = Callable[..., Any]

KNOBS = {"a": Choice(("x", "y")), "b": Range(0.0, 1.0, step=0.25), "c": Choice((1, 1.0, True))}


def measure(**_: Any) -> dict[str, float]:
    return {"m": 1.0}


def points(trials: Any) -> list[str]:
    return [repr(dict(trial.action)) for trial in trials]


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_everything_once(bench: Benches, slots: int, seed: int | None) -> None:
    """In order from the first point, or round from a random one; then it ends by itself."""
    one = bench(measure, knobs=KNOBS, slots=slots)
    config = GridConfig() if seed is None else GridConfig(start_action="random", random_seed=seed)
    assert GridSearch(one.engine, config).run() == 0
    chosen = points(one.trials())
    whole = [repr(one.engine.space.point(index)) for index in range(30)]
    assert len(set(chosen)) == len(chosen) == 30
    start = whole.index(chosen[0])
    assert chosen == whole[start:] + whole[:start]
    assert seed is not None or start == 0


@pytest.mark.parametrize("start", ["first", "random"])
def test_huge_grid_costs_nothing(bench: Benches, start: Any) -> None:
    """Far more points than could be listed: each is worked out when it is asked for."""
    knobs = {f"k{index}": Range(0, 999, "int", step=1) for index in range(6)}
    one = bench(measure, knobs=knobs, budget=Budget(agent_steps=100))
    assert one.engine.space.size == 10**18
    tracemalloc.start()
    try:
        agent = GridSearch(one.engine, GridConfig(start_action=start))
        assert agent.run() == 0
        last = agent.select_action(Observation(10**18, {}))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert len(set(points(one.trials()))) == 100
    if start == "first":
        assert last == dict.fromkeys(knobs, 999)
    assert agent.select_action(Observation(10**18 + 1, {})) is None


def test_range_without_a_step_is_refused() -> None:
    """At load, with what to change."""
    assert GridSearch.refuse(Space(KNOBS)) is None
    problem = GridSearch.refuse(Space({"a": Choice((1, 2)), "s.r": Range(0.0, 1.0)}))
    assert problem is not None
    assert problem.where == "cmd_args.s.r"
    assert "step" in problem.what
    variable = GridSearch.refuse(Space({"extra_env_vars.X": Range(0.0, 1.0)}))
    assert variable is not None
    assert variable.where == "extra_env_vars.X"
