"""Wrappers: other spaces around the same trials."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tunegym.core.errors import ActionError, TunegymError
from tunegym.tuning.envs.face import TuneEnv
from tunegym.tuning.envs.wrappers import BoxActions, DiscreteActions, MultiDiscreteActions, NormalizedObservations
from tunegym.tuning.model.space import Choice, EnvParam, Range

KNOBS = {
    "mode": Choice(("a", 1, 1.0, True)),
    "n": Range(1, 8, "int"),
    "size": Range(64, 65536, "int", log=True),
    "stepped": Range(0, 100, "int", step=25),
    "f": Range(0.0, 1.0),
}
RANGES = {name: knob for name, knob in KNOBS.items() if isinstance(knob, Range)}
PARAMS = {
    "kind": EnvParam(Choice(("x", "y", "z"))),
    "load": EnvParam(Choice((0, 1, 100)), encoding="log"),
    "rate": EnvParam(Range(0.001, 1.0, log=True)),
}

Make = Callable[..., tuple[TuneEnv, Any]]


@pytest.fixture
def tune(bench: Callable[..., Any]) -> Make:
    def make(function: Callable[..., Any] | None = None, **settings: Any) -> tuple[TuneEnv, Any]:
        one = bench(function or (lambda **p: {"m": float(p.get("n", 1))}), **{"knobs": KNOBS, **settings})
        return TuneEnv(one.engine, on_close=one.store.close), one

    return make


def crashes(**parameters: Any) -> dict[str, float]:
    if parameters["n"] % 2:
        raise ValueError("no")
    return {"m": float(parameters["n"])}


# actions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrap", "space"),
    [
        (MultiDiscreteActions, spaces.MultiDiscrete([4, 8, 10, 5, 10])),
        (lambda env: MultiDiscreteActions(env, bins=3), spaces.MultiDiscrete([4, 3, 3, 3, 3])),
        (lambda env: DiscreteActions(env, bins=3), spaces.Discrete(4 * 3**4)),
    ],
)
def test_mixed_knobs(tune: Make, wrap: Any, space: spaces.Space[Any]) -> None:
    """An element becomes a trial with native values, and these become the same element."""
    tuned, one = tune()
    env = wrap(tuned)
    assert env.action_space == space
    env.action_space.seed(1)
    env.reset()
    for number in range(1, 20):
        element = env.action_space.sample()
        *_, info = env.step(element)
        assert (info["step"], info["status"]) == (number, "measured")
        assert info["action"] == env.decode_action(element) == one.trials()[-1].action
        assert np.array_equal(env.encode_action(info["action"]), element)


@pytest.mark.parametrize(
    ("wrap", "element"),
    [
        (MultiDiscreteActions, [0, 0, 0, 0]),
        (MultiDiscreteActions, [4, 0, 0, 0, 0]),
        (MultiDiscreteActions, [0, 0, 0, 0, -1]),
        (MultiDiscreteActions, [0.5, 0, 0, 0, 0]),
        (lambda env: DiscreteActions(env, bins=2), 64),
        (lambda env: DiscreteActions(env, bins=2), math.nan),
    ],
)
def test_what_does_not_fit_uses_no_number(tune: Make, wrap: Any, element: Any) -> None:
    tuned, one = tune()
    env = wrap(tuned)
    with pytest.raises(ActionError):
        env.step(element)
    assert one.store.highest == 0


def test_a_stranger_is_refused() -> None:
    for wrap in (MultiDiscreteActions, BoxActions, DiscreteActions):
        with pytest.raises(TunegymError, match=r"an environment of tunegym.make\(\), not CartPoleEnv"):
            wrap(gymnasium.make("CartPole-v1"))

    class Odd(gymnasium.Env[Any, Any]):
        observation_space = spaces.Dict({"a": spaces.Discrete(2)})

    with pytest.raises(TunegymError, match=r"tunegym.make\(\), not one with Dict"):
        NormalizedObservations(Odd())


# observations -----------------------------------------------------------------------------------------------


def test_metrics_of_any_size_come_out_alike(tune: Make) -> None:
    """Bytes and seconds in the same vector; a constant is 0."""
    metrics = {"agent_metrics": ("bytes", "seconds", "constant")}
    tuned, _ = tune(lambda f, **_: {"bytes": 1e9 * f, "seconds": 1e-9 * f, "constant": 4.2}, **metrics)
    env = NormalizedObservations(tuned)
    assert env.observation_space.shape == (4,)
    env.reset()
    env.action_space.seed(0)
    shown = np.array([env.step(env.action_space.sample())[0] for _ in range(200)])
    assert shown[:, 0] == pytest.approx(shown[:, 1], abs=1e-3)
    assert 0.5 < shown[50:, 0].std() < 2.0
    assert (shown[:, 2] == 0.0).all()
    assert (shown[:, 3] == 1.0).all()


def test_contexts_are_flat(tune: Make) -> None:
    tuned, one = tune(env_params=PARAMS)
    env = NormalizedObservations(tuned)
    assert env.observation_space.shape == (1 + 1 + 3 + 2 + 1,)
    observation, info = env.reset()
    for _ in range(20):
        context = info["next_env_params"]
        kind, load = observation[2:5], observation[5:7]
        assert kind.tolist() == [float(context["kind"] == name) for name in "xyz"]
        assert load.tolist() == {0: [0.0, 0.0], 1: [1.0, 0.0], 100: [1.0, 1.0]}[context["load"]]
        observation, *_, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
    assert info["next_env_params"] == one.engine.context(21)


def test_failures_and_resets_are_zeros(tune: Make) -> None:
    tuned, _ = tune(crashes)
    env = NormalizedObservations(tuned)
    usual = {"mode": "a", "size": 64, "stepped": 0, "f": 0.0}
    for n in (2, 4, 8, 1, 6, 3):
        observation, *_, info = env.step(tuned.encode_action({**usual, "n": n}))
        assert (observation[-1] == 1.0) == (info["status"] == "measured")
        if info["status"] != "measured":
            assert observation.tolist() == [0.0, 0.0]
        assert env.reset()[0].tolist() == [0.0, 0.0]


# the checkers -----------------------------------------------------------------------------------------------

WRAPPED: dict[str, tuple[Callable[[TuneEnv], gymnasium.Env[Any, Any]], dict[str, Any]]] = {
    "multi-discrete": (MultiDiscreteActions, KNOBS),
    "box": (BoxActions, RANGES),
    "discrete": (lambda env: DiscreteActions(env, bins=3), KNOBS),
    "normalised": (NormalizedObservations, KNOBS),
    "both": (lambda env: MultiDiscreteActions(NormalizedObservations(env)), KNOBS),
    "both, box": (lambda env: NormalizedObservations(BoxActions(env)), RANGES),
}


def said_by(check: Callable[[], object]) -> set[str]:
    """What a checker warns of, by the words that each of its warnings is known by."""
    known = {
        "unwrapped version": "it would rather check what is below",
        "A Box observation space": "metrics have no bounds",
        "symmetric and normalized space": "ranges are in native units",
        "not based off a numpy array": "Dict actions",
        "Nested observation spaces": "nested Dict observations",
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check()
    said = set()
    for warning in caught:
        text = str(warning.message)
        said.add(next((meaning for words, meaning in known.items() if words in text), text))
    return said


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("params", [{}, PARAMS], ids=["plain", "contexts"])
@pytest.mark.parametrize("function", [None, crashes], ids=["measured", "crashing"])
def test_gymnasium_checks_them(tune: Make, name: str, params: dict[str, EnvParam], function: Any) -> None:
    wrap, knobs = WRAPPED[name]
    env = wrap(tune(function, knobs=knobs, env_params=params, episode_steps=3)[0])
    expected = {"it would rather check what is below"}
    if name == "normalised":
        expected.add("ranges are in native units")
    if name in ("multi-discrete", "box", "discrete"):
        expected.add("metrics have no bounds")
    assert said_by(lambda: check_env(env, skip_render_check=True, skip_close_check=True)) == expected
    for _ in range(10):
        observation, *_ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("params", [{}, PARAMS], ids=["plain", "contexts"])
@pytest.mark.parametrize("steps", [1, 3])
def test_sb3_checks_them(tune: Make, name: str, params: dict[str, EnvParam], steps: int) -> None:
    """It says nothing where actions are wrapped and, with contexts, observations too: then SB3 can train."""
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    wrap, knobs = WRAPPED[name]
    env = wrap(tune(crashes, knobs=knobs, env_params=params, episode_steps=steps)[0])
    expected: set[str] = {"Dict actions"} if name == "normalised" else set()
    if params and name in ("multi-discrete", "box", "discrete"):
        expected.add("nested Dict observations")
    assert said_by(lambda: sb3_check_env(env, warn=True)) == expected
