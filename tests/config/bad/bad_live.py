"""What the wrong live scenarios refer to."""

from typing import ClassVar

from tunegym.core.errors import Problem
from tunegym.tuning.agents.base import BaseAgent


class LiveDriver(BaseAgent):
    """What drives a live experiment, unless it is called ugly."""

    @classmethod
    def check(cls, experiment, scenario_dir):
        del scenario_dir
        refused = [Problem("name", "this agent can't stand the name", hint="rename it")]
        return refused if experiment.name == "ugly" else []


class Driver(BaseAgent):
    """An agent that can drive a live system, and nothing that varies."""

    kinds: ClassVar = {"trials": None, "live": "bad_live:LiveDriver"}


class VaryingDriver(Driver):
    """One that copes with what varies."""

    supports_variable_environment = True


class Lost(BaseAgent):
    """One that names what isn't there."""

    kinds: ClassVar = {"trials": None, "live": "bad_live:Missing"}


class Confused(BaseAgent):
    """One that names what is no agent."""

    kinds: ClassVar = {"trials": None, "live": "bad_live:number"}


number = 3


class Server:
    """Has all that a server needs, and takes no env_params."""

    def __init__(self, size, speed=1.0):
        del size, speed

    def reset(self, *, seed=None, options=None):
        raise NotImplementedError

    def step(self, action):
        raise NotImplementedError

    def close(self):
        pass


class Varying(Server):
    """Can be told what is drawn."""

    def apply_env_params(self, params):
        pass


class Endless:
    """Has no close()."""

    def reset(self, *, seed=None, options=None):
        raise NotImplementedError

    def step(self, action):
        raise NotImplementedError


def make():
    return Server(1)


def reward(latency_s, cpu_s):
    return latency_s / cpu_s


class LiveOnly(BaseAgent):
    """One that drives live systems and nothing else."""

    kinds: ClassVar = {"live": None}
