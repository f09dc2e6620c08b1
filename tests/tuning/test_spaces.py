"""Gymnasium spaces as plain data, their leaves and their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.spaces import SpaceError, build, describe, differences, element_of, leaves

THREE = st.tuples(*[st.integers(1, 9)] * 3)
DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.int8, np.uint8])


BIT = spaces.Discrete(2)
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
LEAVES = st.one_of(
    st.builds(lambda shape: spaces.Box(-np.inf, np.inf, shape), SHAPES),
    st.builds(lambda low, shape, dtype: spaces.Box(low, low + 9, shape, dtype), st.integers(0, 10), SHAPES, DTYPES),
    st.builds(lambda highs, dtype: spaces.Box(np.zeros(3, dtype), np.array(highs, dtype), (3,), dtype), THREE, DTYPES),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=4)),
    st.builds(spaces.MultiBinary, st.integers(1, 5)),
)


def few(below: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(below, min_size=1, max_size=3)


SPACES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.builds(lambda *both: spaces.Dict(list(zip(*both, strict=False))), st.permutations("abc"), few(below)),
        few(below).map(spaces.Tuple),
    ),
    max_leaves=5,
)


@given(SPACES)
def test_a_space_comes_back_from_json_as_it_was(space: Any) -> None:
    again = build(orjson.loads(orjson.dumps(describe(space))))
    assert again == space
    assert differences(space, again, "space") == []
    assert leaves(again) == leaves(space)


@given(SPACES, st.integers(0, 2**31))
def test_elements_are_owned_and_leaves_cover_them(space: Any, seed: int) -> None:
    space.seed(seed)
    element = space.sample()
    own = element_of(space)(element)
    assert space.contains(own)
    for leaf in leaves(space):
        part = np.asarray(leaf.of(element))
        assert part.shape == leaf.shape
        assert np.array_equal(part, leaf.of(own))
        assert part.shape == () or not np.shares_memory(part, leaf.of(own))
        assert part.dtype == leaf.dtype
        assert len(leaf.names()) == max(leaf.size, 1)


@pytest.mark.parametrize(
    ("space", "element", "said"),
    [
        (spaces.Box(0, 1, shape=(3,)), np.zeros(4, dtype=np.float32), r"its shape is \(4,\), not \(3,\)"),
        (spaces.Box(0, 1, shape=(1,)), np.array(["x"]), "not of float32"),
        (spaces.Discrete(3, start=1), 0, "0 is not one of the integers from 1 to 3"),
        (spaces.Discrete(3), 1.5, "1.5 is not one of"),
        (spaces.Discrete(3), "left", "'left' is no integer"),
        (spaces.Discrete(3), np.array([0, 1]), "is no integer"),
        (spaces.Dict({"a": BIT}), {"b": 1}, r"its keys are \['b'\], not \['a'\]"),
        (spaces.Dict({"a": BIT}), {"a": 5}, "a: 5 is not one of"),
        (spaces.Tuple([BIT]), (1, 1), "is no tuple of 1"),
        (spaces.Discrete(3), float("inf"), "inf is no integer"),
        (spaces.Box(0, 1, shape=(2,)), [[1], [2, 3]], "is no array"),
        (spaces.MultiDiscrete([3, 4]), [99, -5], "is not within"),
        (spaces.MultiDiscrete([3, 4]), [1.7, 0.2], "without loss"),
        (spaces.MultiBinary(2), [0, 2], "is not within"),
    ],
)
def test_malformed_elements(space: Any, element: Any, said: str) -> None:
    with pytest.raises(SpaceError, match=said):
        element_of(space)(element)


@pytest.mark.parametrize(
    "description", [None, [], {}, {"kind": "Ball"}, {"kind": "Box"}, {"kind": "Discrete", "n": -1, "start": 0}]
)
def test_malformed_descriptions(description: Any) -> None:
    with pytest.raises(SpaceError):
        build(description)


def test_deep_spaces_are_refused() -> None:
    space: Any = spaces.Discrete(2)
    description: Any = describe(space)
    for _ in range(30):
        space = spaces.Tuple([space])
        description = {"kind": "Tuple", "spaces": [description]}
    with pytest.raises(SpaceError, match="deeper"):
        describe(space)
    with pytest.raises(SpaceError, match="deeper"):
        build(description)


def test_differences_name_what_is_different() -> None:
    before = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, shape=(2,)), "gone": spaces.Discrete(1)})
    now = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1, shape=(2,)), "new": spaces.Discrete(1)})
    assert differences(before, now, "action_space") == [
        "action_space: gone is missing now",
        "action_space: new is new",
        "action_space.a: Discrete(2) before, Discrete(3) now",
    ]
    turned = spaces.Dict(list(reversed(before.spaces.items())))
    assert leaves(before) != leaves(turned)
    assert differences(before, turned, "action_space") == [], "the order of keys doesn't count"


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(0, 1, shape=(2,), dtype=np.dtype(">f4")), "an array of >f4 can't be passed on"),  # type: ignore[arg-type]
        (spaces.Box(0, 1, shape=(2,), dtype=np.longdouble), "can't be passed on"),
        (spaces.Box(0, 1, shape=(0,)), "has no numbers"),
        (spaces.Dict({1: BIT}), "the key 1 of a Dict is no string"),  # type: ignore[dict-item]
        (spaces.Dict({"": BIT, "value": BIT}), "two parts have the name 'value'"),
        (spaces.Text(3), "no space that can be passed on; those are Box, Discrete"),
        (spaces.Sequence(BIT), "no space that can be passed on"),
        ("CartPole", "no space that can be passed on"),
        (None, "no space that can be passed on"),
        (spaces.Dict({"a.b": BIT, "a": spaces.Dict({"b": BIT})}), "two parts have the name"),
    ],
)
def test_spaces_that_can_not_be_recorded(space: Any, said: str) -> None:
    with pytest.raises(SpaceError, match=said):
        describe(space)
