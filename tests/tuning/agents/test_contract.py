"""The contract of every built-in agent, on trials and on live systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.testing.agents import AgentSuite, LiveAgentSuite
from tunegym.tuning.agents.bandit import ContextualBandit
from tunegym.tuning.agents.optuna import OptunaAgent
from tunegym.tuning.agents.sb3.agents import A2c, Dqn, LiveA2c, LiveDqn, LivePpo, LiveSac, Ppo, Sac
from tunegym.tuning.agents.search import GridSearch, LiveRandom, RandomSearch
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Range

pytest.importorskip("stable_baselines3")
pytest.importorskip("optuna")
slow = pytest.mark.slow


class TestGrid(AgentSuite):
    agent = GridSearch


class TestRandom(AgentSuite):
    agent = RandomSearch


class TestRandomOverRanges(AgentSuite):
    agent = RandomSearch
    config: ClassVar = {"start_action": "first", "rewards": {"metric_failure": -5.0}}
    knobs: ClassVar = {
        "mode": Choice(("a", "b")),
        "threads": Range(1, 64, "int", log=True),
        "ratio": Range(0.0, 1.0),
    }


# optuna --------------------------------------------------------------------------------------------


class OptunaSuite(AgentSuite):
    """Past its start-up within 24 trials."""

    agent = OptunaAgent
    resumes_exactly = True


@slow
class TestTpe(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "tpe", "startup_trials": 5}


@slow
class TestGp(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "gp", "startup_trials": 20}


@slow
class TestCmaes(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "cmaes", "population": 4}
    knobs: ClassVar[Mapping[str, Knob]] = {
        "depth": Range(0, 30, "int"),
        "rate": Range(1e-4, 1.0, "float", log=True),
        "algorithm": Choice(("cubic", "reno", "bbr")),
    }


@slow
class TestNsgaii(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "nsgaii", "population": 6}


@slow
class TestQmc(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "qmc"}


@slow
class TestOptunaRandom(OptunaSuite):
    config: ClassVar[Mapping[str, Any]] = {"sampler": "random"}


# contextual_bandit ---------------------------------------------------------------------------------


class BanditSuite(AgentSuite):
    """Past its first fits within 24 trials."""

    agent = ContextualBandit
    resumes_exactly = True


class TestBandit(BanditSuite):
    """All combinations are candidates."""


@slow
class TestBanditOverRanges(BanditSuite):
    """More than can be enumerated, and values between the bins."""

    config: ClassVar[Mapping[str, Any]] = {"bins": 4, "start_action": "first"}
    knobs: ClassVar[Mapping[str, Knob]] = {
        "algorithm": Choice(("cubic", "reno", "bbr", "vegas", "westwood", "dctcp", "htcp", "illinois")),
        "threads": Range(1, 64, "int", log=True),
        "ratio": Range(0.0, 1.0),
        "rate": Range(1e-4, 1.0, log=True),
        "only": Choice((True,)),
    }


@slow
class TestBanditInContinuousContexts(BanditSuite):
    @property
    def env_params(self) -> Mapping[str, EnvParam]:
        return {"load": EnvParam(Range(1.0, 100.0, log=True)), "kind": EnvParam(Choice(("a", "b")), (0.7, 0.3))}


def test_the_suite_knows_which_agents_learn() -> None:
    assert TestBandit().learns
    assert not TestGrid().learns


# policy agents -------------------------------------------------------------------------------------


@slow
class TestPpo(AgentSuite):
    agent = Ppo
    config: ClassVar[dict[str, Any]] = {"n_steps": 6, "checkpoint_every": 6, "joint": True}


@slow
class TestPpoOneKnobAtATime(AgentSuite):
    agent = Ppo
    config: ClassVar[dict[str, Any]] = {"n_steps": 6, "joint": False, "bins": 3, "start_action": "first"}
    knobs: ClassVar[dict[str, Knob]] = {
        "algorithm": Choice(("cubic", "reno", "bbr")),
        "depth": Range(0, 30, "int", step=10),
        "wide": Range(1.0, 1e9, log=True),
        "n": Range(1, 1_000_000, "int"),
    }


@slow
class TestA2c(AgentSuite):
    agent = A2c
    config: ClassVar[dict[str, Any]] = {"n_steps": 5, "checkpoint_every": 5}


@slow
class TestDqn(AgentSuite):
    agent = Dqn
    config: ClassVar[dict[str, Any]] = {"learning_starts": 6, "train_freq": 2, "checkpoint_every": 4}


@slow
class TestSac(AgentSuite):
    agent = Sac
    config: ClassVar[dict[str, Any]] = {"learning_starts": 6, "train_freq": 2, "checkpoint_every": 4}
    knobs: ClassVar[dict[str, Knob]] = {
        "depth": Range(0, 30, "int", step=10),
        "share": Range(0.0, 0.3, step=0.1),
        "wide": Range(1e-3, 1e3, log=True),
    }


# live systems --------------------------------------------------------------------------------------

NESTED = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]), "b": spaces.Box(0, 1)})
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))


class TestLiveRandom(LiveAgentSuite):
    agent = LiveRandom
    learns = False


class TestLiveRandomNested(LiveAgentSuite):
    agent = LiveRandom
    learns = False
    actions: ClassVar[spaces.Space[Any]] = NESTED
    steps: ClassVar[int] = 700  # more than two blocks


@slow
class TestLivePpo(LiveAgentSuite):
    agent = LivePpo
    config: ClassVar[dict[str, Any]] = {"n_steps": 16, "batch_size": 8, "n_epochs": 2, "checkpoint_every": 20}


@slow
class TestLivePpoBox(LiveAgentSuite):
    agent = LivePpo
    config: ClassVar[dict[str, Any]] = {"n_steps": 16, "learning_rate_schedule": "linear", "random_seed": None}
    actions: ClassVar[spaces.Space[Any]] = BOX


@slow
class TestLiveA2c(LiveAgentSuite):
    agent = LiveA2c
    config: ClassVar[dict[str, Any]] = {"checkpoint_every": 30, "net_arch": [8]}
    actions: ClassVar[spaces.Space[Any]] = spaces.MultiDiscrete([3, 2], start=[-1, 5])


@slow
class TestLiveDqn(LiveAgentSuite):
    agent = LiveDqn
    config: ClassVar[dict[str, Any]] = {"learning_starts": 20, "checkpoint_every": 30, "buffer_size": 100}
    actions: ClassVar[spaces.Space[Any]] = spaces.Discrete(3, start=-1)


@slow
class TestLiveSac(LiveAgentSuite):
    agent = LiveSac
    config: ClassVar[dict[str, Any]] = {
        "checkpoint_every": 30,
        "batch_size": 16,
        "net_arch": [16],
        "gradient_steps": -1,
    }
    actions: ClassVar[spaces.Space[Any]] = BOX
