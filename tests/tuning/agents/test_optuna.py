from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from statistics import fmean
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState
from tests.conftest import raising

from tunegym.tuning.agents.optuna import PATIENCE, NumberedDraws, OptunaAgent, OptunaConfig, StudyProposer
from tunegym.tuning.model.scenario import Budget, Objective
from tunegym.tuning.model.space import Choice, Knob, Range, Space
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.rewards import FromObjectives

Benches = Callable[..., Any]
PLANE: dict[str, Knob] = {"x": Range(-2.0, 2.0), "y": Range(-2.0, 2.0)}


def bowl(x: float, y: float) -> dict[str, float]:
    return {"m": -(x**2) - (y - 0.5) ** 2}


def agent_of(one: Any, **config: Any) -> OptunaAgent:
    return OptunaAgent(one.engine, OptunaConfig(**config), 3)


def study_of(agent: OptunaAgent) -> optuna.Study:
    assert agent._study is not None
    return agent._study._study


# what it finds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "steps", "slots"),
    [("tpe", 40, 1), ("cmaes", 40, 1), ("nsgaii", 120, 4), pytest.param("gp", 20, 1, marks=pytest.mark.slow)],
)
def test_last_trials_are_better_than_first_ones(bench: Benches, sampler: str, steps: int, slots: int) -> None:
    one = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=steps), slots=slots)
    agent_of(one, sampler=sampler, **({"population": 10} if sampler == "nsgaii" else {})).run()
    rewards = [trial.reward for trial in one.trials()]
    assert sum(rewards[-8:]) / 8 > sum(rewards[:8]) / 8 + 0.3


# what it tells ----------------------------------------------------------------------------------------


def test_trials_without_a_measurement_are_told_as_worse_than_all_others(bench: Benches) -> None:
    def measure(x: int) -> dict[str, float]:
        if x % 4 == 1:
            raise ValueError("crashed")
        if x % 4 == 2:
            raise TimeoutError
        return {"m": 0.0}

    one = bench(
        measure,
        knobs={"x": Range(0, 4000, "int")},
        constraints=[lambda p: p["x"] % 4 != 3],
        budget=Budget(agent_steps=24),
    )
    agent = agent_of(one, sampler="tpe")
    agent.run()
    seen = {
        (trial.params["x"] % 4, trial.state, trial.value, tuple(trial.constraints.values()))
        for trial in study_of(agent).trials
    }
    assert seen == {
        (0, TrialState.COMPLETE, 0.0, ()),
        (1, TrialState.PRUNED, None, (math.inf,)),
        (2, TrialState.PRUNED, None, (math.inf,)),
        (3, TrialState.PRUNED, None, (math.inf,)),
    }


def test_tpe_keeps_away_from_settings_that_fail(bench: Benches) -> None:
    def measure(mode: int, x: float) -> dict[str, float]:
        if mode > 1:
            raise ValueError("crashed")
        return {"m": -abs(x)}

    knobs: dict[str, Knob] = {"mode": Choice(tuple(range(6))), "x": Range(-2.0, 2.0)}
    one = bench(measure, knobs=knobs, budget=Budget(agent_steps=80))
    agent_of(one, sampler="tpe").run()
    assert fmean(not trial.measured for trial in one.trials()[20:]) < 0.6  # two thirds of all settings fail


LIMITED = (Objective("m", "max"), Objective("cost", "min", 0.0, 1.0))
TWO = (Objective("m", "max"), Objective("cost", "min"))


@pytest.mark.parametrize(
    ("sampler", "goals", "values", "constraints"),
    [
        ("tpe", LIMITED, lambda x, y, reward: [x], lambda y: {"cost": 2 * y - 1.0}),
        ("cmaes", LIMITED, lambda x, y, reward: [reward], lambda y: {}),
        ("tpe", TWO, lambda x, y, reward: [x, -2 * y], lambda y: {}),
        ("nsgaii", TWO, lambda x, y, reward: [x, -2 * y], lambda y: {}),
    ],
    ids=["limit", "no limits", "several", "several by generations"],
)
def test_objectives_and_limits_reach_the_samplers_that_take_them(
    bench: Benches, sampler: str, goals: Any, values: Callable[..., Any], constraints: Callable[..., Any]
) -> None:
    """The other samplers get the reward."""
    one = bench(
        lambda x, y: {"m": x, "cost": 2 * y},
        knobs=PLANE,
        objectives=goals,
        agent_metrics=("m", "cost"),
        reward=lambda _: FromObjectives(goals),
        budget=Budget(agent_steps=12),
    )
    agent = agent_of(one, sampler=sampler)
    agent.run()
    for told, trial in zip(study_of(agent).trials, one.trials(), strict=True):
        x, y = told.params["x"], told.params["y"]
        assert told.values == pytest.approx(values(x, y, trial.reward))
        assert told.constraints == pytest.approx(constraints(y))


# duplicates -------------------------------------------------------------------------------------------


