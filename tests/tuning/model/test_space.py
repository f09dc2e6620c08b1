from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tunegym.core.errors import ActionError
from tunegym.tuning.model.space import Choice, Range, Space, nested

units = st.floats(0.0, 1.0, exclude_max=True)
scalars = st.one_of(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans())
choices = st.builds(
    lambda values: Choice(tuple(values)),
    st.lists(scalars, min_size=1, max_size=8, unique_by=lambda value: (type(value), value)),
)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def integer_ranges(draw: st.DrawFn, step: bool = False) -> Range:
    low, high = sorted(draw(st.lists(INT64, min_size=2, max_size=2, unique=True)))
    if not step:
        return Range(low, high, "int")
    width = draw(st.integers(1, 2**40))
    high = low + width * draw(st.integers(1, 2**20))
    assume(high < 2**63)
    return Range(low, high, "int", step=width)


@st.composite
def log_ranges(draw: st.DrawFn) -> Range:
    if draw(st.booleans()):
        low, high = sorted(draw(st.lists(st.integers(1, 2**40), min_size=2, max_size=2, unique=True)))
        return Range(low, high, "int", log=True)
    low, high = sorted(draw(st.lists(st.floats(1e-12, 1e12), min_size=2, max_size=2, unique=True)))
    return Range(low, high, "float", log=True)


@st.composite
def float_ranges(draw: st.DrawFn) -> Range:
    low, high = sorted(draw(st.lists(st.floats(-1e15, 1e15), min_size=2, max_size=2, unique=True)))
    return Range(low, high, "float")


@st.composite
def stepped_floats(draw: st.DrawFn) -> Range:
    """As a user writes them, in decimal; configuration allows a step down to 1e-11 of the bounds."""
    digits = draw(st.integers(0, 9))
    low = draw(st.integers(-(10**11), 10**11))
    step = draw(st.integers(1, 10**6))
    count = draw(st.integers(1, 10**5))
    texts = [f"{number}e-{digits}" for number in (low, low + step * count, step)]
    return Range(float(texts[0]), float(texts[1]), "float", step=float(texts[2]))


ranges = st.one_of(integer_ranges(), integer_ranges(step=True), log_ranges(), float_ranges(), stepped_floats())
stepped = st.one_of(integer_ranges(step=True), stepped_floats())


@given(choices, st.data())
def test_choice_is_consistent(choice: Choice, data: st.DataObject) -> None:
    """A candidate is where ``at`` finds it, by exact type."""
    index = data.draw(st.integers(0, choice.size - 1))
    value = choice.at(index)
    assert choice.index(value) == index
    assert type(choice.accept(value)) is type(value)
    assert choice.index(object()) is None
    assert choice.index([]) is None


@given(choices)
def test_choice_covers_its_candidates_evenly(choice: Choice) -> None:
    cells = 5 * choice.size
    counts = Counter(choice.index(choice.from_unit((cell + 0.5) / cells)) for cell in range(cells))
    assert set(counts.values()) == {5}
    assert choice.index(choice.from_unit(math.nextafter(1.0, 0.0))) == choice.size - 1


def test_equal_looking_candidates_stay_apart() -> None:
    choice = Choice((1, 1.0, True, "1", 0, False, 0.0))
    assert [choice.index(value) for value in (1, 1.0, True, "1", 0, False, 0.0)] == list(range(7))
    with pytest.raises(ValueError, match=r"2 is not one of \[1, 1.0, true"):
        choice.accept(2)


@given(ranges, units)
def test_range_from_unit_is_in_bounds(knob: Range, unit: float) -> None:
    for at in (unit, 0.0, math.nextafter(1.0, 0.0)):
        value: Any = knob.from_unit(at)
        assert type(value) is (int if knob.dtype == "int" else float)
        assert knob.low <= value <= knob.high
        assert same(knob.accept(value), value)


@given(ranges, st.floats(allow_nan=False, allow_infinity=False) | INT64)
def test_snap_is_in_bounds_and_idempotent(knob: Range, wild: float) -> None:
    once: Any = knob.snap(wild)
    assert type(once) is (int if knob.dtype == "int" else float)
    assert knob.low <= once <= knob.high
    assert same(knob.snap(once), once)


@given(stepped, st.data())
def test_steps_are_apart_and_all_there(knob: Range, data: st.DataObject) -> None:
    """``size`` values from low to high, each nearest to itself."""
    size, step = knob.size, knob.step
    assert size is not None
    assert step is not None
    assert knob.at(0) == knob.low
    assert knob.at(size - 1) == knob.high
    index = data.draw(st.integers(0, size - 2))
    value: Any = knob.at(index)
    after: Any = knob.at(index + 1)
    assert value < after
    assert same(knob.accept(value), value)
    assert same(knob.snap(knob.low + index * step), value)


def same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


