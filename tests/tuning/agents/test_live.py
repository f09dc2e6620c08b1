"""Live agents that learn: the library's learning on a server's spaces, settings, checkpoints, resume, failures."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.conftest import no_space, raising
from tests.sample_servers import SPACES

from tunegym.testing.agents import CallLog, Driven, LiveAgentSuite, Trail
from tunegym.tuning.agents.sb3.agents import LiveA2c, LiveDqn, LivePolicy, LivePpo, LiveSac, mismatch
from tunegym.tuning.spaces import element_of

pytest.importorskip("stable_baselines3")
slow = pytest.mark.slow  # torch takes seconds to import

BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
AGENTS: dict[type[LivePolicy], tuple[spaces.Space[Any], dict[str, Any]]] = {
    LivePpo: (spaces.Discrete(3), {"n_steps": 16, "batch_size": 8, "n_epochs": 2}),
    LiveA2c: (BOX, {}),
    LiveDqn: (spaces.Discrete(3), {"learning_starts": 20}),
    LiveSac: (BOX, {"batch_size": 16, "net_arch": [16]}),
}
EACH = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


def drive(folder: Path, agent: type[LivePolicy], **more: Any) -> Driven:
    space, settings = AGENTS[agent]
    own = {**settings, **more.pop("config", {})}

    class Suite(LiveAgentSuite):
        config: ClassVar[dict[str, Any]] = own

    Suite.agent = agent
    Suite.actions = space
    return Suite().drive(folder, **more)


# the library's learning -----------------------------------------------------------------------------------


class TrailEnv(gymnasium.Env[Any, Any]):
    """A ``Trail`` as an environment of the library's."""

    def __init__(self, actions: spaces.Space[Any]) -> None:
        self._trail = Trail(actions, CallLog())
        self.action_space, self.observation_space = actions, self._trail.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._trail.reset()

    def step(self, action: Any) -> Any:
        return self._trail.step(action)


@slow
@EACH
@pytest.mark.parametrize("slots", [1, 2])
def test_learns_exactly_what_the_library_learns(
    tmp_path: Path, agent: type[LivePolicy], slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same draws, the library's vector of environments gives the same network, bit by bit."""
    import torch
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from tunegym.tuning.agents.live_learner import Draws
    from tunegym.tuning.agents.sb3 import live

    built: list[tuple[Any, Any]] = []
    build = live.build_model

    def watched(name: str, config: Any, vector: Any, hooks: Any) -> Any:
        built.append((build(name, config, vector, hooks), config))
        return built[-1][0]

    monkeypatch.setattr(live, "build_model", watched)
    space, _ = AGENTS[agent]
    assert drive(tmp_path, agent, slots=slots, seed=3).code == 0
    ((ours, config),) = built
    draws = Draws(3, agent.name)
    vector = DummyVecEnv([lambda: Monitor(TrailEnv(space))] * slots)
    vector.action_space.seed(draws.integer(2**31, "random", 0))
    bare = build(agent.name, config, vector, live.Hooks(draws, 160, lambda: None))
    bare.learn(160, log_interval=None)
    for one, other in zip(ours.policy.parameters(), bare.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    returns, expected = ([one["r"] for one in model.ep_info_buffer] for model in (ours, bare))
    assert returns == pytest.approx(expected, abs=1e-4)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        if hasattr(ours, "replay_buffer"):
            assert np.array_equal(getattr(ours.replay_buffer, name), getattr(bare.replay_buffer, name)), name


# settings -------------------------------------------------------------------------------------------------


@slow
@EACH
def test_defaults_are_the_librarys(agent: type[LivePolicy]) -> None:
    import stable_baselines3

    theirs = inspect.signature(getattr(stable_baselines3, agent.name.upper())).parameters
    own = {"random_seed", "rewards", "learning_rate_schedule", "clip_range_schedule", "net_arch", "checkpoint_every"}
    config = agent.Config()
    for name in vars(config).keys() - own - {"learning_starts"}:
        assert getattr(config, name) == theirs[name].default, name


# spaces ---------------------------------------------------------------------------------------------------

SEEN = spaces.Box(-1.0, 1.0, (2,))
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=3),
    "multi_discrete": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [-5, 0]])),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "number": spaces.Box(-1.0, 3.0, ()),
    "box": spaces.Box(0.0, np.float32(0.1), (2, 3)),
    "wide": spaces.Box(-1e6, 1e6, (2,), dtype=np.float64),
    "integers": spaces.Box(-3, 9, (2,), dtype=np.int16),
}


