"""The contract of every built-in agent, on trials and on live systems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.testing.agents import AgentSuite, LiveAgentSuite
from tunegym.tuning.agents.bayes import Bayes
from tunegym.tuning.agents.optuna import OptunaAgent
from tunegym.tuning.agents.sb3.agents import A2c, Dqn, LiveA2c, LiveDqn, LivePpo, LiveSac, Ppo, Sac
from tunegym.tuning.agents.search import GridSearch, LiveRandom, RandomSearch
from tunegym.tuning.model.space import Choice, EnvParam, Range

pytest.importorskip("stable_baselines3")
pytest.importorskip("optuna")
slow = pytest.mark.slow


def suite(tested: Any, *marks: Any, **attributes: Any) -> Any:
    """A test class for an agent."""
    base = LiveAgentSuite if tested.__name__.startswith("Live") else AgentSuite
    return type("Suite", (base,), {"agent": tested, "pytestmark": list(marks), "__module__": __name__, **attributes})


ALGORITHM, DEPTH = Choice(("cubic", "reno", "bbr")), Range(0, 30, "int", step=10)
NUMBERS = {"threads": Range(1, 64, "int", log=True), "ratio": Range(0.0, 1.0)}

TestGrid = suite(GridSearch)
TestRandom = suite(RandomSearch)
TestRandomOverRanges = suite(
    RandomSearch,
    config={"start_action": "first", "rewards": {"metric_failure": -5.0}},
    knobs={"mode": Choice(("a", "b")), **NUMBERS},
)


def optuna(sampler: str, **more: Any) -> Any:
    """A test class for a sampler; it is past its start-up within 24 trials."""
    attributes = {name: more.pop(name) for name in ("knobs", "env_params") if name in more}
    return suite(OptunaAgent, slow, config={"sampler": sampler, **more}, resumes_exactly=True, **attributes)


ONE: dict[str, EnvParam] = {}
"""A single context."""
TestTpe = optuna("tpe", startup_trials=5, env_params=ONE)
TestTpeOverRanges = optuna("tpe", startup_trials=5, knobs=NUMBERS, env_params=ONE)
TestTpeInASmallSpace = optuna(
    "tpe", startup_trials=5, knobs={"algorithm": ALGORITHM, "x": Choice(tuple(range(10)))}, env_params=ONE
)
TestTpeInContexts = optuna("tpe", startup_trials=3)
TestGp = optuna("gp", startup_trials=20, env_params=ONE)
TestCmaes = optuna(
    "cmaes",
    population=4,
    knobs={"depth": Range(0, 30, "int"), "rate": Range(1e-4, 1.0, log=True), "algorithm": ALGORITHM},
    env_params=ONE,
)
TestNsgaii = optuna("nsgaii", population=6, env_params=ONE)
TestQmc = optuna("qmc")
TestOptunaRandom = optuna("random")


def bayes(**attributes: Any) -> Any:
    """A test class for the default agent; the model chooses from the seventh trial on."""
    return suite(Bayes, resumes_exactly=True, **attributes)


TestBayes = bayes(config={"start_action": "first", "random_seed": 4})
TestBayesInOneContext = bayes(env_params=ONE)
TestBayesOverRanges = bayes(knobs={"algorithm": ALGORITHM, **NUMBERS}, env_params=ONE)
TestBayesInContextsOfRanges = bayes(
    knobs=NUMBERS,
    env_params={"load": EnvParam(Range(1.0, 100.0, log=True)), "mode": EnvParam(Choice(("a", "b")))},
)


def test_the_suite_knows_which_agents_learn() -> None:
    assert TestTpe().learns
    assert not TestGrid().learns


TestPpo = suite(Ppo, slow, config={"n_steps": 6, "checkpoint_every": 6, "joint": True})
TestPpoOneKnobAtATime = suite(
    Ppo,
    slow,
    config={"n_steps": 6, "joint": False, "bins": 3, "start_action": "first"},
    knobs={"algorithm": ALGORITHM, "depth": DEPTH, "wide": Range(1.0, 1e9, log=True), "n": Range(1, 10**6, "int")},
)
TestA2c = suite(A2c, slow, config={"n_steps": 5, "checkpoint_every": 5})
OFF_POLICY = {"learning_starts": 6, "train_freq": 2, "checkpoint_every": 4}
TestDqn = suite(Dqn, slow, config=OFF_POLICY)
TestSac = suite(
    Sac,
    slow,
    config=OFF_POLICY,
    knobs={"depth": DEPTH, "share": Range(0.0, 0.3, step=0.1), "wide": Range(1e-3, 1e3, log=True)},
)

# live systems -----------------------------------------------------------------------------------------

NESTED = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]), "b": spaces.Box(0, 1)})
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))

TestLiveRandom = suite(LiveRandom, learns=False)
TestLiveRandomNested = suite(LiveRandom, learns=False, actions=NESTED, steps=700)  # more than two blocks
TestLivePpo = suite(LivePpo, slow, config={"n_steps": 16, "batch_size": 8, "n_epochs": 2, "checkpoint_every": 20})
TestLivePpoBox = suite(LivePpo, slow, config={"n_steps": 16, "learning_rate_schedule": "linear"}, actions=BOX)
TestLiveA2c = suite(
    LiveA2c,
    slow,
    config={"checkpoint_every": 30, "net_arch": [8]},
    actions=spaces.MultiDiscrete([3, 2], start=[-1, 5]),
)
TestLiveDqn = suite(
    LiveDqn,
    slow,
    config={"learning_starts": 20, "checkpoint_every": 30, "buffer_size": 100},
    actions=spaces.Discrete(3, start=-1),
)
TestLiveSac = suite(
    LiveSac,
    slow,
    config={"checkpoint_every": 30, "batch_size": 16, "net_arch": [16], "gradient_steps": -1},
    actions=BOX,
)