def test_steps_have_no_dust() -> None:
    knob = Range(0.1, 0.9, step=0.1)
    assert [knob.at(index) for index in range(9)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


@pytest.mark.parametrize(
    "knob",
    [
        Range(1, 4, "int"),
        Range(-2, 1, "int"),
        Range(2**60, 2**60 + 3, "int"),
        Range(10, 40, "int", step=10),
        Range(0.5, 2.0, "float", step=0.5),
    ],
)
def test_integers_and_steps_are_equally_wide(knob: Range) -> None:
    """The edges too: each of the four values has a quarter."""
    counts = Counter(knob.from_unit((cell + 0.5) / 4000) for cell in range(4000))
    assert sorted(counts.values()) == [1000] * 4
    assert (min(counts), max(counts)) == (knob.low, knob.high)


def test_log_integers_at_the_edges() -> None:
    """Each value's share is that of its own rounding interval, the first and the last included."""
    knob = Range(1, 8, "int", log=True)
    counts = Counter(knob.from_unit((cell + 0.5) / 100_000) for cell in range(100_000))
    whole = math.log(8.5 / 0.5)
    for value in range(1, 9):
        assert counts[value] / 100_000 == pytest.approx(math.log((value + 0.5) / (value - 0.5)) / whole, abs=1e-4)


def test_log_floats_are_uniform_in_their_logarithm() -> None:
    knob = Range(0.001, 10.0, "float", log=True)
    counts = Counter(math.floor(math.log10(float(knob.from_unit((cell + 0.5) / 4000)))) for cell in range(4000))
    assert counts == {-3: 1000, -2: 1000, -1: 1000, 0: 1000}


@pytest.mark.parametrize("value", [True, "3", None, math.nan, math.inf, 0.99, 5.01, [2]])
def test_range_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match="low = 1"):
        Range(1, 5, "int").accept(value)


def test_nearest_step() -> None:
    knob = Range(0, 100, "int", step=10)
    assert [knob.snap(value) for value in (-5, 4, 4.6, 5.2, 6, 14.9, 95.1, 1e9)] == [0, 0, 0, 10, 10, 10, 100, 100]


# the space ----------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(choices, stepped), min_size=1, max_size=4), st.data())
def test_points_are_a_mixed_radix_count(knobs: list[Choice | Range], data: st.DataObject) -> None:
    space = Space({f"k{index}": knob for index, knob in enumerate(knobs)})
    size = math.prod(knob.size or 0 for knob in knobs)
    assert space.size == size
    index = data.draw(st.integers(0, size - 1))
    point = space.point(index)
    assert list(point) == list(space.knobs)
    assert space.accept(point) == point
    back = 0
    for name, knob in space.knobs.items():
        digit = knob.index(point[name]) if isinstance(knob, Choice) else _position(knob, point[name])
        assert digit is not None
        back = back * (knob.size or 0) + digit
    assert back == index


def _position(knob: Range, value: Any) -> int:
    assert knob.step is not None
    if knob.dtype == "int":
        return (value - knob.low) // knob.step
    return round((value - knob.low) / knob.step)


def test_last_knob_turns_fastest() -> None:
    space = Space({"a": Choice(("x", "y")), "b": Range(0, 20, "int", step=10)})
    assert [tuple(space.point(index).values()) for index in range(6)] == [
        ("x", 0), ("x", 10), ("x", 20), ("y", 0), ("y", 10), ("y", 20),
    ]  # fmt: skip


def test_continuous_space_has_no_size() -> None:
    assert Space({"a": Choice((1, 2)), "r": Range(0.0, 1.0)}).size is None
    assert Space({}).size == 1


SPACE = Space({"a": Choice((1, 2)), "r": Range(0, 9, "int")})


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({}, r"missing: a, r"),
        ({"a": 1}, r"missing: r"),
        ({"a": 1, "r": 2, "z": 3, "y": 4}, r"extra: z, y"),
        ({"A": 1, "r": 2}, r"missing: a; extra: A"),
        ({"a": 1.0, "r": 2}, r"a: 1.0 is not one of \[1, 2\]"),
        ({"a": True, "r": 2}, r"a: true is not one of"),
        ({"a": 1, "r": 10}, r"r: 10 is outside"),
        ({"a": 1, "r": "2"}, r'r: "2" is not a number'),
    ],
)
def test_action_that_does_not_fit(action: dict[str, Any], message: str) -> None:
    with pytest.raises(ActionError, match=message):
        SPACE.accept(action)


def test_action_is_put_in_order_and_snapped() -> None:
    accepted = SPACE.accept({"r": 3.2, "a": 2})
    assert list(accepted.items()) == [("a", 2), ("r", 3)]
    assert type(accepted["r"]) is int


def test_nested() -> None:
    assert nested({"a.b": 1, "a.c.d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


def test_numpy_scalars_of_an_agent_are_what_they_hold() -> None:
    space = Space({"threads": Choice((1, 2, 4)), "share": Range(0.0, 1.0)})
    accepted = space.accept({"threads": np.int64(4), "share": np.float32(0.5)})
    assert accepted == {"threads": 4, "share": 0.5}
    assert [type(value) for value in accepted.values()] == [int, float]
    with pytest.raises(ActionError):
        space.accept({"threads": np.array([4]), "share": 0.5})
