"""What Optuna's samplers are told and what they propose, seen from the studies that the agent makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tunegym.tuning.agents.optuna import OptunaAgent, OptunaConfig
from tunegym.tuning.model.scenario import Budget, Judged, Objective
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Range
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.rewards import FromObjectives

Benches = Callable[..., Any]
PLANE: dict[str, Knob] = {"x": Range(-2.0, 2.0), "y": Range(-2.0, 2.0)}
SAMPLERS = ["tpe", "cmaes", "nsgaii", "qmc", "random", pytest.param("gp", marks=pytest.mark.slow)]


def bowl(x: float, y: float) -> dict[str, float]:
    return {"m": -(x**2) - (y - 0.5) ** 2}


def agent_of(bench: Any, **config: Any) -> OptunaAgent:
    return OptunaAgent(bench.engine, OptunaConfig(**config), 3)


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> list[optuna.Study]:
    """Every study that is created."""
    created: list[optuna.Study] = []
    create = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **keys: created.append(create(**keys)) or created[-1])
    return created


# what it finds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "steps", "slots"),
    [("tpe", 40, 1), ("cmaes", 40, 1), ("nsgaii", 120, 4), pytest.param("gp", 20, 1, marks=pytest.mark.slow)],
)
def test_last_trials_are_better_than_first_ones(bench: Benches, sampler: str, steps: int, slots: int) -> None:
    search = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=steps), slots=slots)
    agent_of(search, sampler=sampler, **({"population": 10} if sampler == "nsgaii" else {})).run()
    rewards = [trial.reward for trial in search.trials()]
    assert sum(rewards[-8:]) / 8 > sum(rewards[:8]) / 8 + 0.3


def test_qmc_covers_evenly(bench: Benches) -> None:
    """Of 64 points of a Sobol sequence each of the 8 x 8 cells has one; Optuna draws the first one at random."""
    search = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=65))
    agent_of(search, sampler="qmc").run()
    actions = [trial.action for trial in search.trials()[1:]]
    cells = {(int((action["x"] + 2) * 2), int((action["y"] + 2) * 2)) for action in actions}
    assert len(cells) == 64


# what it tells ----------------------------------------------------------------------------------------


def test_trials_without_a_measurement_are_told_as_failed(bench: Benches, studies: list[optuna.Study]) -> None:
    """No penalty is told as a value."""

    def measure(x: int) -> dict[str, float]:
        if x % 4 == 1:
            raise ValueError("crashed")
        if x % 4 == 2:
            raise TimeoutError
        return {"m": 0.5}

    knobs = {"x": Range(0, 4000, "int")}
    refuse = [lambda p: p["x"] % 4 != 3]
    agent_of(bench(measure, knobs=knobs, constraints=refuse, budget=Budget(agent_steps=24))).run()
    told = {(trial.params["x"] % 4, trial.state, trial.value) for trial in studies[0].trials}
    failed = {(remainder, TrialState.FAIL, None) for remainder in (1, 2, 3)}
    assert told == {(0, TrialState.COMPLETE, 0.5), *failed}


class Never:
    """Prunes every trial at its first report."""

    def judge(self, number: int, curve: Any) -> str:
        return "hopeless"

    def closed(self, number: int, curve: Any, status: str) -> None:
        pass


def test_pruned_trials_are_told_with_their_reports(bench: Benches, studies: list[optuna.Study]) -> None:
    """With the sign that makes more better."""

    def measure(x: float, report: Callable[[int, float], None]) -> dict[str, float]:
        report(7, x)
        return {"m": x}

    search = bench(
        measure, knobs={"x": Range(1.0, 2.0)}, judged=Judged("m", "min"), pruner=Never, budget=Budget(agent_steps=3)
    )
    agent_of(search).run()
    for trial in studies[0].trials:
        assert (trial.state, trial.intermediate_values) == (TrialState.PRUNED, {7: -trial.params["x"]})


LIMITED = (Objective("m", "max"), Objective("cost", "min", 0.0, 1.0))
TWO = (Objective("m", "max"), Objective("cost", "min"))


@pytest.mark.parametrize(
    ("sampler", "goals", "values", "constraints"),
    [
        ("tpe", LIMITED, lambda x, y, reward: [x], lambda y: {"cost": 2 * y - 1.0}),
        ("cmaes", LIMITED, lambda x, y, reward: [reward], lambda y: {}),
        ("tpe", TWO, lambda x, y, reward: [x, -2 * y], lambda y: {}),
        ("nsgaii", TWO, lambda x, y, reward: [x, -2 * y], lambda y: {}),
        pytest.param("gp", TWO, lambda x, y, reward: [x, -2 * y], lambda y: {}, marks=pytest.mark.slow),
    ],
    ids=["limit", "no limits", "several", "several by generations", "several by processes"],
)
def test_objectives_and_limits_reach_the_samplers_that_take_them(
    bench: Benches,
    studies: list[optuna.Study],
    sampler: str,
    goals: Any,
    values: Callable[..., Any],
    constraints: Callable[..., Any],
) -> None:
    """The other samplers get the reward."""
    search = bench(
        lambda x, y: {"m": x, "cost": 2 * y},
        knobs=PLANE,
        objectives=goals,
        agent_metrics=("m", "cost"),
        reward=lambda _: FromObjectives(goals),
        budget=Budget(agent_steps=12),
    )
    agent_of(search, sampler=sampler).run()
    for told, trial in zip(studies[0].trials, search.trials(), strict=True):
        x, y = told.params["x"], told.params["y"]
        assert told.values == pytest.approx(values(x, y, trial.reward))
        assert told.constraints == pytest.approx(constraints(y))


def test_each_context_has_a_study(bench: Benches, studies: list[optuna.Study]) -> None:
    """1, 1.0 and true are three contexts."""
    loads = {"load": EnvParam(Choice((1, 1.0, True)))}
    knobs = {"x": Range(0.0, 1.0)}
    search = bench(lambda x, load: {"m": x}, knobs=knobs, env_params=loads, budget=Budget(agent_steps=24))
    agent_of(search).run()
    by_context: dict[str, list[Any]] = {}
    for trial in search.trials():
        by_context.setdefault(repr(trial.context), []).append(trial.action["x"])
    assert len(by_context) == 3
    assert sorted(by_context.values()) == sorted([trial.params["x"] for trial in study.trials] for study in studies)


# what it proposes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "nsgaii", "qmc", "random"])
def test_a_finite_space_is_tried_once_and_then_ends(bench: Benches, sampler: str) -> None:
    """One value is far better: the sampler wants nothing else, and still the others get their turn."""
    search = bench(
        lambda x: {"m": 1000.0 if x == 3 else float(-x)},
        knobs={"x": Choice(tuple(range(12)))},
        budget=Budget(agent_steps=200),
    )
    agent = agent_of(search, sampler=sampler)
    agent.run()
    assert Counter(trial.action["x"] for trial in search.trials()) == Counter(range(12))
    assert agent.ended == "every setting was tried"


def test_without_a_cache_a_setting_may_come_again(bench: Benches) -> None:
    search = bench(lambda x: {"m": x}, knobs={"x": Choice((1, 2))}, cache=False, budget=Budget(agent_steps=30))
    agent_of(search).run()
    assert len(search.trials()) == 30


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_is_proposed_that_an_expression_refuses(bench: Benches, sampler: str) -> None:
    knobs: dict[str, Knob] = {"x": Range(0, 99, "int"), "y": Range(0.0, 1.0, step=0.01)}
    search = bench(lambda x, y: {"m": x + y}, knobs=knobs, constraints=["x * y <= 1"], budget=Budget(agent_steps=30))
    agent_of(search, sampler=sampler).run()
    assert all(trial.measured for trial in search.trials())


# warm start -------------------------------------------------------------------------------------------


def past(count: int) -> list[Trial]:
    """Trials around the optimum at (0, 0.5)."""
    places = [(0.02 * index, 0.5 - 0.02 * index) for index in range(count)]
    return [
        Trial(n, {}, {"x": x, "y": y}, Measured((bowl(x, y),)), bowl(x, y)["m"], 0.0)
        for n, (x, y) in enumerate(places, 1)
    ]


def test_a_warm_start_begins_where_the_other_run_ended(bench: Benches) -> None:
    means = {}
    for count in (0, 30):
        search = bench(bowl, knobs=PLANE, budget=Budget(agent_steps=12))
        agent = agent_of(search)
        agent.warm_up(past(count))
        agent.run()
        means[count] = sum(trial.reward for trial in search.trials()) / 12
    assert means[30] > means[0] + 0.5


def test_optunas_verbosity_is_unchanged(bench: Benches, capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    agent_of(bench(bowl, knobs=PLANE, budget=Budget(agent_steps=3))).run()
    assert optuna.logging.get_verbosity() == before
    assert "study created" not in capfd.readouterr().err
