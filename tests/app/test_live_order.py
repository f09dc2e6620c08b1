"""Servers whose Dict spaces have unsorted keys: names keep their values everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.soundness import assert_sound

import tunegym
from tunegym.tuning.reports.live import LiveResults
from tunegym.tuning.reports.results import find_run

pytestmark = pytest.mark.slow  # whole runs, some with processes of their own

SERVER = """
import numpy as np
from gymnasium import spaces

class Unsorted:
    def __init__(self, size=2, turned=False):
        parts = [("z", spaces.Box(0, 100, (size,), np.float32)), ("a", spaces.Box(0, 100, (3,), np.float32))]
        self.observation_space = spaces.Dict(parts[::-1] if turned else parts)
        self.action_space = spaces.Dict([("y", spaces.Discrete(3)), ("b", spaces.Discrete(30))])
        self.size = size

    def seen(self):
        return {"a": np.full(3, 1, np.float32), "z": np.full(self.size, 26, np.float32)}

    def reset(self, *, seed=None, options=None):
        return self.seen(), {}

    def step(self, action):
        return self.seen(), 100.0 * action["y"] + action["b"], False, False, {}

    def close(self):
        pass
"""


@pytest.fixture
def unsorted(write: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    write("unsorted_keys.py", SERVER)

    def make(place: str = "in_process", **arguments: Any) -> dict[str, Any]:
        experiment = {
            "name": "e",
            "workload": "live",
            "agent": "random_search",
            "agent_steps": 20,
            "server": place,
            "cmd_args": {"env_class": "unsorted_keys:Unsorted", **arguments},
        }
        return {"name": "order", "seed": 4, "experiments": [experiment]}

    return make


def check(results: LiveResults, steps: int, inline: bool) -> list[float]:
    """The rewards, which say what every action was."""
    observations, actions, frame = results.observations(), results.actions(), results.to_pandas()
    view = pd.read_csv(results.folder / "trajectory.csv")
    assert len(frame) == len(view) == len(observations) == steps
    assert (observations["z"] == 26).all()
    assert (observations["a"] == 1).all()
    np.testing.assert_array_equal(100.0 * actions["y"] + actions["b"], frame["reward"])
    for table in (frame, view):
        assert (100.0 * table["action.y"] + table["action.b"] == table["reward"]).all()
        assert not inline or (table["observation.z.0"] == 26).all()
        assert not inline or (table["observation.a.2"] == 1).all()
    return frame["reward"].tolist()


@pytest.mark.parametrize("size", [2, 400], ids=["inline", "side file"])
def test_names_keep_their_values(unsorted: Callable[..., dict[str, Any]], size: int) -> None:
    """In any place, and in a server that comes back with its keys in another order."""
    namespace: dict[str, Any] = {}
    exec(SERVER, namespace)
    made = namespace["Unsorted"]
    taken = []
    for name, place, given, later in (
        ("here", "in_process", None, None),
        ("beside", "process", None, None),
        ("given", "in_process", made(size), made(size, turned=True)),
        ("turned", "in_process", made(size, turned=True), made(size)),
    ):
        document = unsorted(place, **({"size": size} if given is None else {}))
        assert tunegym.run(document, output=name, server=given) == 0
        assert tunegym.resume(name, agent_steps=30, server=later) == 0
        results = assert_sound(find_run(Path(name)))["e"]
        assert isinstance(results, LiveResults)
        taken.append(check(results, 30, inline=size == 2))
    assert taken[0] == taken[1] == taken[2], "spaces pass unchanged, so the same actions are drawn"
