"""An environment's own leaves: declared once, and held to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tunegym.core.errors import ObservationError
from tunegym.tuning.envs.face import TuneEnv
from tunegym.tuning.envs.structure import Structure
from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.model.space import Choice, EnvParam, ObsLeafDescriptor, Range
from tunegym.tuning.model.trial import Observation

BOX = ObsLeafDescriptor("box", dim=2, low=0.0, high=1.0)
INDEX = ObsLeafDescriptor("discrete", n=3)
SEEN = Observation(1, {})


class Own:
    """Declares and encodes whatever a test wants."""

    def __init__(self, leaves: Any, encoded: Any) -> None:
        self._leaves = leaves
        self._encoded = encoded

    def structured_observation_descriptors(self) -> Any:
        return self._leaves

    def encode_observation(self, observation: Observation) -> Any:
        return self._encoded(observation) if callable(self._encoded) else self._encoded


def encoded(leaf: ObsLeafDescriptor, value: Any) -> Any:
    return Structure(Own({"a": leaf}, {"a": value})).encode(SEEN)["a"]


# any environment may offer leaves ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")  # a metric has no bounds
def test_environment_with_its_own_leaves(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The face takes them instead of the encoded env_params: here how far the run is, and which trial was measured."""

    def descriptors(self: TrialEngine) -> Mapping[str, ObsLeafDescriptor]:
        return {"progress": ObsLeafDescriptor("box", low=0.0), "measured": ObsLeafDescriptor("discrete", n=2)}

    def encode(self: TrialEngine, observation: Observation) -> Mapping[str, Any]:
        return {"progress": [observation.number / 10], "measured": int(observation.measured)}

    monkeypatch.setattr(TrialEngine, "structured_observation_descriptors", descriptors)
    monkeypatch.setattr(TrialEngine, "encode_observation", encode)
    env = TuneEnv(bench(lambda x: {"m": float(x)}).engine)
    assert env.observation_space["context"] == spaces.Dict(  # type: ignore[index]
        {"measured": spaces.Discrete(2), "progress": spaces.Box(0.0, np.inf, (1,), np.float32)}
    )
    observation, _ = env.reset()
    assert observation["context"] == {"progress": np.float32(0.1), "measured": 0}
    observation, *_ = env.step_raw({"x": 3})
    assert observation["context"] == {"progress": np.float32(0.2), "measured": 1}
    assert env.observation_space.contains(observation)
    check_env(env, skip_render_check=True, skip_close_check=True)


# what is declared is held to --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "missing", "extra"),
    [
        ({"a": 0}, "b, c", "none"),
        ({"a": 0, "b": 0, "c": 0, "d": 0, "e": 0}, "none", "d, e"),
        ({"a": 0, "B": 0, "c": 0}, "b", "B"),
        ({}, "a, b, c", "none"),
        ({"a": 0, "b": 0, "c": 0, 7: 0}, "none", "7"),
    ],
)
def test_keys_that_differ_are_listed(given: dict[Any, int], missing: str, extra: str) -> None:
    structure = Structure(Own(dict.fromkeys("abc", INDEX), given))
    with pytest.raises(ObservationError) as caught:
        structure.encode(SEEN)
    assert f"(missing: {missing}; extra: {extra})" in str(caught.value)
    assert "structured_observation_descriptors()" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.5], r"leaf a: the encoding gives shape \(1,\), it declares \(2,\)"),
        ([0.5] * 3, r"gives shape \(3,\)"),
        ([[0.5, 0.5]], r"gives shape \(1, 2\)"),
        (0.5, r"gives shape \(\)"),
        ([0.5, 1.1], "is not within 0 to 1"),
        ([-0.1, 0.5], "is not within 0 to 1"),
        ([math.nan, 0.5], "is not within 0 to 1"),
        ([math.inf, 0.5], "is not within 0 to 1"),
        (["a", "b"], "is no vector of numbers"),
        ([[0.5], [0.5, 0.5]], "is no vector of numbers"),
        ({"x": 1}, "is no vector of numbers"),
        (None, r"gives shape \(\)"),
    ],
)
def test_bad_vector_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ObservationError, match=message):
        encoded(BOX, value)


@pytest.mark.parametrize(
    "value", [3, -1, 1.0, math.nan, "1", None, True, [1], np.array([1]), np.array([0, 1]), np.array(["a"]), 2**80]
)
def test_bad_index_is_refused(value: Any) -> None:
    with pytest.raises(ObservationError, match="leaf a: "):
        encoded(INDEX, value)


# an array belongs to whoever is shown it --------------------------------------------------------------------


def test_leaves_are_copies() -> None:
    buffer = np.zeros(2, dtype=np.float32)
    structure = Structure(Own({"a": BOX}, {"a": buffer}))
    first = structure.encode(SEEN)["a"]
    buffer[:] = 0.5
    assert first.tolist() == [0.0, 0.0]
    assert structure.encode(SEEN)["a"].tolist() == [0.5, 0.5]
    buffer[:] = 2.0
    with pytest.raises(ObservationError, match="not within"):
        structure.encode(SEEN)


def test_shown_leaves_can_be_written_to(bench: Callable[..., Any]) -> None:
    """And changes nothing that is shown later, to the same lane or another."""
    params = {"load": EnvParam(Choice((1, 2)), encoding="onehot"), "rate": EnvParam(Range(0.0, 1.0))}
    one = bench(lambda x, load, rate: {"m": 1.0}, env_params=params)
    env = TuneEnv(one.engine)
    observation, _ = env.reset()
    expected = {name: leaf.copy() for name, leaf in observation["context"].items()}
    for _ in range(3):
        for leaf in observation["context"].values():
            leaf[:] = 99.0
        observation["observation"][:] = 99.0
        observation, _ = env.reset()
        assert {name: leaf.tolist() for name, leaf in observation["context"].items()} == {
            name: leaf.tolist() for name, leaf in expected.items()
        }
        assert observation["observation"].tolist() == [0.0, 0.0]
