"""Actions to and from Gymnasium, and contexts as leaves of observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st
from tests.strategies import choices, ranges

from tunegym.core.errors import ActionError
from tunegym.tuning.codec import ActionCodec
from tunegym.tuning.encodings import ENCODINGS, encoding_of
from tunegym.tuning.envs.structure import leaf_space
from tunegym.tuning.model.space import Choice, EnvParam, Range, Space
from tunegym.tuning.model.values import exact_key

knobs = st.one_of(choices, ranges.filter(lambda knob: knob.high < 2**63 - 1))
spaces_of_knobs = st.lists(knobs, min_size=1, max_size=4).map(
    lambda knobs: Space({f"k{index}": knob for index, knob in enumerate(knobs)}, fixed={"other": 1})
)
units = st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=4, max_size=4)


@given(spaces_of_knobs, units, st.integers(0, 2**32 - 1))
@example(Space({f"k{index}": Choice((1, 1.0, True, "1")) for index in range(4)}), [0.0, 0.25, 0.5, 0.75], 0)
def test_there_and_back(space: Space, places: list[float], seed: int) -> None:
    """``decode(encode(v))`` is v, by exact type; any element decodes to an action that stays."""
    codec = ActionCodec(space)
    codec.action_space.seed(seed)
    drawn = codec.decode(codec.action_space.sample())
    assert exact_key(space.accept(drawn)) == exact_key(drawn)
    assert exact_key(codec.decode(codec.encode(drawn))) == exact_key(drawn)
    action = {name: knob.from_unit(place) for (name, knob), place in zip(space.knobs.items(), places, strict=False)}
    encoded = codec.encode(action)
    assert codec.action_space.contains(encoded)
    assert exact_key(codec.decode(encoded)) == exact_key(action)


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
    boxes = {"n": spaces.Box(1.0, 8.0, (1,), np.float64), "big": spaces.Box(0, 2**60, (1,), np.int64)}
    assert codec.action_space == spaces.Dict({"c": spaces.Discrete(3), **boxes})


CODEC = ActionCodec(Space({"c": Choice(("a", "b")), "n": Range(1, 8, "int")}))


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        ({}, r"missing: c, n"),
        ({"c": 0, "n": 1, "z": 2}, r"extra: z"),
        ({"c": 2, "n": 1}, r"c: index 2 is out of range"),
        ({"c": -1, "n": 1}, r"c: index -1 is out of range"),
        ({"c": 0.5, "n": 1}, r"c: index 0.5 is out of range"),
        ({"c": "a", "n": 1}, r"c: 'a' is not one number"),
        ({"c": True, "n": 1}, r"c: True is not one number"),
        ({"c": 0, "n": [1, 2]}, r"n: \[1, 2\] is not one number"),
        ({"c": 0, "n": [[1], [1, 2]]}, r"n: .* is not one number"),
        ({"c": 0, "n": float("nan")}, r"n: nan is not finite"),
        ({"c": 0, "n": np.array([np.inf])}, r"n: inf is not finite"),
    ],
)
def test_malformed_actions(encoded: dict[str, Any], message: str) -> None:
    with pytest.raises(ActionError, match=message):
        CODEC.decode(encoded)


@pytest.mark.parametrize("index", [1, 1.0, np.int64(1), np.float32(1), np.array(1), np.array([1]), [1]])
def test_anything_that_holds_one_number(index: Any) -> None:
    assert CODEC.decode({"c": index, "n": index}) == {"c": "b", "n": 1}


# encodings --------------------------------------------------------------------------------------------

NUMBERS = Choice((0.001, 0.01, 0.1))
MIXED = Choice(("a", 1, 1.0, True))
FITTING = [
    ("categorical", NUMBERS), ("categorical", MIXED), ("onehot", NUMBERS), ("onehot", MIXED), ("ordinal", MIXED),
    ("ordinal", Choice(("only",))), ("minmax", NUMBERS), ("minmax", Range(-5, 5, "int")), ("minmax", Range(0.0, 1e9)),
    ("minmax", Range(-(2**63), 2**63 - 1, "int")),
    ("minmax", Choice((3, 3.0))), ("log", NUMBERS), ("log", Choice((0, 1, 10, 100))), ("log", Range(1, 1000, "int")),
    ("log", Range(0.0, 10.0)), ("log", Range(1e-9, 1e9, log=True)), ("log", Choice((0, 5))), ("log", Choice((5, 5.0))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "domain"), FITTING)
def test_every_encoded_value_is_in_the_space(name: str, domain: Choice | Range) -> None:
    """With the declared shape and dtype, at the edges too; candidates stay apart."""
    encoding = encoding_of(EnvParam(domain, encoding=name))
    space = leaf_space(encoding.descriptor())
    for cell in range(201):
        encoded = encoding.encode(domain.from_unit(min(cell / 200, 0.999_999_999)))
        assert space.contains(encoded)
        assert encoded.dtype == space.dtype
    if name in ("categorical", "onehot", "ordinal"):
        assert isinstance(domain, Choice)
        assert len({tuple(np.atleast_1d(encoding.encode(value))) for value in domain.values}) == domain.size
    assert {name for name, _ in FITTING} == set(ENCODINGS)


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.floats(0.0, 1.0, exclude_max=True))
def test_any_range_stays_in_its_box(low: float, width: float, unit: float) -> None:
    domain = Range(low, low + width) if low + width > low else Range(low, low + 1e6)
    encoding = encoding_of(EnvParam(domain, encoding="minmax"))
    assert leaf_space(encoding.descriptor()).contains(encoding.encode(domain.from_unit(unit)))
    widest = encoding_of(EnvParam(Range(-1.7e308, 1.7e308)))
    assert [widest.encode(value).tolist() for value in (-1.7e308, 0.0, 1.7e308)] == [[0.0], [0.5], [1.0]]


@pytest.mark.parametrize(
    ("name", "space", "expected"),
    [
        (None, spaces.Discrete(3), [0, 1, 2]),
        ("categorical", spaces.Discrete(3), [0, 1, 2]),
        ("onehot", spaces.Box(0.0, 1.0, (3,)), [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        ("ordinal", spaces.Box(0.0, 1.0, (1,)), [[0], [0.5], [1]]),
        ("minmax", spaces.Box(0.0, 1.0, (1,)), [[0], [1 / 100], [1]]),
        ("log", spaces.Box(0.0, 1.0, (2,)), [[0, 0], [1, 0], [1, 1]]),
    ],
)
def test_encoded_values(name: str | None, space: spaces.Space[Any], expected: list[Any]) -> None:
    encoding = encoding_of(EnvParam(Choice((0, 1, 100)), encoding=name))
    assert leaf_space(encoding.descriptor()) == space
    for value, leaf in zip((0, 1, 100), expected, strict=True):
        assert encoding.encode(value) == pytest.approx(np.array(leaf))
