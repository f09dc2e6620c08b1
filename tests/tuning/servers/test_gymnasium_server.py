"""``GymnasiumServer``: any Gymnasium environment, with attributes as env_params."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tunegym.servers import GymnasiumServer
from tunegym.tuning.servers.gymnasium_server import EnvParamError


class Engine:
    power = 2.0


class Car(gymnasium.Env):
    """Has an attribute of every kind."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,))

    def __init__(self, mass: float = 1.0) -> None:
        self.mass = mass
        self.wheels = 4
        self.mode = "eco"
        self.abs = True
        self.engine = Engine()
        self.drag = np.zeros(3)
        self.redrawn = 1.0

    @property
    def weight(self) -> float:
        return 9.8 * self.mass

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.redrawn = 1.0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), self.engine.power / self.mass, False, False, {}


gymnasium.register("tunegym-test/Car-v0", Car, max_episode_steps=50)
CAR = "tunegym-test/Car-v0"


def test_attributes_are_env_params() -> None:
    server = GymnasiumServer(CAR, mass=2.0, max_episode_steps=9)
    assert "TimeLimit" in str(server._env)
    server.reset()
    assert server.step(0)[1] == 1.0
    server.apply_env_params({"mass": 4, "engine.power": 6.0, "mode": "sport", "abs": False, "wheels": 3})
    env: Any = server._env.unwrapped
    assert (env.mass, env.mode, env.abs, env.wheels) == (4.0, "sport", False, 3)
    assert type(env.mass) is float  # an integer for a float is a float
    assert server.step(0)[1] == 1.5
    server.reset()
    assert server.step(0)[1] == 1.5
    other: Any = GymnasiumServer(CAR)
    assert other._env.unwrapped.mass == 1.0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mas": 1.0}, "Car has no attribute 'mas', which the env_param mas would set; did you mean .mass."),
        ({"engine.powr": 1.0}, "Engine has no attribute 'powr'"),
        ({"engine": 1.0}, "engine is of type Engine, and can't be an env_param; name a number in it, as in engine.x"),
        ({"drag": 1.0}, "drag is of type ndarray"),
        ({"mass": "heavy"}, "mass is a number .1.0., and 'heavy' is no finite number"),
        ({"mass": True}, "mass is a number"),
        ({"mass": float("inf")}, "no finite number"),
        ({"mode": 3}, "mode is a string .'eco'., and 3 is not"),
        ({"abs": 1}, "abs is a boolean"),
        ({"weight": 3.0}, r"weight can't be set to 3\.0: AttributeError"),
    ],
)
def test_refused(params: dict[str, Any], message: str) -> None:
    server = GymnasiumServer(CAR)
    with pytest.raises(EnvParamError, match=message) as refused:
        server.apply_env_params({"wheels": 3, **params})
    assert "\n" not in str(refused.value)
    if "weight" not in params:
        assert server._env.unwrapped.wheels == 4  # type: ignore[attr-defined]


def test_an_attribute_that_reset_chooses_itself() -> None:
    server = GymnasiumServer(CAR)
    server.apply_env_params({"redrawn": 2.0})
    with pytest.raises(EnvParamError, match=r"reset\(\) set redrawn to 1\.0, after it was set to 2\.0"):
        server.reset()
    server.apply_env_params({"mass": 2.0})
    server.reset()