def test_repeated_proposals_give_way_to_new_settings(bench: Benches) -> None:
    """One value is far better: the sampler wants nothing else, and still the others get their turn."""
    runs: Counter[int] = Counter()

    def measure(x: int) -> dict[str, float]:
        runs[x] += 1
        return {"m": 1000.0 if x == 3 else float(-x)}

    one = bench(measure, knobs={"x": Choice(tuple(range(12)))}, budget=Budget(agent_steps=200))
    agent_of(one, sampler="tpe").run()
    trials = one.trials()
    assert set(runs.values()) == {1}
    assert len(runs) == 12
    assert sum(trial.cached_from is not None for trial in trials) <= PATIENCE + 1
    assert len(trials) <= 12 + PATIENCE + 1, "everything was tried: the cache would have answered for ever"


def test_failed_settings_are_not_proposed_forever(bench: Benches) -> None:
    def measure(x: int) -> dict[str, float]:
        if x < 7:
            raise ValueError("crashed")
        return {"m": float(x)}

    one = bench(measure, knobs={"x": Choice(tuple(range(8)))}, budget=Budget(agent_steps=40))
    agent_of(one, sampler="nsgaii", population=4).run()
    assert any(trial.measured for trial in one.trials())


# draws by number --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_samplers_that_learn_nothing_draw_by_number(sampler: Any) -> None:
    space = Space({"x": Range(0.0, 1.0), "mode": Choice(("a", "b"))})
    forwards = [NumberedDraws(sampler, space, 1).propose(number, {}) for number in range(1, 20)]
    one = NumberedDraws(sampler, space, 1)
    assert [one.propose(number, {}) for number in range(19, 0, -1)] == forwards[::-1]


def test_qmc_covers_evenly() -> None:
    """Of 64 points of a Sobol sequence each of the 8 x 8 cells has exactly one."""
    one = NumberedDraws("qmc", Space({"x": Range(0.0, 1.0), "y": Range(0.0, 1.0)}), 5)
    points = [one.propose(number, {}) for number in range(1, 65)]
    cells = Counter((int(float(p["x"]) * 8), int(float(p["y"]) * 8)) for p in points)
    assert set(cells.values()) == {1}
    assert len(cells) == 64


# warm start -------------------------------------------------------------------------------------------


def past(count: int) -> list[Trial]:
    """Trials around the optimum at (0, 0.5)."""
    places = [(0.02 * index, 0.5 - 0.02 * index) for index in range(count)]
    return [
        Trial(n, {}, {"x": x, "y": y}, Measured((bowl(x, y),)), bowl(x, y)["m"], 0.0)
        for n, (x, y) in enumerate(places, 1)
    ]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii", pytest.param("gp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [1, 4, 30])
def test_a_warm_start_begins_where_the_other_run_ended(bench: Benches, sampler: str, count: int) -> None:
    one = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=12))
    agent = agent_of(one, sampler=sampler, **({"population": 4} if sampler == "nsgaii" else {}))
    agent.warm_up(past(count))
    assert agent.run() == 0
    assert len(one.trials()) == 12
    if sampler == "gp":  # it looks where nobody has been before it goes back
        assert max(trial.reward for trial in one.trials()) > (-0.05 if count >= 30 else -math.inf)
    elif count >= 30:
        warm = sum(trial.reward for trial in one.trials()) / 12
        cold = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=12))
        agent_of(cold, sampler=sampler).run()
        assert warm > sum(trial.reward for trial in cold.trials()) / 12 + 0.5


def test_a_failing_sampler_does_not_end_the_run(
    bench: Benches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numerics give up on some spaces; a random setting is tried instead, and logged once."""
    broken = raising(ValueError, "attempt to get argmax of an empty sequence")
    one = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=16))
    agent = agent_of(one, sampler="tpe", startup_trials=5)
    monkeypatch.setattr(optuna.samplers.TPESampler, "_sample", broken)
    assert agent.run() == 0
    assert len({repr(trial.action) for trial in one.trials()}) == 16
    assert caplog.text.count("the sampler tpe failed at trial 6: ValueError: attempt to get argmax") == 1
    assert caplog.text.count("failed") == 1


def test_gp_does_not_list_a_huge_range() -> None:
    """Optuna's sampler makes an array of all values of a stepped range."""
    space = Space({"big": Range(0, 2 * 10**9, "int"), "fine": Range(0.0, 1.0, step=1e-6), "small": Range(0, 9, "int")})
    found = StudyProposer("gp", {}, space, (), 0)._distributions
    assert found["big"] == FloatDistribution(0.0, 2e9)
    assert found["fine"] == FloatDistribution(0.0, 1.0)
    assert found["small"] == IntDistribution(0, 9)
    assert StudyProposer("tpe", {}, space, (), 0)._distributions["big"] == IntDistribution(0, 2 * 10**9)


def test_optunas_verbosity_is_unchanged(bench: Benches, capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    one = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=3))
    agent_of(one, sampler="tpe").run()
    assert optuna.logging.get_verbosity() == before
    assert "study created" not in capfd.readouterr().err
