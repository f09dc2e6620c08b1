"""Lanes as the library's vector of environments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

SPACE = spaces.Dict({"observation": spaces.Box(0, 9, (1,), np.float32), "context": spaces.Box(0, 9, (1,), np.float32)})


def seen(observation: float, context: float) -> dict[str, np.ndarray]:
    return {"observation": np.array([observation], np.float32), "context": np.array([context], np.float32)}


class Env:
    """One lane; every step ends an episode, and is returned under the next one's context."""

    slots = 1
    folder = None
    action_space = spaces.Discrete(2)
    observation_space = SPACE

    def __init__(self, encoding: str | None, final: Any) -> None:
        params = {"load": SimpleNamespace(encoding=encoding)}
        self.experiment = SimpleNamespace(env_params=SimpleNamespace(params=params))
        self._final = final

    def exhausted(self) -> None:
        return None

    def reset(self, lane: int = 0) -> tuple[Any, dict[str, Any]]:
        return seen(0, 2), {}

    def step_all(self, actions: Any) -> list[Any]:
        return [(seen(5, 2), 1.0, True, False, {"final_observation": self._final})]


@pytest.mark.slow  # torch takes seconds to import
@pytest.mark.parametrize(
    ("encoding", "final", "context"),
    [("one_hot", seen(5, 1), 1), (None, "the server's own", 2)],
    ids=["shown", "hidden"],
)
def test_an_episode_ends_under_its_own_context(encoding: str | None, final: Any, context: int) -> None:
    from tunegym.tuning.agents.live.fitting import Actions, Observations
    from tunegym.tuning.agents.live.vector import LiveVector

    env: Any = Env(encoding, final)
    vector = LiveVector(env, Actions(env.action_space, 0), Observations(SPACE), None)
    vector.reset()
    after, _, dones, infos = vector.step(np.array([0]))
    assert dones.tolist() == [True]
    assert isinstance(after, dict)
    assert (after["observation"].tolist(), after["context"].tolist()) == ([[0]], [[2]])
    last = infos[0]["terminal_observation"]
    assert (last["observation"].tolist(), last["context"].tolist()) == ([5], [context])
