"""Wrappers: other spaces around the same trials."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.errors import TunegymError
from tunegym.tuning.envs.face import TuneEnv
from tunegym.tuning.envs.wrappers import (
    CLIP,
    HINT,
    BoxActions,
    DiscreteActions,
    FlatObservations,
    MultiDiscreteActions,
    NormalizedObservations,
)
from tunegym.tuning.model.space import Choice, EnvParam, Range
from tunegym.tuning.model.trial import Observation

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


def test_other_environments_are_refused() -> None:
    for wrap in (MultiDiscreteActions, BoxActions, DiscreteActions):
        with pytest.raises(TunegymError, match=r"an environment of tunegym.make\(\), not CartPoleEnv"):
            wrap(gymnasium.make("CartPole-v1"))

    class Odd(gymnasium.Env[Any, Any]):
        observation_space = spaces.Dict({"a": spaces.Discrete(2)})

    with pytest.raises(TunegymError, match=r"tunegym.make\(\), not one with Dict"):
        NormalizedObservations(Odd())


# observations -----------------------------------------------------------------------------------------------


def test_metrics_of_any_size_are_scaled(tune: Make) -> None:
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


def test_contexts_are_flat_and_failures_zeros(tune: Make) -> None:
    env = NormalizedObservations(tune(crashes, env_params=PARAMS)[0])
    assert env.observation_space.shape == (1 + 1 + 3 + 2 + 1,)
    observation, info = env.reset()
    statuses = set()
    for _ in range(30):
        context = info["next_env_params"]
        kind, load = observation[2:5], observation[5:7]
        assert kind.tolist() == [float(context["kind"] == name) for name in "xyz"]
        assert load.tolist() == {0: [0.0, 0.0], 1: [1.0, 0.0], 100: [1.0, 1.0]}[context["load"]]
        observation, *_, info = env.step(env.action_space.sample())
        statuses.add(info["status"])
        assert observation[1] == (info["status"] == "measured")
        assert observation[0] == 0.0 or observation[1]
        assert env.reset()[0][:2].tolist() == [0.0, 0.0]
    assert statuses == {"measured", "failed"}


# the checkers -----------------------------------------------------------------------------------------------

WRAPPED: dict[str, tuple[Callable[[TuneEnv], gymnasium.Env[Any, Any]], dict[str, Any]]] = {
    "multi-discrete": (MultiDiscreteActions, KNOBS),
    "box": (BoxActions, RANGES),
    "discrete": (lambda env: DiscreteActions(env, bins=3), KNOBS),
    "normalised": (NormalizedObservations, KNOBS),
    "both": (lambda env: MultiDiscreteActions(NormalizedObservations(env)), KNOBS),
    "both, box": (lambda env: NormalizedObservations(BoxActions(env)), RANGES),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # about native units and the unwrapped environment
@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("params", [{}, PARAMS], ids=["plain", "contexts"])
@pytest.mark.parametrize("function", [None, crashes], ids=["measured", "crashing"])
def test_gymnasium_checks_them(tune: Make, name: str, params: dict[str, EnvParam], function: Any) -> None:
    wrap, knobs = WRAPPED[name]
    env = wrap(tune(function, knobs=knobs, env_params=params, episode_steps=3)[0])
    check_env(env, skip_render_check=True, skip_close_check=True)
    for _ in range(10):
        element = env.action_space.sample()
        observation, *_, info = env.step(element)
        assert env.observation_space.contains(observation)
        if name in ("multi-discrete", "box", "discrete"):
            assert info["action"] == env.decode_action(element)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["both", "both, box"])
@pytest.mark.parametrize("steps", [1, 3])
def test_sb3_can_train_on_them(tune: Make, name: str, steps: int) -> None:
    """Its checker has no complaint where actions and observations are wrapped."""
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    wrap, knobs = WRAPPED[name]
    env = wrap(tune(crashes, knobs=knobs, env_params=PARAMS, episode_steps=steps)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_check_env(env, warn=True)


finite = st.floats(allow_nan=False, allow_infinity=False)


# the vector -------------------------------------------------------------------------------------------------


@pytest.fixture
def flattened(bench: Callable[..., Any]) -> Callable[..., tuple[FlatObservations, Any]]:
    def make(**params: EnvParam) -> tuple[FlatObservations, Any]:
        one = bench(lambda x, **_: {"m": 1.0, "n": 2.0}, env_params=params, agent_metrics=("m", "n"))
        return FlatObservations(one.engine), one

    return make


def test_slots_of_a_flat_observation(flattened: Any) -> None:
    params = {"z": EnvParam(Choice(("a", "b", "c"))), "a": EnvParam(Range(0.0, 4.0))}
    observations, _ = flattened(**params)
    low = np.array([-CLIP, -CLIP, 0, 0, 0, 0, 0], dtype=np.float32)
    high = np.array([CLIP, CLIP, 1, 1, 1, 1, 1], dtype=np.float32)
    assert observations.space == spaces.Box(low, high)
    context = {"z": "b", "a": 1.0}
    assert observations.encode(Observation(1, context)).tolist() == [0, 0, 0, 0.25, 0, 1, 0]  # leaves by name
    observations.learn({"m": 1.0, "n": 5.0})
    observations.learn({"n": 7.0, "m": 3.0})
    shown = observations.encode(Observation(3, context, {"n": 7.0, "m": 2.0, "other": 9.0}, measured=True))
    assert shown.tolist() == pytest.approx([0, HINT, 1, 0.25, 0, 1, 0])
    assert shown.dtype == np.float32
    assert observations.usual(context).tolist() == [0, 0, 1, 0.25, 0, 1, 0]


@given(st.lists(st.tuples(finite, finite), max_size=20), st.tuples(finite, finite))
def test_any_measurement_is_in_the_space(learned: list[tuple[float, float]], last: tuple[float, float]) -> None:
    observations = FlatObservations(_Two())  # type: ignore[arg-type]
    for m, n in learned:
        observations.learn({"m": m, "n": n})
    shown = observations.encode(Observation(1, {}, {"m": last[0], "n": last[1]}, measured=True))
    assert observations.space.contains(shown)
    assert (abs(observations.scale.scaled(np.array(last))) <= CLIP).all(), "never NaN"


class _Two:
    """As much of an ``Env`` as is looked at."""

    class experiment:  # noqa: N801
        agent_metrics = ("m", "n")
