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
from tunegym.tuning.model.space import ObsLeafDescriptor
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


# any environment may offer leaves ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")  # a metric has no bounds
def test_environment_with_its_own_leaves(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The face takes them instead of the encoded env_params: here how far the run is, and which trial was measured.

    An array belongs to whoever is shown it: neither the environment nor the reader changes it for the other.
    """
    buffer = np.zeros(1, np.float32)

    def descriptors(self: TrialEngine) -> Mapping[str, ObsLeafDescriptor]:
        return {"progress": ObsLeafDescriptor("box", low=0.0), "measured": ObsLeafDescriptor("discrete", n=2)}

    def encode(self: TrialEngine, observation: Observation) -> Mapping[str, Any]:
        buffer[:] = observation.number / 10
        return {"progress": buffer, "measured": int(observation.measured)}

    monkeypatch.setattr(TrialEngine, "structured_observation_descriptors", descriptors)
    monkeypatch.setattr(TrialEngine, "encode_observation", encode)
    env = TuneEnv(bench(lambda x: {"m": float(x)}).engine)
    assert env.observation_space["context"] == spaces.Dict(  # type: ignore[index]
        {"measured": spaces.Discrete(2), "progress": spaces.Box(0.0, np.inf, (1,), np.float32)}
    )
    first, _ = env.reset()
    observation, *_ = env.step_raw({"x": 3})
    assert observation["context"] == {"progress": np.float32(0.2), "measured": 1}
    assert env.observation_space.contains(observation)
    assert first["context"] == {"progress": np.float32(0.1), "measured": 0}
    observation["context"]["progress"][:] = observation["observation"][:] = 99.0
    observation, _ = env.reset()
    assert (observation["context"]["progress"], observation["observation"].tolist()) == (np.float32(0.2), [0.0, 0.0])
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


NO_INDICES = [3, -1, 1.0, math.nan, "1", None, True, [1], np.array([1]), np.array([0, 1]), np.array(["a"]), 2**80]


@pytest.mark.parametrize(
    ("leaf", "value", "message"),
    [
        (BOX, [0.5], r"leaf a: the encoding gives shape \(1,\), it declares \(2,\)"),
        (BOX, [[0.5, 0.5]], r"gives shape \(1, 2\)"),
        *((BOX, value, r"gives shape \(\)") for value in (0.5, None)),
        *((BOX, [value, 0.5], "is not within 0 to 1") for value in (1.1, -0.1, math.nan, math.inf)),
        *((BOX, value, "is no vector of numbers") for value in (["a", "b"], [[0.5], [0.5, 0.5]], {"x": 1})),
        *((INDEX, value, "leaf a: ") for value in NO_INDICES),
    ],
)
def test_bad_leaf_is_refused(leaf: ObsLeafDescriptor, value: Any, message: str) -> None:
    structure = Structure(Own({"a": leaf}, {"a": value}))
    with pytest.raises(ObservationError, match=message):
        structure.encode(SEEN)
