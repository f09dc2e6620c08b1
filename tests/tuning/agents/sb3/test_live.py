"""Live agents that learn: settings, checkpoints, resume, and whose generators they use."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from tests.sample_servers import SPACES

from tunegym.testing.agents import Driven, LiveAgentSuite
from tunegym.tuning.agents.sb3.agents import LiveA2c, LiveDqn, LivePolicy, LivePpo, LiveSac
from tunegym.tuning.model.scenario import Budget, Experiment
from tunegym.tuning.model.space import EnvParams, Space

pytest.importorskip("stable_baselines3")

BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
AGENTS: dict[type[LivePolicy], tuple[spaces.Space[Any], dict[str, Any]]] = {
    LivePpo: (spaces.Discrete(3), {"n_steps": 16, "batch_size": 8, "n_epochs": 2}),
    LiveA2c: (BOX, {}),
    LiveDqn: (spaces.Discrete(3), {"learning_starts": 20}),
    LiveSac: (BOX, {"batch_size": 16, "net_arch": [16]}),
}
EACH = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


def drive(folder: Path, agent: type[LivePolicy], actions: spaces.Space[Any] | None = None, **more: Any) -> Driven:
    space, settings = AGENTS[agent]
    own = {**settings, **more.pop("config", {})}

    class Suite(LiveAgentSuite):
        config: ClassVar[dict[str, Any]] = own

    Suite.agent = agent
    Suite.actions = actions if actions is not None else space
    return Suite().drive(folder, **more)


def problems(agent: type[LivePolicy], budget: Budget | None = None, **settings: Any) -> list[str]:
    config = agent.Config(**settings)
    budget = budget or Budget(agent_steps=1000)
    experiment = Experiment("x", "live", {}, Space({}), EnvParams({}, 0), agent.name, config, (), budget=budget)
    return [problem.render("x.toml") for problem in agent.check(experiment, Path())]


# settings -------------------------------------------------------------------------------------------------


@EACH
def test_defaults_are_the_librarys(agent: type[LivePolicy]) -> None:
    import inspect

    import stable_baselines3

    theirs = inspect.signature(getattr(stable_baselines3, agent.name.upper())).parameters
    ours = agent.Config()
    ignored = {
        "random_seed",
        "rewards",
        "learning_rate_schedule",
        "clip_range_schedule",
        "net_arch",
        "checkpoint_every",
    }
    for name in vars(ours).keys() - ignored - {"learning_starts"}:
        assert getattr(ours, name) == theirs[name].default, name
    assert problems(agent) == []


@pytest.mark.parametrize(
    ("agent", "settings", "says"),
    [
        (LivePpo, {"learning_rate": 0.0}, "agent_config.learning_rate: the value is out of bounds"),
        (LivePpo, {"gamma": 1.5}, "agent_config.gamma: the value is out of bounds"),
        (LivePpo, {"net_arch": ()}, "agent_config.net_arch: no network has such layers"),
        (LiveDqn, {"gradient_steps": 0}, "from 1 to 1000, or -1 for as many as there were steps"),
        (LiveDqn, {"exploration_final_eps": 2.0}, "agent_config.exploration_final_eps: the value is out of bounds"),
        (LiveDqn, {"learning_starts": 1000}, "it would never learn: the budget is 1000 steps"),
        (LiveSac, {"tau": 0.0}, "agent_config.tau: the value is out of bounds"),
    ],
)
def test_what_no_algorithm_could_work_with_is_refused(
    agent: type[LivePolicy], settings: dict[str, Any], says: str
) -> None:
    (problem,) = problems(agent, **settings)
    assert says in problem
    assert "hint: " in problem


def test_a_schedule_needs_an_end() -> None:
    timed = Budget(max_time_s=10.0)
    linear = {"learning_rate_schedule": "linear", "clip_range_schedule": "linear"}
    assert len(problems(LivePpo, timed, **linear)) == 2
    assert problems(LivePpo, timed) == []
    assert problems(LivePpo, Budget(agent_steps=10, max_time_s=10.0), **linear) == []


# spaces ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("agent", [LivePpo, LiveDqn])
@pytest.mark.parametrize("kind", [*SPACES, "small_image"])
def test_all_observations_can_be_learned_from(
    tmp_path: Path, agent: type[LivePolicy], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunegym.testing.agents import Trail

    space = SPACES[kind] if kind in SPACES else spaces.Box(0, 255, (9, 8, 3), np.uint8)
    space.seed(1)
    plain = Trail._seen
    monkeypatch.setattr(Trail, "observation_space", space)
    monkeypatch.setattr(Trail, "_seen", lambda self, place=None: space.sample())
    monkeypatch.setattr(Trail, "step", lambda self, action: _blind(self, action, plain))
    config = {"n_steps": 8, "n_epochs": 1} if agent is LivePpo else {"batch_size": 4, "buffer_size": 50}
    first = drive(tmp_path, agent, config=config, steps=60, slots=2, stop_after=40)
    assert first.code == 0, first.failure
    second = drive(tmp_path, agent, config=config, steps=60, slots=2)
    assert (second.code, second.taken) == (0, 60), second.failure


def _blind(trail: Any, action: Any, plain: Any) -> Any:
    del plain
    trail._log.actions.append(action)
    over = len(trail._log.actions) % 5 == 0
    trail._place = None if over else 1
    return trail._seen(), 1.0, over, False, {}


# checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@EACH
def test_what_is_kept(tmp_path: Path, agent: type[LivePolicy]) -> None:
    import stable_baselines3
    import torch

    drive(tmp_path, agent, config={"checkpoint_every": 50})
    checkpoint = torch.load(tmp_path / "policy" / "checkpoint.pt", weights_only=True)
    assert (checkpoint["agent"], checkpoint["closed"]) == (agent.name, 160)
    theirs = getattr(stable_baselines3, agent.name.upper())
    model = theirs.load(tmp_path / "policy" / "model.zip")
    assert type(model) is theirs
    assert "tunegym" not in type(getattr(model, "rollout_buffer", None) or model.replay_buffer).__module__
    assert model.num_timesteps == 160
    for name, tensor in model.policy.state_dict().items():
        assert torch.equal(tensor, checkpoint["state"]["model"]["policy"][name])
    lines = [json.loads(line) for line in (tmp_path / "policy" / "training.jsonl").read_text().splitlines()]
    assert [line["trials"] for line in lines] == sorted(line["trials"] for line in lines)
    assert lines[-1]["trials"] <= 160
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "train/learning_rate"} <= lines[-1]["values"].keys()


@pytest.mark.slow
@EACH
def test_a_resume_goes_on_from_the_checkpoint(
    tmp_path: Path, agent: type[LivePolicy], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    from tunegym.tuning.agents.sb3.live import LiveTraining

    caplog.set_level(logging.INFO)
    drive(tmp_path, agent, stop_after=60)
    saved = torch.load(tmp_path / "policy" / "checkpoint.pt", weights_only=True)
    begun: dict[str, Any] = {}
    learn = LiveTraining._learn

    def watched(self: Any) -> Any:
        model = self._model
        state = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
        begun.update(state=state, at=model.num_timesteps, progress=model._current_progress_remaining)
        begun["remembered"] = getattr(model, "replay_buffer", None) and model.replay_buffer.size()
        return learn(self)

    monkeypatch.setattr(LiveTraining, "_learn", watched)
    assert drive(tmp_path, agent).taken == 160
    assert (begun["at"], begun["progress"]) == (60, 1 - 60 / 160)
    for name, tensor in begun["state"].items():
        assert torch.equal(tensor, saved["state"]["model"]["policy"][name]), name
    says = f"{agent.name} continues from its checkpoint after 60 steps"
    if agent in (LiveDqn, LiveSac):
        # Not the first step of each episode: what that was chosen on is not on record.
        assert 40 <= begun["remembered"] < 60
        says += f"; in its replay buffer: {begun['remembered']} steps of the record"
    assert says in caplog.text


@pytest.mark.slow
def test_what_an_on_policy_agent_cant_learn_again_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    drive(tmp_path, LivePpo, stop_after=60)
    place = tmp_path / "policy" / "checkpoint.pt"
    kept = place.read_bytes()
    drive(tmp_path, LivePpo, stop_after=40)
    place.write_bytes(kept)  # as if killed before the next one
    drive(tmp_path, LivePpo)
    assert "40 later steps on record can't teach it anything" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "slots", "last"), [(62, 1, 2), (64, 1, 4), (60, 1, None), (71, 2, 6)])
def test_as_many_gradient_steps_as_there_were_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, slots: int, last: int | None
) -> None:
    """Since the last update, and not since the first step; also for the rest at the end."""
    from tunegym.tuning.agents.sb3.live import _Dqn

    updates: list[int] = []
    train = _Dqn.train

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        updates.append(kwargs["gradient_steps"])
        train(self, *args, **kwargs)

    monkeypatch.setattr(_Dqn, "train", watched)
    config = {"learning_starts": 60, "gradient_steps": -1, "train_freq": 4}
    drive(tmp_path, LiveDqn, config=config, steps=steps, slots=slots)
    assert updates[-1:] == ([] if last is None else [last])
    assert set(updates[:-1]) <= {4 * slots}


# what goes wrong ------------------------------------------------------------------------------------------


@pytest.mark.slow
@EACH
def test_a_network_that_is_no_longer_of_numbers_ends_the_run(
    tmp_path: Path, agent: type[LivePolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tunegym.tuning.agents.sb3.live import LiveTraining

    updated = LiveTraining._updated

    def poisoned(self: Any) -> None:
        if self._env.taken > 60:
            with torch.no_grad():
                for one in self._model.policy.parameters():
                    one.fill_(float("nan"))
        updated(self)

    monkeypatch.setattr(LiveTraining, "_updated", poisoned)
    driven = drive(tmp_path, agent)
    assert driven.code == 1
    assert driven.taken < 160
    assert (driven.failure or "").startswith("training failed after ")
    assert "no longer of finite numbers" in (driven.failure or "")


@pytest.mark.slow
def test_an_error_of_the_algorithm_is_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stable_baselines3 import PPO

    def broken(self: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(PPO, "train", broken)
    driven = drive(tmp_path, LivePpo)
    assert (driven.code, driven.failure) == (1, "training failed after 16 steps: RuntimeError: out of luck")


@pytest.mark.slow
def test_a_buffer_that_no_machine_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunegym.tuning.agents.sb3 import live

    monkeypatch.setattr(live.os, "sysconf", lambda _: 20)
    driven = drive(tmp_path, LiveDqn)
    assert driven.code == 1
    assert "a replay buffer of 160 steps takes" in (driven.failure or "")
    assert "a buffer_size of up to 12 would be fine" in (driven.failure or "")


@pytest.mark.slow
def test_a_bug_below_is_not_taken_for_a_failure_of_the_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunegym.tuning.envs.live.engine import LiveEngine

    def broken(self: Any, actions: Any) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(LiveEngine, "step_all", broken)
    with pytest.raises(OSError, match="no space"):
        drive(tmp_path, LivePpo)


# generators -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@EACH
def test_a_server_sees_the_shared_generators_as_they_were(
    tmp_path: Path, agent: type[LivePolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server in this process may draw from them; the algorithm neither moves nor looks at them."""
    import torch

    from tunegym.testing.agents import Trail

    drawn: list[tuple[float, float]] = []
    step = Trail.step

    def drawing(self: Trail, action: Any) -> Any:
        drawn.append((float(np.random.random()), float(torch.rand(1))))
        return step(self, action)

    monkeypatch.setattr(Trail, "step", drawing)
    chosen = []
    for seed in (1, 2):
        np.random.seed(seed)
        torch.manual_seed(seed)
        drawn.clear()
        driven = drive(tmp_path / str(seed), agent, slots=2)
        assert driven.code == 0, driven.failure
        chosen.append([repr(action) for action in driven.log.actions])
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert drawn == [(float(np.random.random()), float(torch.rand(1))) for _ in drawn]
    assert chosen[0] == chosen[1]


# whether it learns ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ppo_learns_to_balance_a_pole(tmp_path: Path) -> None:
    """The short version of ``benchmarks/live_cartpole``: 25,000 steps, and at least 150 of 500."""
    from benchmarks.live_cartpole.learners import PPO, greedy, scenario

    import tunegym

    code = tunegym.run(scenario("ppo", PPO, steps=25_000, seed=1), output=tmp_path)
    assert code == 0
    assert greedy("ppo", next(tmp_path.rglob("model.zip"))) >= 150
