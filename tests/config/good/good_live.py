"""A live server and an agent that drives one, for the corpus: nothing here is ever run."""

from typing import ClassVar

from tunegym.core.errors import Problem
from tunegym.tuning.agents.base import BaseAgent


class LiveDriver(BaseAgent):
    supports_variable_environment = True

    @classmethod
    def check(cls, experiment, scenario_dir):
        refused = [Problem("name", "a name that the agent can't stand", hint="name it otherwise")]
        return refused if experiment.name == "ugly" else []


class Driver(BaseAgent):
    kinds: ClassVar = {"trials": None, "live": "good_live:LiveDriver"}


class Server:
    def __init__(self, size, speed=1.0, layers=(), limits=None, timeout_s=None): ...
    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...
    def close(self): ...
    def apply_env_params(self, params): ...


def cost(latency_s, errors):
    return -latency_s - 10 * errors
