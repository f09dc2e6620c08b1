from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from tunegym.core.randomness import unit
from tunegym.tuning.agents import bandit
from tunegym.tuning.agents.bandit import PATIENCE, BanditConfig, ContextualBandit
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Choice, EnvParam, Range
from tunegym.tuning.model.trial import Cancelled, Failed, Feedback, Measured, Observation, Trial
from tunegym.tuning.model.values import Action

Benches = Callable[..., Any]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def flip(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flip task of the benchmarks."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.flip.task")


def measure_x(x: int) -> dict[str, float]:
    return {"m": float(x)}


def chosen(agent: ContextualBandit, context: Mapping[str, Any]) -> dict[str, Any]:
    choice = agent.choose(context)
    assert choice is not None
    assert choice.context == context
    return dict(choice.action)


def told(number: int, action: Action, value: float = 1.0, status: str = "measured", **more: Any) -> Feedback:
    shown = Observation(number, {})
    return Feedback(number, value, shown, shown, action, done=False, status=status, **more)


# what it learns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_learns_which_setting_wins_in_which_context(bench: Benches, flip: Any, seed: int) -> None:
    flip.seed(seed)
    budget = Budget(agent_steps=300)
    params = {"context": EnvParam(flip.DOMAIN)}
    metrics = ("throughput",)
    one = bench(
        flip.measure, knobs=flip.KNOBS, env_params=params, seed=seed, budget=budget, cache=False, agent_metrics=metrics
    )
    agent = ContextualBandit(one.engine, None, seed)
    assert agent.run() == 0
    assert flip.best_single_share() <= 0.7
    assert flip.score(lambda context: chosen(agent, context)) >= 0.9
    last = one.trials()[-60:]
    exploring = fmean(flip.true_value(trial.context, trial.action) / flip.optimum(trial.context) for trial in last)
    assert exploring >= 0.85, "what it tries is nearly as good as what it would choose"


@pytest.fixture
def experienced(bench: Benches) -> tuple[ContextualBandit, Callable[..., None]]:
    """A bandit that has measured in two contexts, with noise, that a larger x is better; and how to tell it more."""
    params = {"load": EnvParam(Choice(("low", "mid", "high")))}
    agent = ContextualBandit(bench(lambda x, load: {"m": x}, env_params=params).engine)
    numbers = itertools.count(1)

    def tell(load: str, x: int, status: str = "measured") -> None:
        number = next(numbers)
        value = x + 4.0 * (unit(1, number) - 0.5) if status == "measured" else -1e15
        agent.update_policy(told(number, {"x": x}, value, status, context={"load": load}))

    for _, load, x in itertools.product(range(6), ("mid", "high"), range(10)):
        tell(load, x)
    return agent, tell


def test_a_setting_that_failed_here_is_not_chosen_here(experienced: Any) -> None:
    """However well it does elsewhere."""
    agent, tell = experienced
    for x in range(5):
        tell("low", x)
    assert chosen(agent, {"load": "low"}) == {"x": 9}
    tell("low", 9, "failed")
    assert chosen(agent, {"load": "low"}) == {"x": 8}
    assert chosen(agent, {"load": "high"}) == {"x": 9}
    tell("low", 9)
    assert chosen(agent, {"load": "low"}) == {"x": 9}, "it works as often as not"


@pytest.mark.parametrize("seed", [0, 1])
def test_follows_a_continuous_context(bench: Benches, seed: int) -> None:
    """The best buffer grows with the load; no two trials have the same context."""
    load, buffer = Range(1.0, 1000.0, log=True), Range(16, 4096, "int", log=True)

    def measure(load_: float, buffer_: int) -> float:
        return 100 * float(np.exp(-(((buffer.position(buffer_) - 0.1 - 0.8 * load.position(load_)) / 0.25) ** 2)))

    one = bench(
        lambda load, buffer: {"m": measure(load, buffer)},
        knobs={"buffer": buffer},
        env_params={"load": EnvParam(load)},
        seed=seed,
        budget=Budget(agent_steps=120),
    )
    agent = ContextualBandit(one.engine, None, seed)
    agent.run()
    loads = [float(load.at_position(place)) for place in np.linspace(0, 1, 15)]
    reached = [measure(one, int(chosen(agent, {"load": one})["buffer"])) for one in loads]
    fixed = max(fmean(measure(one, int(buffer.at_position(place))) for one in loads) for place in np.linspace(0, 1, 50))
    assert fixed < 75
    assert fmean(reached) > 95
    assert min(reached) > 80


# corners ----------------------------------------------------------------------------------------------


def test_nothing_to_choose_before_anything_worked(bench: Benches) -> None:
    def fail(x: int) -> dict[str, float]:
        raise ValueError(f"not {x}")

    one = bench(fail, budget=Budget(agent_steps=30))
    agent = ContextualBandit(one.engine)
    assert agent.choose({}) is None
    agent.run()
    assert agent.choose({}) is None
    assert len({trial.action["x"] for trial in one.trials()}) == 10, "it has looked everywhere"


