"""The Gymnasium face."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tunegym.core.errors import ActionError, BudgetError
from tunegym.tuning.encodings import ENCODINGS
from tunegym.tuning.envs.tune import TuneEnv
from tunegym.tuning.model.context import EnvParam
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Choice, Range

Benches = Callable[..., Any]

KNOBS = {"mode": Choice(("a", "b", "c")), "n": Range(1, 8, "int"), "f": Range(0.0, 1.0)}
NUMBERS = Choice((0, 1, 10))


def measure(**parameters: Any) -> dict[str, float]:
    return {"m": float(parameters.get("n", 1)), "second": 2.5}


@pytest.fixture
def tune(bench: Benches) -> Callable[..., tuple[TuneEnv, Any]]:
    def make(function: Callable[..., Any] = measure, **settings: Any) -> tuple[TuneEnv, Any]:
        one = bench(function, **{"knobs": KNOBS, "agent_metrics": ("m", "second"), **settings})
        return TuneEnv(one.engine, on_close=one.store.close), one

    return make


def encoded(env: TuneEnv, **action: Any) -> dict[str, Any]:
    return env.encode_action({"mode": "a", "n": 1, "f": 0.5, **action})


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # the checker has opinions about unbounded boxes
@pytest.mark.parametrize("name", [None, *ENCODINGS])
def test_check_env(tune: Any, name: str | None) -> None:
    """Gymnasium's own checker, with every encoding of the context and without one."""
    params = {} if name is None else {"load": EnvParam(NUMBERS, encoding=name), "kind": EnvParam(Choice(("x", "y")))}
    env, _ = tune(env_params=params)
    check_env(env, skip_render_check=True, skip_close_check=True)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", ["minmax", "log"])
def test_check_env_with_a_range_that_varies(tune: Any, name: str) -> None:
    env, _ = tune(env_params={"rate": EnvParam(Range(0.001, 1.0, log=True), encoding=name)})
    check_env(env, skip_render_check=True, skip_close_check=True)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_check_env_when_everything_fails(tune: Any) -> None:
    def function(**_: Any) -> dict[str, float]:
        raise ValueError("no")

    check_env(tune(function)[0], skip_render_check=True, skip_close_check=True)


def test_spaces(tune: Any) -> None:
    env, _ = tune(env_params={"load": EnvParam(NUMBERS, encoding="onehot")})
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    context = spaces.Dict({"load": spaces.Box(0.0, 1.0, (3,), np.float32)})
    assert env.observation_space == spaces.Dict({"observation": box, "context": context})
    assert tune()[0].observation_space == box
    assert isinstance(env.action_space, spaces.Dict)
    assert set(env.action_space) == {"mode", "n", "f"}
    assert env.spec is not None
    assert env.spec.nondeterministic


def test_context_before_action(tune: Any) -> None:
    """What is shown is what comes; what a step's info says is what it ran under."""
    env, one = tune(env_params={"load": EnvParam(NUMBERS, encoding="categorical")})
    upcoming: dict[str, Any] = {}
    for number in range(1, 30):
        if number % 3 == 1:
            observation, info = env.reset(seed=number)
            assert info["step"] == number
            upcoming = info["next_env_params"]
            assert NUMBERS.values[observation["context"]["load"]] == upcoming["load"]
        observation, _, terminated, truncated, info = env.step(encoded(env, n=1 + number % 8))
        assert (terminated, truncated) == (True, False)
        assert info["step"] == number
        assert info["env_params"] == upcoming == one.engine.context(number)
        upcoming = info["next_env_params"]
        assert upcoming == one.engine.context(number + 1)
        assert NUMBERS.values[observation["context"]["load"]] == upcoming["load"]
    assert len({trial.context["load"] for trial in one.trials()}) == 3
    assert [run["load"] for run in one.lab.runs] == [
        trial.context["load"] for trial in one.trials() if trial.cached_from is None
    ]


def test_reset_moves_nothing(tune: Any) -> None:
    """Neither the counter nor a context, whatever its seed."""
    params = {"rate": EnvParam(Range(0.0, 1.0))}
    env, one = tune(env_params=params, seed=4)
    for seed in (None, 1, 2, 1):
        assert env.reset(seed=seed)[1] == {"step": 1, "next_env_params": one.engine.context(1)}
    env.step(encoded(env))
    for seed in (None, 1):
        observation, info = env.reset(seed=seed)
        assert info == {"step": 2, "next_env_params": one.engine.context(2)}
        assert list(observation["observation"]) == [0.0, 0.0, 0.0]  # a new episode has measured nothing
    assert [trial.number for trial in one.trials()] == [1]


def outcomes(x: int, **_: Any) -> dict[str, float]:
    if x == 2:
        raise ValueError("no")
    if x == 3:
        raise TimeoutError
    if x == 5:
        return {"m": 1e300, "second": -1e300}
    if x == 6:
        return {"m": math.inf, "second": 1.0}
    return {"m": 7.0, "second": 8.0}


