"""Servers, agents and rewards that the wrong live scenarios name."""

import abc
from typing import ClassVar

from gymnasium import spaces

from tunegym.core.errors import Problem
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.ports import GymServer

number = 3


class LiveDriver(BaseAgent):
    """Drives a live experiment, unless it is called ugly."""

    @classmethod
    def check(cls, experiment, scenario_dir):
        refused = [Problem("name", "this agent can't stand the name", hint="rename it")]
        return refused if experiment.name == "ugly" else []


class Driver(BaseAgent):
    kinds: ClassVar = {"trials": None, "live": "bad_live:LiveDriver"}


class VaryingDriver(Driver):
    supports_variable_environment = True


class Lost(BaseAgent):
    kinds: ClassVar = {"trials": None, "live": "bad_live:Missing"}


class Confused(BaseAgent):
    kinds: ClassVar = {"trials": None, "live": "bad_live:number"}


class LiveOnly(BaseAgent):
    kinds: ClassVar = {"live": None}


class Moody:
    def __init__(self, env, config, seed, mood): ...
    def run(self): ...
    def close(self): ...


class Endless:
    """Has no close()."""

    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...


class Server(Endless):
    """Takes no env_params."""

    def __init__(self, size, speed=1.0): ...
    def close(self): ...


class Forgot(GymServer):
    reset, step = Endless.reset, Endless.step


class NoStep:
    reset, close = Server.reset, Server.close

    def stepp(self, action): ...


class OddReset(Server):
    def reset(self): ...


class OddStep(Server):
    def step(self): ...


class Positional(Server):
    def __init__(self, size, /): ...


class Abstract(Server, abc.ABC):
    @abc.abstractmethod
    def more(self): ...


class Nested(Server):
    """Declares its actions."""

    action_space = spaces.Dict({"gain": spaces.Box(0.0, 1.0)})


class Varying(Server):
    def apply_env_params(self, params): ...


def make():
    return Server(1)


def reward(latency_s, cpu_s):
    return latency_s / cpu_s