def test_a_context_that_never_came_up(bench: Benches) -> None:
    """The best guess is the setting that wins in all others."""
    params = {"load": EnvParam(Choice(("a", "b", "c")), (0.5, 0.5, 0.0)), "size": EnvParam(Range(1.0, 8.0))}
    one = bench(
        lambda x, load, size: {"m": -((x - 3) ** 2) + (load == "b")}, env_params=params, budget=Budget(agent_steps=40)
    )
    agent = ContextualBandit(one.engine)
    agent.run()
    for context in ({"load": "c", "size": 8.0}, {"load": "elsewhere", "size": 100.0}, {}):
        assert chosen(agent, context) == {"x": 3}


# the cache --------------------------------------------------------------------------------------------


def test_a_cache_hit_is_no_evidence(bench: Benches) -> None:
    agent = ContextualBandit(bench(measure_x).engine)
    for number in range(1, 9):
        agent.update_policy(told(number, {"x": number % 2}, float(number % 2), cached=number > 2))
    assert agent._stats.of([0, 1]).counts.tolist() == [1, 1]


def test_cached_settings_are_repeated_only_without_doubt(bench: Benches) -> None:
    """Repeating the best one is free, and no reason to measure poor ones."""
    knobs = {"x": Range(0, 99, "int", step=1)}
    one = bench(lambda x: {"m": -((x - 6) ** 2)}, knobs=knobs, budget=Budget(agent_steps=60))
    ContextualBandit(one.engine, BanditConfig(bins=100)).run()
    trials = one.trials()
    found = next(trial.number for trial in trials if trial.action["x"] == 6)
    assert not any(trial.cached_from for trial in trials[:found])
    assert {trial.action["x"] for trial in trials if trial.cached_from} <= {5, 6, 7}
    assert len(one.lab.runs) < 50


def test_never_stuck_and_ends_when_everything_was_measured(bench: Benches) -> None:
    params = {"load": EnvParam(Choice((1, 2, 3)), (0.5, 0.5, 0.0))}
    one = bench(lambda x, load: {"m": 1000.0 * (x == 4) + load}, env_params=params, budget=Budget(agent_steps=2000))
    assert ContextualBandit(one.engine).run() == 0
    trials = one.trials()
    assert len(one.lab.runs) == 20
    assert len(trials) <= 20 * (PATIENCE + 2)


@pytest.mark.parametrize("cache", [True, False])
def test_lanes_do_not_all_try_the_same(bench: Benches, cache: bool) -> None:
    one = bench(lambda x: {"m": x}, cache=cache, slots=8)
    agent = ContextualBandit(one.engine)
    agent.update_policy(told(1, {"x": 9}, 9.0))
    different = {repr(agent.select_action(Observation(number, {}))) for number in range(2, 10)}
    assert len(different) >= (8 if cache else 4)


# bounds -----------------------------------------------------------------------------------------------


def test_the_belief_stays_small_and_keeps_the_best(bench: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandit, "MOST_CELLS", 40)
    monkeypatch.setattr(bandit, "KEPT_CELLS", 30)
    one = bench(lambda x: {"m": -abs(x - 0.4)}, knobs={"x": Range(0.0, 1.0)})
    agent = ContextualBandit(one.engine)
    for number in range(1, 301):
        x = unit(3, number)
        agent.update_policy(told(number, {"x": x}, -abs(x - 0.4)))
        assert len(agent._belief) == len(agent._cells) <= 40
    assert len(agent._stats.history) == 300
    assert abs(float(chosen(agent, {})["x"]) - 0.4) < 0.02


# warm starts -----------------------------------------------------------------------------


def test_warm_start_with_contexts(bench: Benches) -> None:
    params = {"load": EnvParam(Choice(("low", "high")))}
    one = bench(lambda x, load: {"m": x}, env_params=params)
    agent = ContextualBandit(one.engine)
    wanted = {"low": 2, "high": 7}
    cells = itertools.product(wanted, range(10))
    trials = [
        Trial(number, {"load": load}, {"x": x}, Measured(({"m": 1.0},)), -abs(x - wanted[load]), 1.0)
        for number, (load, x) in enumerate(cells, start=1)
    ]
    lost = Trial(21, {"load": "low"}, {"x": 0}, Cancelled("ended"), 1e9, 1.0)
    failed = Trial(22, {}, {"x": 1}, Failed("crashed"), -1e15, 1.0)
    copied = Trial(23, {"load": "low"}, {"x": 0}, Measured(({"m": 1.0},)), 1e9, 1.0, cached_from=1)
    agent.warm_up([*trials, lost, failed, copied])
    assert {load: chosen(agent, {"load": load})["x"] for load in wanted} == wanted
    assert not agent._answered, "the cache here knows nothing of them"
