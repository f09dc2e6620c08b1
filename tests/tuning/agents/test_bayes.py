"""What the default agent finds, learns from and leaves alone, driven through an engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from threadpoolctl import threadpool_info

from tunegym.tuning.agents.bayes import Bayes, BayesConfig
from tunegym.tuning.model.scenario import Budget, Objective
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Range
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.rewards import FromObjectives

Benches = Callable[..., Any]
PLANE: dict[str, Knob] = {"x": Range(-2.0, 2.0), "y": Range(-2.0, 2.0)}
LOADS = {"load": EnvParam(Choice((1, 2, 3)))}


def bowl(x: float, y: float) -> dict[str, float]:
    return {"m": -(x**2) - (y - 0.5) ** 2}


def trials_of(bench: Any, seed: int = 3, **config: Any) -> list[Trial]:
    """The trials of a whole search."""
    agent = Bayes(bench.engine, BayesConfig(**config), seed)
    try:
        assert agent.run() == 0
    finally:
        agent.close()
    return bench.trials()


def test_last_trials_are_near_the_optimum(bench: Benches) -> None:
    trials = trials_of(bench(bowl, knobs=PLANE, budget=Budget(agent_steps=40)))
    searched = [trial.reward for trial in trials if trial.phase == "search"]
    assert max(searched) > -0.01
    assert sum(searched[-8:]) / 8 > sum(searched[:8]) / 8 + 0.3


def test_a_context_learns_from_the_others(bench: Benches) -> None:
    """Levels of contexts are unlike; what is best in them is alike."""

    def measure(x: float, y: float, load: int) -> dict[str, float]:
        return {"m": 10.0**load + load * bowl(x, y)["m"]}

    trials = trials_of(bench(measure, knobs=PLANE, env_params=LOADS, budget=Budget(agent_steps=45)))
    for load in (1, 2, 3):
        best = max(trial.metrics["m"] for trial in trials if trial.context["load"] == load)
        assert (10.0**load - best) / load < 0.2


def test_failures_and_refusals_are_avoided(bench: Benches) -> None:
    """Those of a job, and those of a constraint in Python; no value of theirs is learned."""

    def measure(x: int, mode: str) -> dict[str, float]:
        if mode == "broken":
            raise ValueError("crashed")
        return {"m": float(x)}

    knobs = {"x": Range(0, 99, "int"), "mode": Choice(("plain", "broken", "refused"))}
    refuse = [lambda parameters: parameters["mode"] != "refused"]
    trials = trials_of(bench(measure, knobs=knobs, constraints=refuse, budget=Budget(agent_steps=40)))
    modes = Counter(trial.action["mode"] for trial in trials[-20:])
    assert modes["plain"] >= 17
    assert max(trial.reward for trial in trials) >= 97


@pytest.mark.parametrize("slots", [1, 3])
def test_nothing_is_proposed_that_an_expression_refuses(bench: Benches, slots: int) -> None:
    knobs: dict[str, Knob] = {"x": Range(0, 99, "int"), "y": Range(0.0, 1.0, step=0.01)}
    search = bench(
        lambda x, y, load: {"m": x + y + load},
        knobs=knobs,
        env_params=LOADS,
        constraints=["x * y <= load"],
        slots=slots,
        budget=Budget(agent_steps=30),
    )
    assert all(trial.measured for trial in trials_of(search))


@pytest.mark.parametrize("slots", [1, 3])
def test_a_deterministic_metric_is_measured_everywhere_and_then_ends(bench: Benches, slots: int) -> None:
    """A few repeats tell that it is; from then on nothing is measured twice."""
    search = bench(
        lambda x, load: {"m": float(x * load)},
        knobs={"x": Choice(tuple(range(8)))},
        env_params=LOADS,
        slots=slots,
        budget=Budget(agent_steps=500),
    )
    agent = Bayes(search.engine, None, 3)
    agent.run()
    agent.close()
    assert agent.ended == "every setting was tried"
    tried = Counter(
        (trial.action["x"], trial.context["load"]) for trial in search.trials() if trial.cached_from is None
    )
    assert len(tried) == 24
    assert tried.total() < 40


def test_noise_is_measured_by_repeats(bench: Benches) -> None:
    """The baseline and the best ones are measured again, outside the cache."""
    noise = random.Random(1)
    baseline = {"x": 5}
    search = bench(lambda x: {"m": -abs(x - 3) + noise.gauss(0, 0.3)}, baseline=baseline, budget=Budget(agent_steps=40))
    search.engine.run_all([(baseline, {})], "baseline")
    trials = trials_of(search)
    repeats = [trial for trial in trials if trial.phase == "repeat"]
    assert {5, 3} <= {trial.action["x"] for trial in repeats}
    assert all(trial.cached_from is None for trial in repeats)


def test_a_pruned_trial_is_a_bad_one(bench: Benches) -> None:
    """It tells the model where not to look, without a value of its own."""

    class Above:
        def judge(self, number: int, curve: Any) -> str | None:
            return "too low" if curve[-1][1] < 60 else None

        def closed(self, number: int, curve: Any, status: str) -> None:
            pass

    def measure(x: int, report: Any) -> dict[str, float]:
        report(1, float(x))
        return {"m": float(x)}

    trials = trials_of(bench(measure, knobs={"x": Range(0, 99, "int")}, pruner=Above, budget=Budget(agent_steps=15)))
    assert "pruned" in {trial.status for trial in trials}
    assert max(trial.reward for trial in trials) >= 97


def test_several_aims_are_searched_along_their_front(bench: Benches) -> None:
    goals = (Objective("a", "min"), Objective("b", "min"))
    search = bench(
        lambda x, y: {"a": x * x + y * y, "b": (x - 2) ** 2 + y * y},
        knobs=PLANE,
        agent_metrics=("a", "b"),
        objectives=goals,
        reward=lambda _: FromObjectives(goals),
        budget=Budget(agent_steps=60),
    )
    late = [trial.action for trial in trials_of(search)[30:]]
    near = sorted(action["x"] for action in late if abs(action["y"]) < 0.3)
    assert len(near) >= 15
    assert near[0] < 0.5
    assert near[-1] > 1.5


def test_a_limit_is_kept(bench: Benches) -> None:
    goals = (Objective("m", "max"), Objective("cost", "min", weight=0.0, limit=1.0))
    search = bench(
        lambda x, y: {"m": x + y, "cost": x + 2.0},
        knobs=PLANE,
        agent_metrics=("m", "cost"),
        objectives=goals,
        reward=lambda _: FromObjectives(goals),
        budget=Budget(agent_steps=40),
    )
    late = trials_of(search)[20:]
    assert sum(trial.metrics["cost"] <= 1.0 for trial in late) >= 14


def test_functions_of_this_process_keep_their_threads(bench: Benches) -> None:
    """The model limits itself to one thread for linear algebra only while nothing else runs in the process."""
    usual = {library["num_threads"] for library in threadpool_info()}
    seen: set[int] = set()

    def measure(x: float, y: float) -> dict[str, float]:
        seen.update(library["num_threads"] for library in threadpool_info())
        return bowl(x, y)

    budget = Budget(agent_steps=20)
    here = trials_of(bench(measure, knobs=PLANE, isolate=False, budget=budget))
    assert seen <= usual
    assert {library["num_threads"] for library in threadpool_info()} == usual
    elsewhere = trials_of(bench(bowl, knobs=PLANE, isolate=True, budget=budget))
    assert [trial.action for trial in here] == [trial.action for trial in elsewhere]


def test_a_warm_start_begins_where_the_other_run_ended(bench: Benches) -> None:
    past = trials_of(bench(bowl, knobs=PLANE, budget=Budget(agent_steps=30)))
    search = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=8))
    agent = Bayes(search.engine, None, 4)
    agent.warm_up(past)
    agent.run()
    agent.close()
    assert max(trial.reward for trial in search.trials()) > -0.01
