"""A server's spaces as the algorithms take them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.sample_servers import SPACES

from tunegym.tuning.agents.sb3.vector import Actions, LiveVector, Observations, unfit
from tunegym.tuning.spaces import element_of

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


@pytest.mark.parametrize(
    ("agent", "actions", "says"),
    [
        (
            "dqn",
            spaces.Box(-1.0, 1.0, (2,)),
            (
                "dqn needs a Discrete action space, and the server's is Box(-1.0, 1.0, (2,), float32): "
                "ppo, a2c and sac take it"
            ),
        ),
        (
            "sac",
            spaces.Discrete(2),
            "sac needs a Box action space, and the server's is Discrete(2): ppo, a2c and dqn take it",
        ),
        (
            "ppo",
            spaces.Dict({"a": spaces.Discrete(2)}),
            (
                "ppo needs a Box, Discrete, MultiDiscrete or MultiBinary action space, and the server's is "
                "Dict('a': Discrete(2)): random_search takes it"
            ),
        ),
        (
            "ppo",
            spaces.Box(-np.inf, 1.0, (1,)),
            (
                "ppo needs bounds to every number of a Box action space, and the server's is "
                "Box(-inf, 1.0, (1,), float32): random_search takes it"
            ),
        ),
    ],
)
def test_what_an_algorithm_cant_take_is_named(agent: str, actions: spaces.Space[Any], says: str) -> None:
    assert unfit(agent, actions, SEEN) == says


@pytest.mark.parametrize("theirs", ACTIONS.values(), ids=list(ACTIONS))
def test_whatever_is_chosen_is_one_of_the_servers_actions(theirs: spaces.Space[Any]) -> None:
    actions = Actions(theirs, seed=1)
    own = element_of(theirs)
    chosen = np.array([actions.space.sample() for _ in range(200)])
    taken = [own(one) for one in actions.theirs(chosen)]
    assert len(taken) == 200
    assert all(theirs.contains(one) for one in taken)
    back = actions.ours(taken)
    assert back.dtype == actions.space.dtype
    assert all(actions.space.contains(one) for one in back)
    if not isinstance(theirs, spaces.Box):
        np.testing.assert_array_equal(back, chosen)


def test_what_a_policy_chooses_between_numbers_is_rounded_into_bounds() -> None:
    theirs = ACTIONS["integers"]
    (taken,) = Actions(theirs, 0).theirs(np.array([[-3.4, 9.6]], dtype=np.float32))
    assert taken.tolist() == [-3, 9]


@pytest.mark.parametrize("theirs", [*SPACES.values(), SEEN], ids=[*SPACES, "plain"])
def test_every_observation_is_one_of_the_policys(theirs: spaces.Space[Any]) -> None:
    theirs.seed(3)
    observations = Observations(theirs)
    seen = [theirs.sample() for _ in range(3)]
    batch = observations.ours(seen)
    for at in range(3):
        row = {key: rows[at] for key, rows in batch.items()} if isinstance(batch, dict) else batch[at]
        assert observations.space.contains(row), row
        alone = observations.one(seen[at])
        assert repr(alone) == repr(row)


def test_keys_are_such_that_a_network_can_have_them() -> None:
    odd = spaces.Dict(
        {"a": spaces.Dict({"b": SEEN}), "a.b": SEEN, "a/b": SEEN, "keys": SEEN, "training": SEEN, "": SEEN}
    )
    observations = Observations(odd)
    assert isinstance(observations.space, spaces.Dict)
    assert sorted(observations.space.spaces) == ["_", "a/b", "a/b_", "a/b__", "keys_", "training_"]
    assert observations.space.contains(observations.one(odd.sample()))


# the vector ---

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


@pytest.mark.parametrize(
    ("encoding", "final", "context"),
    [("one_hot", seen(5, 1), 1), (None, "the server's own", 2)],
    ids=["shown", "hidden"],
)
def test_an_episode_ends_under_its_own_context(encoding: str | None, final: Any, context: int) -> None:
    env: Any = Env(encoding, final)
    vector = LiveVector(env, Actions(env.action_space, 0), Observations(SPACE), None)
    vector.reset()
    after, _, dones, infos = vector.step(np.array([0]))
    assert dones.tolist() == [True]
    assert isinstance(after, dict)
    assert (after["observation"].tolist(), after["context"].tolist()) == ([[0]], [[2]])
    last = infos[0]["terminal_observation"]
    assert (last["observation"].tolist(), last["context"].tolist()) == ([5], [context])