@pytest.mark.parametrize(
    ("x", "status", "slots"),
    [
        (1, "measured", [7.0, 8.0, 1.0]),
        (2, "failed", [0.0, 0.0, 0.0]),
        (3, "timed_out", [0.0, 0.0, 0.0]),
        (4, "infeasible", [0.0, 0.0, 0.0]),
        (5, "measured", [float(np.finfo(np.float32).max), -float(np.finfo(np.float32).max), 1.0]),
        (6, "failed", [0.0, 0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("env_params", [{}, {"load": EnvParam(NUMBERS)}])
def test_shapes(tune: Any, x: int, status: str, slots: list[float], env_params: dict[str, EnvParam]) -> None:
    """The declared shape and dtype, whatever the outcome; also after a measured trial."""
    xs = Choice((1, 2, 3, 4, 5, 6))
    env, one = tune(outcomes, knobs={"x": xs}, env_params=env_params, constraints=[lambda p: p["x"] != 4])
    assert env.observation_space.contains(env.reset()[0])
    env.step(env.encode_action({"x": 1}))
    observation, reward, _, _, info = env.step(env.encode_action({"x": x}))
    assert env.observation_space.contains(observation)
    metrics = observation["observation"] if env_params else observation
    assert metrics.dtype == np.float32
    assert list(metrics) == slots
    assert isinstance(reward, float)
    assert math.isfinite(reward)
    assert info["status"] == status == one.trials()[-1].status
    assert (info["reason"] == "") == (status == "measured")


def test_cache_through_step(tune: Any) -> None:
    """The cache as an agent of Gymnasium sees it."""
    values = iter(range(1, 100))
    env, one = tune(
        lambda **_: {"m": float(next(values)), "second": 0.0},
        knobs={"mode": Choice((1, 1.0, True)), "n": Range(1, 8, "int")},
    )

    def step(mode: int, n: float) -> tuple[float, bool]:
        _, reward, _, _, info = env.step({"mode": mode, "n": np.array([n])})
        return reward, info["cached"]

    assert step(0, 3) == (1.0, False)
    assert step(0, 3) == (1.0, True)
    assert step(0, 3.2) == (1.0, True)  # jitter rounds to the same key
    assert step(1, 3) == (2.0, False)  # 1.0 is not 1
    assert step(2, 3) == (3.0, False)  # nor is True
    assert step(0, 400) == (4.0, False)
    assert step(0, 8) == (4.0, True)  # clamped
    _, _, _, _, info = env.step({"n": np.array([3.0]), "mode": 1})
    assert info["cached"]  # whatever the order of the keys
    env.reset()
    assert step(0, 3) == (1.0, True)
    assert len(one.lab.runs) == 4
    assert [trial.number for trial in one.trials()] == list(range(1, 10))


def test_other_context_runs_again(tune: Any) -> None:
    env, one = tune(env_params={"load": EnvParam(Choice((1, 2)))})
    infos = [env.step(encoded(env))[4] for _ in range(20)]
    seen: set[int] = set()
    for info in infos:
        assert info["cached"] == (info["env_params"]["load"] in seen)
        seen.add(info["env_params"]["load"])
    assert len(one.lab.runs) == len(seen) == 2


def test_failures_run_again(tune: Any) -> None:
    def function(**_: Any) -> dict[str, float]:
        raise ValueError("no")

    env, one = tune(function)
    assert [env.step(encoded(env))[4]["cached"] for _ in range(3)] == [False] * 3
    assert len(one.lab.runs) == 3


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"mode": 0, "n": [1.0]}, "missing: f"),
        ({"mode": 0, "n": [1.0], "f": [0.5], "z": 1, "y": 2}, "extra: z, y"),
        ({"mode": 3, "n": [1.0], "f": [0.5]}, "mode: index 3 is out of range"),
        ({"mode": -1, "n": [1.0], "f": [0.5]}, "mode: index -1 is out of range"),
        ({"mode": 0, "n": [math.nan], "f": [0.5]}, "n: nan is not finite"),
    ],
)
def test_action_that_does_not_fit(tune: Any, action: dict[str, Any], message: str) -> None:
    """It says what is wrong, and uses no number."""
    env, one = tune()
    with pytest.raises(ActionError, match=message):
        env.step(action)
    assert one.store.highest == 0
    assert env.step(encoded(env))[4]["step"] == 1


def test_native_actions(tune: Any) -> None:
    env, one = tune(fixed={"other": "fixed"})
    info = env.step_raw({"n": 3, "f": 0.25, "mode": "b"})[4]
    assert info["action"] == {"mode": "b", "n": 3, "f": 0.25}
    assert one.lab.runs == [{"other": "fixed", "mode": "b", "n": 3, "f": 0.25}]  # fixed ones are injected
    with pytest.raises(ActionError, match="extra: other"):
        env.step_raw({"n": 3, "f": 0.25, "mode": "b", "other": "mine"})


def test_past_the_budget(tune: Any) -> None:
    env, one = tune(budget=Budget(agent_steps=2))
    env.step(encoded(env))
    env.step(encoded(env))
    with pytest.raises(BudgetError, match="agent_steps = 2"):
        env.step(encoded(env))
    assert len(one.trials()) == 2


def test_stopped_while_it_ran(tune: Any) -> None:
    def function(**_: Any) -> dict[str, float]:
        raise InterruptedError

    env, one = tune(function)
    with pytest.raises(BudgetError, match="stays open"):
        env.step(encoded(env))
    assert len(one.store.open_trials()) == 1


def test_close_leaves_the_journal_complete(tune: Any) -> None:
    """Twice is fine."""
    env, one = tune(store="journal")
    env.step(encoded(env))
    env.reset()
    env.close()
    env.close()
    assert (one.folder / "trajectory.csv").read_text().count("\n") == 2
    assert not (one.folder / "writer.lock").exists()
