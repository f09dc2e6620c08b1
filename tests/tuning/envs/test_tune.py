"""The Gymnasium face."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.conftest import no_space

from tunegym.core.errors import TunegymError
from tunegym.tuning.encodings import ENCODINGS
from tunegym.tuning.envs.face import TuneEnv
from tunegym.tuning.model.space import Choice, EnvParam, Range

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


# episodes ---------------------------------------------------------------------------------------------------


def test_reset_begins_an_episode_and_moves_nothing(tune: Any) -> None:
    """A long episode is truncated. A reset changes neither the counter nor a context, whatever its seed."""
    env, one = tune(episode_steps=10, env_params={"load": EnvParam(NUMBERS)})
    numbers, ends = [], []
    for step in range(1, 31):
        for seed in (None, 1, 2) if step in (1, 4, 5) else ():
            observation, info = env.reset(seed=seed)
            assert info == {"step": step, "next_env_params": one.engine.context(step)}
            assert list(observation["observation"]) == [0.0, 0.0, 0.0]  # a new episode has measured nothing
        *_, truncated, info = env.step(encoded(env))
        numbers.append(info["step"])
        ends.append(truncated)
    assert numbers == list(range(1, 31))
    assert [step for step, truncated in enumerate(ends, start=1) if truncated] == [14, 24]


def test_info_of_a_step(tune: Any) -> None:
    env, one = tune(env_params={"load": EnvParam(NUMBERS)})
    env.step(encoded(env, n=3))
    _, _, _, _, info = env.step(encoded(env, n=4))
    assert info == {
        "step": 2,
        "status": "measured",
        "cached": False,
        "env_params": one.engine.context(2),
        "next_env_params": one.engine.context(3),
        "metrics": {"m": 4.0, "second": 2.5},
        "action": {"mode": "a", "n": 4, "f": 0.5},
        "reason": "",
    }
    info["metrics"]["m"] = info["action"]["n"] = info["env_params"]["load"] = None  # it is the caller's own
    info["next_env_params"]["load"] = None
    assert one.trials()[1].metrics == {"m": 4.0, "second": 2.5}
    assert env.reset()[1]["next_env_params"] == one.engine.context(3)
    assert env.step(encoded(env, n=4))[4]["env_params"] == one.engine.context(3)


# the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["without a step", "within an episode", "at its end"])
def test_close_leaves_the_journal_complete(tune: Any, steps: int) -> None:
    """Twice is fine, and afterwards it says what is the matter."""
    env, one = tune(store="journal", episode_steps=3)
    env.reset()
    for _ in range(steps):
        env.step(encoded(env))
    env.close()
    env.close()
    assert (one.folder / "trajectory.csv").read_text().count("\n") == steps + 1
    assert not (one.folder / "writer.lock").exists()
    for call in (env.reset, lambda: env.step(encoded(env)), lambda: env.step_raw({"mode": "a", "n": 1, "f": 0.5})):
        with pytest.raises(TunegymError, match="the environment is closed") as caught:
            call()
        assert caught.value.hint is not None
    assert env.decode_action(encoded(env)) == {"mode": "a", "n": 1, "f": 0.5}


def test_close_releases_the_journal_after_an_error(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env, one = tune(store="journal")
    with monkeypatch.context() as patched:
        patched.setattr(one.engine, "close", no_space)
        with pytest.raises(OSError, match="No space"):
            env.close()
    assert not (one.folder / "writer.lock").exists()
    env.close()


@pytest.mark.parametrize("slots", [1, 2])
def test_interrupted_step(tune: Any, slots: int) -> None:
    """Somebody interrupts a step: the next one is a trial of its own, and close() closes what was left."""
    interrupted = iter([False, True, False])

    def function(**parameters: Any) -> dict[str, float]:
        if next(interrupted):
            raise KeyboardInterrupt
        return {"m": float(parameters["n"]), "second": 0.0}

    env, one = tune(function, slots=slots, store="journal", cache=False)
    assert env.step(encoded(env, n=1))[1] == 1.0
    with pytest.raises(KeyboardInterrupt):
        env.step(encoded(env, n=2))
    _, reward, _, _, info = env.step(encoded(env, n=3))
    assert (reward, info["step"]) == (3.0, 3)
    env.close()
    assert [trial.status for trial in one.trials()] == ["measured", "cancelled", "measured"]
