"""RLlib's agents: the contract suites, what is particular to them, and what they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.testing.agents import AgentSuite, LiveAgentSuite
from tunegym.tuning.agents.rllib.agents import LiveRllibDqn, LiveRllibPpo, RllibDqn, RllibPpo
from tunegym.tuning.model.space import Choice, Range, Space

pytest.importorskip("ray")
pytest.importorskip("torch")
slow = pytest.mark.slow

NESTED = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]), "b": spaces.Box(0, 1)})
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
SHIFTED = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [-5, 0]]))
LIVE_PPO = {"n_steps": 16, "batch_size": 8, "n_epochs": 2, "checkpoint_every": 20}


def suite(tested: Any, **attributes: Any) -> Any:
    """A test class for an agent."""
    base = LiveAgentSuite if tested.__name__.startswith("Live") else AgentSuite
    return type("Suite", (base,), {"agent": tested, "pytestmark": [slow], "__module__": __name__, **attributes})


TestPpo = suite(RllibPpo, config={"n_steps": 6, "checkpoint_every": 6, "joint": True})
TestPpoOneKnobAtATime = suite(
    RllibPpo,
    config={"n_steps": 6, "joint": False, "bins": 3, "start_action": "first", "batch_size": 4},
    knobs={"algorithm": Choice(("cubic", "reno")), "wide": Range(1.0, 1e9, log=True), "n": Range(1, 10**6, "int")},
)
TestDqn = suite(RllibDqn, config={"learning_starts": 6, "train_freq": 2, "checkpoint_every": 4})
TestLivePpo = suite(LiveRllibPpo, config=LIVE_PPO)
TestLivePpoNested = suite(
    LiveRllibPpo, config={**LIVE_PPO, "learning_rate_schedule": "linear", "net_arch": [8]}, actions=NESTED
)
TestLivePpoBox = suite(LiveRllibPpo, config=LIVE_PPO, actions=BOX)
TestLiveDqn = suite(
    LiveRllibDqn,
    config={"learning_starts": 20, "checkpoint_every": 30, "buffer_size": 100, "gradient_steps": -1},
    actions=spaces.Discrete(3, start=-1),
)


# one process --------------------------------------------------------------------------------------------


def test_a_short_run_needs_no_ray(tmp_path: Path) -> None:
    """And leaves a policy that RLlib itself reads."""
    import ray
    from ray.rllib.core.rl_module.rl_module import RLModule

    before = ray.is_initialized()  # by a test that ran here before
    trials = TestPpo().drive(tmp_path, steps=8, slots=2)
    assert [trial.number for trial in trials] == list(range(1, 9))
    assert ray.is_initialized() == before
    module = RLModule.from_checkpoint(tmp_path / "policy" / "module")
    assert module.action_space == spaces.Discrete(144)


@pytest.mark.parametrize("agent", [RllibPpo, RllibDqn])
def test_a_missing_package_is_named(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    problem = agent.refuse(Space({}))
    assert problem is not None
    assert problem.hint == "pip install 'tunegym[rllib]'"


@slow
def test_ppo_learns_to_balance_a_pole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short version of ``benchmarks/live_cartpole``: 25,000 steps, and at least 150 of 500."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    from benchmarks.live_cartpole.learners import RLLIB_PPO, greedy, scenario

    import tunegym

    assert tunegym.run(scenario("rllib_ppo", RLLIB_PPO, steps=25_000, seed=1), output=tmp_path) == 0
    assert greedy("rllib_ppo", next(tmp_path.rglob("policy/module"))) >= 150


@slow
@pytest.mark.parametrize("slots", [1, 3])
def test_longer_episodes(tmp_path: Path, slots: int) -> None:
    """Every lane's episode goes on over updates, and learns from all steps."""
    from tunegym.tuning.agents.rllib.algorithm import PpoAlgorithm

    taught: list[int] = []
    train = PpoAlgorithm.train

    def counted(self: Any, *arguments: Any) -> Any:
        taught.append(len(self._steps))
        return train(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PpoAlgorithm, "train", counted)
        driven = TestLivePpo().drive(tmp_path, slots=slots)
    assert (driven.code, sum(taught)) == (0, driven.taken)


def test_actions_of_any_nesting() -> None:
    """What RLlib chooses becomes an element of the server's space, and reaches its ends."""
    from tunegym.tuning.agents.rllib.live import choice_space, server_action

    nested = {"whole": NESTED, "box": BOX, "integers": spaces.Box(-3, 9, (2,), np.int16), "shifted": SHIFTED}
    for name, theirs in nested.items():
        chosen = choice_space(theirs)
        chosen.seed(1)
        assert all(theirs.contains(server_action(theirs, chosen.sample())) for _ in range(200)), name
    assert np.array_equal(server_action(BOX, np.array([9.0, -9.0])), np.array([1.0, 0.0], np.float32))
    assert server_action(spaces.Discrete(3, start=-1), np.int64(0)) == -1


# env runners in Ray -------------------------------------------------------------------------------------


@slow
@pytest.mark.xdist_group("ray_cluster")  # never beside another Ray
@pytest.mark.parametrize("agent", ["trials", "live", "live_dqn"])
def test_env_runners(tmp_path: Path, agent: str) -> None:
    """One journal and one counter, stopped and resumed; Ray is gone afterwards, unless it was there before."""
    import ray

    base: Any = {"trials": TestPpo, "live": TestLivePpo, "live_dqn": TestLiveDqn}[agent]
    runners: Any = type("Runners", (base,), {"config": {**base.config, "num_env_runners": 2}})()
    before = ray.is_initialized()
    first = runners.drive(tmp_path, slots=3, stop_after=12)
    driven = runners.drive(tmp_path, slots=3)
    assert ray.is_initialized() == before
    if agent == "trials":
        assert [trial.number for trial in driven] == list(range(1, runners.trials + 1))
    else:
        assert (first.code, first.taken) == (0, 12)
        assert (driven.code, driven.taken, len(driven.log.actions)) == (0, runners.steps, runners.steps - 12)


@slow
def test_more_env_runners_than_lanes_are_refused(tmp_path: Path) -> None:
    runners: Any = type("Runners", (TestLivePpo,), {"config": {**LIVE_PPO, "num_env_runners": 3}})()
    driven = runners.drive(tmp_path, slots=2)
    assert (driven.code, driven.taken) == (1, 0)
    assert "write num_env_runners = 2 at most, or slots = 3" in (driven.failure or "")
