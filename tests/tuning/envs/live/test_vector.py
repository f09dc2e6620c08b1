"""Lanes as a Gymnasium vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate
from tests.sample_servers import Echo
from tests.tuning.envs.live.conftest import Counter, Engines, load

from tunegym.core.errors import ActionError, TunegymError
from tunegym.tuning.envs.face import LiveVectorEnv


def servers(*lengths: int) -> list[Counter]:
    return [Counter(length) for length in lengths]


def seeds_of(server: Counter) -> list[Any]:
    return [call[1] for call in server.calls if call[0] == "reset"]


@pytest.mark.parametrize("end", ["terminated", "truncated", "failed"])
def test_next_episode_begins_in_the_same_step(engines: Engines, end: str) -> None:
    first_server = Counter(2, end)
    envs = LiveVectorEnv(engines(servers=[first_server, Counter(9)]))
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (envs.single_action_space, envs.action_space) == (spaces.Discrete(3), spaces.MultiDiscrete([3, 3]))
    first, infos = envs.reset()
    assert envs.observation_space.contains(first)
    assert infos["step"].tolist() == [1, 2]
    envs.step([1, 1])
    first_server.raises = RuntimeError("stuck") if end == "failed" else None
    observations, rewards, terminations, truncations, infos = envs.step([2, 0])
    assert (rewards.dtype, terminations.dtype, truncations.dtype) == (np.float64, np.bool_, np.bool_)
    assert terminations.tolist() == [end == "terminated", False]
    assert truncations.tolist() == [end != "terminated", False]
    assert infos["status"].tolist() == ["failed" if end == "failed" else "measured", "measured"]
    assert observations.tolist() == [[0.0, 0.0], [2.0, 0.0]]
    assert infos["final_obs"][0].tolist() == ([1.0, 1.0] if end == "failed" else [2.0, 2.0])
    assert infos["_final_obs"].tolist() == [True, False]
    assert infos["final_info"]["step"][0] == 3
    assert infos["step"].tolist() == [3, 4]
    observations, *_ = envs.step([1, 1])
    assert observations.tolist() == [[1.0, 1.0], [3.0, 1.0]]


def test_contexts_of_vector_steps(engines: Engines) -> None:
    engine = engines(servers=servers(2, 3), env_params=load(1, 2, 5, encoding="onehot"))
    params = engine.experiment.env_params
    envs = LiveVectorEnv(engine)
    first, _ = envs.reset()
    assert envs.observation_space.contains(first)
    seen: dict[int, int] = {}
    ends = 0
    for _ in range(12):
        observations, _, terminations, _, infos = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(observations)
        seen |= dict(zip(infos["step"].tolist(), infos["env_params"]["load"].tolist(), strict=True))
        for lane in np.flatnonzero(terminations):
            ends += 1
            upcoming = infos["next_env_params"]["load"][lane]
            assert np.argmax(observations["context"]["load"][lane]) == (1, 2, 5).index(upcoming)
            ended = infos["final_obs"][lane]
            assert np.argmax(ended["context"]["load"]) == (1, 2, 5).index(infos["env_params"]["load"][lane])
            assert "final_observation" not in infos
    assert ends > 5
    envs.close()
    engines.close()
    assert {int(row["step"]): int(row["load"]) for row in engines.rows("env.csv")} == seen
    firsts = {int(row["first_step"]): int(row["context.load"]) for row in engines.rows("episodes.csv")}
    assert {first: params.context(first)["load"] for first in firsts} == firsts


def test_seeds_and_options(engines: Engines) -> None:
    made = servers(3, 3)
    envs = LiveVectorEnv(engines(servers=made))
    envs.reset(seed=10, options={"at": 1})
    envs.reset(seed=[4, None])
    assert [seeds_of(server) for server in made] == [[10, 4], [11, None]]
    assert made[1].calls[0][2] == {"at": 1}
    envs.reset(seed=np.int64(7))  # type: ignore[arg-type]
    assert [seeds_of(server)[-1] for server in made] == [7, 8]
    with pytest.raises(TunegymError, match="3 seeds for 2 sub-environments"):
        envs.reset(seed=[1, 2, 3])
    for wrong in ("ab", 1.5, [1, 0.5]):
        with pytest.raises(TunegymError, match="it is an integer, or one for each"):
            envs.reset(seed=wrong)  # type: ignore[arg-type]


def test_reset_mask(engines: Engines) -> None:
    """As Gymnasium has it: only the named ones are reset, the others keep their last observation and have no info."""
    made = servers(5, 5, 5)
    envs = LiveVectorEnv(engines(servers=made, steps=999))
    named = np.array([True, False, True])
    with pytest.raises(TunegymError, match="reset_mask before the first reset"):
        envs.reset(options={"reset_mask": named})
    envs.reset()
    envs.step([1, 2, 0])
    options = {"reset_mask": named, "at": 1}
    observations, infos = envs.reset(seed=[7, 8, 9], options=options)
    assert observations.tolist() == [[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]
    assert infos["_step"].tolist() == named.tolist()
    assert [server.calls[-1] for server in made] == [("reset", 7, {"at": 1}), ("step", 2), ("reset", 9, {"at": 1})]
    assert "reset_mask" in options
    observations, *_, infos = envs.step([1, 1, 1])
    assert observations.tolist() == [[1.0, 1.0], [2.0, 1.0], [1.0, 1.0]]
    assert infos["episode_number"].tolist() == [4, 2, 5]
    for wrong in ([True, False, True], named[:2], named.astype(int), ~(named | True)):
        with pytest.raises(TunegymError, match="not an array of 3 booleans"):
            envs.reset(options={"reset_mask": wrong})


class Masked(Counter):
    """Gives a mask of actions with every observation."""

    def reset(self, **given: Any) -> Any:
        observation, _ = super().reset(**given)
        return observation, {"mask": np.array([True, False, False]), "step": "its own"}

    def step(self, action: Any) -> Any:
        *answer, _ = super().step(action)
        return (*answer, {"mask": np.array([False, True, True]), "final_observation": None, "left": 3})


def test_info_belongs_to_its_observation(engines: Engines) -> None:
    envs = LiveVectorEnv(engines(servers=[Masked(2), Masked(9)]))
    _, infos = envs.reset()
    assert infos["mask"].tolist() == [[True, False, False]] * 2
    assert infos["step"].tolist() == [1, 2]
    envs.step([0, 0])
    _, _, terminations, _, infos = envs.step([2, 2])
    assert terminations.tolist() == [True, False]
    assert infos["mask"].tolist() == [[True, False, False], [False, True, True]]
    assert infos["_left"].tolist() == [False, True]
    assert infos["step"].tolist() == [3, 4]
    assert infos["status"].tolist() == ["measured", "measured"]
    assert infos["final_info"]["mask"][0].tolist() == [False, True, True]
    assert infos["final_info"]["left"].tolist() == [3, 0]
    assert infos["final_obs"][0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda actions: [actions], "is not a mapping"),
        (lambda actions: {**actions, "tuple": actions["tuple"][:1]}, "tuple: .* is not a tuple of 2 parts"),
        (lambda actions: {**actions, "nested": {"b": {"deep": [[0, 0]]}}}, "nested: b: deep: 1 rows for 2"),
        (lambda actions: {**actions, "else": 1}, "not of action_space"),
        (lambda actions: {"box": actions["box"]}, "not of action_space"),
    ],
)
def test_nested_actions(engines: Engines, changed: Any, said: str) -> None:
    engine = engines(servers=[Echo("everything"), Echo("everything")])
    envs = LiveVectorEnv(engine)
    envs.reset()
    sampled = envs.action_space.sample()
    with pytest.raises(ActionError, match=said):
        envs.step(changed(sampled))
    assert engine.taken == 0
    *_, infos = envs.step(sampled)
    space = envs.single_action_space
    for chosen, seen in zip(iterate(envs.action_space, sampled), infos["final_obs"], strict=True):
        assert space.contains(seen)
        assert np.array_equal(spaces.flatten(space, chosen), spaces.flatten(space, seen))