@slow
@pytest.mark.parametrize(
    ("agent", "actions", "what", "other"),
    [
        (LiveDqn, SEEN, "dqn can't choose from the server's action space Box(", "ppo"),
        (LiveSac, spaces.Discrete(2), "sac can't choose from the server's action space Discrete(2)", "ppo"),
        (LivePpo, spaces.Dict({"a": SEEN}), "ppo can't choose from the server's action space Dict(", "rllib_ppo"),
        (LiveA2c, spaces.Box(-np.inf, 1.0, (1,)), "a2c needs bounds to every number of the server's", "random_search"),
    ],
)
def test_unfit_action_space_is_refused_before_any_step(
    tmp_path: Path, agent: type[LivePolicy], actions: spaces.Space[Any], what: str, other: str
) -> None:
    """Also by ``verify`` where the class declares it: see ``tests/config/bad/live_policy_actions.toml``."""
    suite: Any = type("Suite", (LiveAgentSuite,), {"agent": agent, "actions": actions})()
    driven = suite.drive(tmp_path)
    assert (driven.code, driven.taken) == (1, 0)
    assert (driven.failure or "").startswith(what)
    assert "; it takes an action space of " in (driven.failure or "")
    problem = mismatch(agent.name, actions)
    assert problem is not None
    assert f'agent = "{other}"' in (problem.hint or "")


@slow
@pytest.mark.parametrize("theirs", ACTIONS.values(), ids=list(ACTIONS))
def test_every_choice_is_an_action_of_the_server(theirs: spaces.Space[Any]) -> None:
    from tunegym.tuning.agents.sb3.vector import Actions

    actions, own = Actions(theirs, seed=1), element_of(theirs)
    chosen = np.array([actions.space.sample() for _ in range(200)])
    taken = [own(one) for one in actions.theirs(chosen)]
    assert len(taken) == 200
    assert all(theirs.contains(one) for one in taken)
    back = actions.ours(taken)
    assert back.dtype == actions.space.dtype
    assert all(actions.space.contains(one) for one in back)
    if not isinstance(theirs, spaces.Box):
        np.testing.assert_array_equal(back, chosen)
    if theirs is ACTIONS["integers"]:
        (rounded,) = actions.theirs(np.array([[-3.4, 9.6]], dtype=np.float32))
        assert rounded.tolist() == [-3, 9]


@slow
def test_keys_of_observations_are_names_that_torch_takes() -> None:
    from tunegym.tuning.agents.sb3.vector import Observations

    nested = {"a": spaces.Dict({"b": SEEN}), "a.b": SEEN, "a/b": SEEN, "keys": SEEN, "training": SEEN, "": SEEN}
    observations = Observations(spaces.Dict(nested))
    assert isinstance(observations.space, spaces.Dict)
    assert sorted(observations.space.spaces) == ["_", "a/b", "a/b_", "a/b__", "keys_", "training_"]


