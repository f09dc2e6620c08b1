"""One vector on one scale, whatever the metrics' units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.envs.structure import leaf_space
from tunegym.tuning.envs.wrappers import CLIP, HINT, FlatObservations, MetricScale, flat, flat_space
from tunegym.tuning.model.space import Choice, EnvParam, ObsLeafDescriptor, Range
from tunegym.tuning.model.trial import Observation

finite = st.floats(allow_nan=False, allow_infinity=False)


# the scale --------------------------------------------------------------------------------------------------


def test_bytes_and_seconds_weigh_the_same() -> None:
    scale = MetricScale(2)
    values = np.random.default_rng(0).normal(10.0, 1.0, size=200)
    for value in values:
        scale.learn(np.array([value * 1e9, value * 1e-9]))
    shown = np.array([scale.scaled(np.array([value * 1e9, value * 1e-9])) for value in values])
    assert shown[:, 0] == pytest.approx(shown[:, 1], abs=1e-6)
    assert shown.mean(axis=0) == pytest.approx([0.0, 0.0], abs=1e-6)
    assert shown.std(axis=0) == pytest.approx([1.0, 1.0], abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=30), finite)
def test_never_a_nan(learned: list[float], value: float) -> None:
    scale = MetricScale(1)
    for one in learned:
        scale.learn(np.array([one]))
    assert abs(scale.scaled(np.array([value])))[0] <= CLIP


# the vector -------------------------------------------------------------------------------------------------


@pytest.fixture
def flattened(bench: Callable[..., Any]) -> Callable[..., tuple[FlatObservations, Any]]:
    def make(**params: EnvParam) -> tuple[FlatObservations, Any]:
        one = bench(lambda x, **_: {"m": 1.0, "n": 2.0}, env_params=params, agent_metrics=("m", "n"))
        return FlatObservations(one.engine), one

    return make


def test_the_slots(flattened: Any) -> None:
    params = {"z": EnvParam(Choice(("a", "b", "c"))), "a": EnvParam(Range(0.0, 4.0))}
    observations, _ = flattened(**params)
    low = np.array([-CLIP, -CLIP, 0, 0, 0, 0, 0], dtype=np.float32)
    high = np.array([CLIP, CLIP, 1, 1, 1, 1, 1], dtype=np.float32)
    assert observations.space == spaces.Box(low, high)
    context = {"z": "b", "a": 1.0}
    assert observations.encode(Observation(1, context)).tolist() == [0, 0, 0, 0.25, 0, 1, 0]  # leaves by name
    observations.learn({"m": 1.0, "n": 5.0})
    observations.learn({"n": 7.0, "m": 3.0})
    shown = observations.encode(Observation(3, context, {"n": 7.0, "m": 2.0, "other": 9.0}, measured=True))
    assert shown.tolist() == pytest.approx([0, HINT, 1, 0.25, 0, 1, 0])
    assert shown.dtype == np.float32
    assert observations.usual(context).tolist() == [0, 0, 1, 0.25, 0, 1, 0]


@given(st.lists(st.tuples(finite, finite), max_size=20), st.tuples(finite, finite))
def test_whatever_is_measured_is_in_the_space(learned: list[tuple[float, float]], last: tuple[float, float]) -> None:
    observations = FlatObservations(_Two())  # type: ignore[arg-type]
    for m, n in learned:
        observations.learn({"m": m, "n": n})
    shown = observations.encode(Observation(1, {}, {"m": last[0], "n": last[1]}, measured=True))
    assert observations.space.contains(shown)


class _Two:
    """As much of an ``Env`` as is looked at."""

    class experiment:  # noqa: N801
        agent_metrics = ("m", "n")


def test_leaves_keep_their_bounds() -> None:
    """Bounds that a float32 rounds, and none at all."""
    leaves = {
        "bounded": ObsLeafDescriptor("box", dim=2, low=0.1, high=0.7),
        "free": ObsLeafDescriptor("box"),
        "index": ObsLeafDescriptor("discrete", n=2),
    }
    of_leaves = {name: leaf_space(leaf) for name, leaf in leaves.items()}
    space = flat_space(1, of_leaves)
    assert space.shape == (1 + 1 + 2 + 1 + 2,)
    edge = {"bounded": np.array([0.1, 0.7], dtype=np.float32), "free": np.array([1e9], dtype=np.float32), "index": 1}
    shown = flat(np.array([-CLIP, 1.0]), of_leaves, edge)
    assert space.contains(shown)
    assert shown.tolist()[-3:] == [np.float32(1e9), 0.0, 1.0]
