"""A live server and an agent that drives one, for the corpus: nothing here is ever run."""

from typing import ClassVar

from tunegym.core.errors import Problem
from tunegym.tuning.agents.base import BaseAgent


class LiveDriver(BaseAgent):
    """What drives a live experiment."""

    supports_variable_environment = True

    @classmethod
    def check(cls, experiment, scenario_dir):
        assert experiment.live is not None
        hint = "name it otherwise"
        return [Problem("name", "a name that the agent can't stand", hint=hint)] if experiment.name == "ugly" else []


class Driver(BaseAgent):
    """An agent that can."""

    kinds: ClassVar = {"trials": None, "live": "good_live:LiveDriver"}


class Server:
    """Takes some arguments."""

    def __init__(self, size, speed=1.0, layers=(), limits=None, timeout_s=None):
        del size, speed, layers, limits, timeout_s

    def reset(self, *, seed=None, options=None):
        raise NotImplementedError

    def step(self, action):
        raise NotImplementedError

    def close(self):
        pass

    def apply_env_params(self, params):
        pass


def cost(latency_s, errors):
    return -latency_s - 10 * errors