@slow
@pytest.mark.parametrize("agent", [LivePpo, LiveDqn])
@pytest.mark.parametrize("kind", [*SPACES, "small_image"])
def test_learns_from_all_kinds_of_observations(
    tmp_path: Path, agent: type[LivePolicy], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SPACES[kind] if kind in SPACES else spaces.Box(0, 255, (9, 8, 3), np.uint8)
    space.seed(1)

    def step(self: Any, action: Any) -> Any:
        self._log.actions.append(action)
        over = len(self._log.actions) % 5 == 0
        self._place = None if over else 1
        return self._seen(), 1.0, over, False, {}

    monkeypatch.setattr(Trail, "observation_space", space)
    monkeypatch.setattr(Trail, "_seen", lambda self, place=None: space.sample())
    monkeypatch.setattr(Trail, "step", step)
    config = {"n_steps": 8, "n_epochs": 1} if agent is LivePpo else {"batch_size": 4, "buffer_size": 50}
    first = drive(tmp_path, agent, config=config, steps=60, slots=2, stop_after=40)
    assert first.code == 0, first.failure
    second = drive(tmp_path, agent, config=config, steps=60, slots=2)
    assert (second.code, second.taken) == (0, 60), second.failure


@slow
@pytest.mark.parametrize(("encoding", "context"), [("one_hot", 1), (None, 2)], ids=["shown", "hidden"])
def test_an_episode_ends_under_its_own_context(encoding: str | None, context: int) -> None:
    """Where the context is shown, a step's observation is under the next episode's context already."""
    from tunegym.tuning.agents.sb3.vector import Actions, LiveVector, Observations

    def seen(observation: float, load: float) -> dict[str, np.ndarray]:
        return {"observation": np.array([observation], np.float32), "context": np.array([load], np.float32)}

    final = seen(5, 1) if encoding else "the server's"
    params = SimpleNamespace(params={"load": SimpleNamespace(encoding=encoding)})
    env: Any = SimpleNamespace(
        slots=1,
        experiment=SimpleNamespace(env_params=params),
        exhausted=lambda: None,
        reset=lambda lane=0: (seen(0, 2), {}),
        step_all=lambda actions: [(seen(5, 2), 1.0, True, False, {"final_observation": final})],
    )
    number = spaces.Box(0, 9, (1,), np.float32)
    observations = Observations(spaces.Dict({"observation": number, "context": number}))
    vector = LiveVector(env, Actions(spaces.Discrete(2), 0), observations, None)
    vector.reset()
    after, _, dones, infos = vector.step(np.array([0]))
    assert dones.tolist() == [True]
    assert repr(after) == repr({key: rows[None] for key, rows in sorted(seen(0, 2).items())})
    assert repr(infos[0]["terminal_observation"]) == repr(dict(sorted(seen(5, context).items())))


@slow
@pytest.mark.parametrize("slots", [1, 2])
def test_failed_step_bootstraps_from_the_last_valid_observation(
    tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the replay buffer, and in the one that a resume fills from the record."""
    from tunegym.tuning.agents.sb3.live import Sb3LiveTraining

    buffers: list[Any] = []
    learn = Sb3LiveTraining._learn
    monkeypatch.setattr(
        Sb3LiveTraining, "_learn", lambda self: (buffers.append(self._model.replay_buffer), learn(self))[1]
    )
    drive(tmp_path, LiveDqn, slots=slots, fails_at=(36,), stop_after=40)  # in the middle of an episode
    drive(tmp_path, LiveDqn, slots=slots)
    for buffer in buffers:
        rewards = buffer.rewards[: buffer.pos]
        row, lane = np.unravel_index(rewards.argmin(), rewards.shape)
        assert rewards[row, lane] < -5, "the penalty"
        assert (buffer.dones[row, lane], buffer.timeouts[row, lane]) == (1, 1)
        assert np.any(buffer.observations[row, lane])
        assert np.array_equal(buffer.next_observations[row, lane], buffer.observations[row, lane])


# checkpoints ----------------------------------------------------------------------------------------------


@slow
@EACH
def test_checkpoint_model_and_curves_across_a_resume(
    tmp_path: Path, agent: type[LivePolicy], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import stable_baselines3
    import torch

    from tunegym.tuning.agents.sb3.live import Sb3LiveTraining

    caplog.set_level(logging.INFO)
    checkpoint = tmp_path / "policy" / "checkpoint.pt"
    drive(tmp_path, agent, stop_after=60, config={"checkpoint_every": 50})
    saved = torch.load(checkpoint, weights_only=True)
    begun: dict[str, Any] = {}
    learn = Sb3LiveTraining._learn

    def watched(self: Any) -> Any:
        model = self._model
        state = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
        begun.update(state=state, at=model.num_timesteps, progress=model._current_progress_remaining)
        begun["remembered"] = getattr(model, "replay_buffer", None) and model.replay_buffer.size()
        return learn(self)

    monkeypatch.setattr(Sb3LiveTraining, "_learn", watched)
    assert drive(tmp_path, agent, config={"checkpoint_every": 50}).taken == 160
    assert (begun["at"], begun["progress"]) == (60, 1 - 60 / 160)
    for name, tensor in begun["state"].items():
        assert torch.equal(tensor, saved["state"]["model"]["policy"][name]), name
    says = f"{agent.name} continues from its checkpoint after 60 steps"
    if agent in (LiveDqn, LiveSac):
        # Not the first step of each episode: the observation before it is not on record.
        assert 40 <= begun["remembered"] < 60
        says += f"; in its replay buffer: {begun['remembered']} steps of the record"
    assert says in caplog.text
    saved = torch.load(checkpoint, weights_only=True)
    assert (saved["agent"], saved["closed"]) == (agent.name, 160)
    theirs = getattr(stable_baselines3, agent.name.upper())
    model = theirs.load(tmp_path / "policy" / "model.zip")
    assert type(model) is theirs
    assert model.num_timesteps == 160
    for name, tensor in model.policy.state_dict().items():
        assert torch.equal(tensor, saved["state"]["model"]["policy"][name])
    lines = [json.loads(line) for line in (tmp_path / "policy" / "training.jsonl").read_text().splitlines()]
    assert [line["trials"] for line in lines] == sorted(line["trials"] for line in lines)
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "train/learning_rate"} <= lines[-1]["values"].keys()


# failures -------------------------------------------------------------------------------------------------


@slow
@EACH
def test_a_diverged_network_ends_the_run(
    tmp_path: Path, agent: type[LivePolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tunegym.tuning.agents.sb3.live import Sb3LiveTraining

    updated = Sb3LiveTraining._updated

    def poisoned(self: Any) -> None:
        if self._env.taken > 60:
            with torch.no_grad():
                for one in self._model.policy.parameters():
                    one.fill_(float("nan"))
        updated(self)

    monkeypatch.setattr(Sb3LiveTraining, "_updated", poisoned)
    driven = drive(tmp_path, agent)
    assert driven.code == 1
    assert driven.taken < 160
    assert (driven.failure or "").startswith("training failed after ")
    assert "no longer of finite numbers" in (driven.failure or "")


@slow
def test_an_error_of_the_algorithm_is_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stable_baselines3 import PPO

    monkeypatch.setattr(PPO, "train", raising(RuntimeError, "out of luck"))
    driven = drive(tmp_path, LivePpo)
    assert (driven.code, driven.failure) == (1, "training failed after 16 steps: RuntimeError: out of luck")


@slow
def test_a_replay_buffer_larger_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunegym.tuning.agents import live_learner

    monkeypatch.setattr(live_learner.psutil, "virtual_memory", lambda: SimpleNamespace(total=400))
    driven = drive(tmp_path, LiveDqn)
    assert driven.code == 1
    assert "a replay buffer of 160 steps takes" in (driven.failure or "")
    assert "a buffer_size of up to 12 would be fine" in (driven.failure or "")


@slow
def test_an_error_below_is_no_failure_of_the_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunegym.tuning.envs.live.engine import LiveEngine

    monkeypatch.setattr(LiveEngine, "step_all", no_space)
    with pytest.raises(OSError, match="No space"):
        drive(tmp_path, LivePpo)
