from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.errors import ActionError
from tunegym.tuning.codec import ActionCodec
from tunegym.tuning.model.space import Choice, Range, Space
from tunegym.tuning.model.values import exact_key

scalars = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
choices = st.builds(
    lambda values: Choice(tuple(values)),
    st.lists(scalars, min_size=1, max_size=6, unique_by=lambda value: (type(value), value)),
)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    kind = draw(st.sampled_from(["int", "big", "log", "float", "step"]))
    if kind == "step":
        low, step, count = draw(st.integers(-1000, 1000)), draw(st.integers(1, 500)), draw(st.integers(1, 500))
        return Range(low / 100, (low + step * count) / 100, "float", step=step / 100)
    if kind == "float":
        low, high = sorted(draw(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=2, unique=True)))
        return Range(low, high)
    bounds = {"int": (-(10**6), 10**6), "big": (-(2**63), 2**63 - 2), "log": (1, 10**6)}[kind]
    low, high = sorted(draw(st.lists(st.integers(*bounds), min_size=2, max_size=2, unique=True)))
    return Range(low, high, "int", log=kind == "log")


spaces_of_knobs = st.lists(st.one_of(choices, ranges()), min_size=1, max_size=4).map(
    lambda knobs: Space({f"k{index}": knob for index, knob in enumerate(knobs)}, fixed={"other": 1})
)
units = st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=4, max_size=4)


@given(spaces_of_knobs, units)
def test_there_and_back(space: Space, places: list[float]) -> None:
    """``decode(encode(v))`` is v, by exact type, and the encoded action is an element of the space."""
    codec = ActionCodec(space)
    action = {name: knob.from_unit(place) for (name, knob), place in zip(space.knobs.items(), places, strict=False)}
    encoded = codec.encode(action)
    assert codec.action_space.contains(encoded)
    assert exact_key(codec.decode(encoded)) == exact_key(action)


@given(spaces_of_knobs, st.integers(0, 2**32 - 1))
def test_any_element_decodes_to_an_action_that_stays(space: Space, seed: int) -> None:
    """Floats snap once; from then on nothing moves."""
    codec = ActionCodec(space)
    codec.action_space.seed(seed)
    action = codec.decode(codec.action_space.sample())
    assert exact_key(space.accept(action)) == exact_key(action)
    assert exact_key(codec.decode(codec.encode(action))) == exact_key(action)


def test_equal_looking_candidates_stay_apart() -> None:
    codec = ActionCodec(Space({"x": Choice((1, 1.0, True, "1"))}))
    decoded = [codec.decode({"x": index})["x"] for index in range(4)]
    assert [type(value) for value in decoded] == [int, float, bool, str]
    assert [codec.encode({"x": value})["x"] for value in (1, 1.0, True, "1")] == [0, 1, 2, 3]


@given(st.integers(0, 100), st.floats(-0.49, 0.49))
def test_jitter_on_an_integer_knob_is_one_key(value: int, jitter: float) -> None:
    codec = ActionCodec(Space({"n": Range(0, 100, "int")}))
    decoded = codec.decode({"n": np.array([value + jitter])})
    assert exact_key(decoded) == exact_key({"n": value})


def test_range_is_clamped() -> None:
    codec = ActionCodec(Space({"n": Range(1, 8, "int"), "f": Range(0.0, 1.0)}))
    assert codec.decode({"n": np.array([1e30]), "f": np.float32(-3)}) == {"n": 8, "f": 0.0}


def test_spaces() -> None:
    codec = ActionCodec(Space({"c": Choice(("a", "b", "c")), "n": Range(1, 8, "int"), "big": Range(0, 2**60, "int")}))
    assert codec.action_space == spaces.Dict(
        {
            "c": spaces.Discrete(3),
            "n": spaces.Box(1.0, 8.0, shape=(1,), dtype=np.float64),
            "big": spaces.Box(0, 2**60, shape=(1,), dtype=np.int64),
        }
    )


CODEC = ActionCodec(Space({"c": Choice(("a", "b")), "n": Range(1, 8, "int")}))


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        ({}, r"missing: c, n; extra: none"),
        ({"c": 0}, r"missing: n"),
        ({"c": 0, "n": 1, "z": 2}, r"missing: none; extra: z"),
        ({"c": 2, "n": 1}, r"c: index 2 is out of range"),
        ({"c": -1, "n": 1}, r"c: index -1 is out of range"),
        ({"c": 0.5, "n": 1}, r"c: index 0.5 is out of range"),
        ({"c": "a", "n": 1}, r"c: 'a' is not one number"),
        ({"c": True, "n": 1}, r"c: True is not one number"),
        ({"c": None, "n": 1}, r"c: None is not one number"),
        ({"c": 0, "n": [1, 2]}, r"n: \[1, 2\] is not one number"),
        ({"c": 0, "n": []}, r"n: \[\] is not one number"),
        ({"c": 0, "n": [[1], [1, 2]]}, r"n: .* is not one number"),
        ({"c": 0, "n": float("nan")}, r"n: nan is not finite"),
        ({"c": 0, "n": np.array([np.inf])}, r"n: inf is not finite"),
    ],
)
def test_what_does_not_decode(encoded: dict[str, Any], message: str) -> None:
    with pytest.raises(ActionError, match=message):
        CODEC.decode(encoded)


def test_what_does_not_encode() -> None:
    for action in ({"c": "z", "n": 1}, {"c": "a", "n": 9}, {"c": "a"}):
        with pytest.raises(ActionError):
            CODEC.encode(action)


@pytest.mark.parametrize("index", [1, 1.0, np.int64(1), np.float32(1), np.array(1), np.array([1]), [1]])
def test_whatever_holds_one_number(index: Any) -> None:
    assert CODEC.decode({"c": index, "n": index}) == {"c": "b", "n": 1}


def test_without_knobs() -> None:
    codec = ActionCodec(Space({}, fixed={"x": 1}))
    assert codec.decode({}) == {}
    assert codec.encode({}) == {}
