"""Knobs, the space they span, the contexts that env_params draw, and leaves of observations."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.strategies import INT64, choices, ranges, same, stepped

from tunegym.core.errors import ActionError
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, ObsLeafDescriptor, Range, Space

units = st.floats(0.0, 1.0, exclude_max=True)


@given(choices)
@example(Choice((1, 1.0, True, "1", 0, False, 0.0)))
def test_choice(choice: Choice) -> None:
    """Every candidate is found by exact type, and all are equally likely."""
    for index in range(choice.size):
        value = choice.at(index)
        assert choice.index(value) == index
        assert same(choice.accept(value), value)
    for value in (object(), []):
        with pytest.raises(ValueError, match="is not one of"):
            choice.accept(value)
    cells = 5 * choice.size
    counts = Counter(choice.index(choice.from_unit((cell + 0.5) / cells)) for cell in range(cells))
    assert set(counts.values()) == {5}
    assert choice.index(choice.from_unit(math.nextafter(1.0, 0.0))) == choice.size - 1


@given(ranges, units, st.floats(allow_nan=False, allow_infinity=False) | INT64)
def test_range_values_are_in_bounds_and_stay(knob: Range, unit: float, wild: float) -> None:
    drawn = [knob.from_unit(at) for at in (unit, 0.0, math.nextafter(1.0, 0.0))]
    placed = [knob.at_position(at) for at in (unit, -1.0, 2.0)]
    for value in (*drawn, *placed, knob.snap(wild)):
        assert type(value) is (int if knob.dtype == "int" else float)
        assert knob.low <= value <= knob.high  # type: ignore[operator]
        assert same(knob.accept(value), value)
        assert same(knob.snap(value), value)  # type: ignore[arg-type]


@given(stepped, st.data())
def test_steps_are_apart_and_all_there(knob: Range, data: st.DataObject) -> None:
    """``size`` values from low to high, each nearest to itself."""
    size, step = knob.size or 0, knob.step or 0
    assert (knob.at(0), knob.at(size - 1)) == (knob.low, knob.high)
    index = data.draw(st.integers(0, size - 2))
    value: Any = knob.at(index)
    assert value < knob.at(index + 1)
    assert same(knob.snap(knob.low + index * step), value)


def test_nearest_step() -> None:
    knob = Range(0, 100, "int", step=10)
    assert [knob.snap(value) for value in (-5, 4, 4.6, 5.2, 6, 14.9, 95.1, 1e9)] == [0, 0, 0, 10, 10, 10, 100, 100]
    knob = Range(0.1, 0.9, step=0.1)
    assert [knob.at(index) for index in range(9)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], "without dust"


@pytest.mark.parametrize(
    "knob",
    [Range(-2, 1, "int"), Range(2**60, 2**60 + 3, "int"), Range(10, 40, "int", step=10), Range(0.5, 2.0, step=0.5)],
)
def test_integers_and_steps_are_equally_likely(knob: Range) -> None:
    """The edges too: each of the four values has a quarter."""
    counts = Counter(knob.from_unit((cell + 0.5) / 4000) for cell in range(4000))
    assert sorted(counts.values()) == [1000] * 4
    assert (min(counts), max(counts)) == (knob.low, knob.high)


def test_log_ranges_are_uniform_in_their_logarithm() -> None:
    """An integer's share is that of its own rounding interval, the first and the last included."""
    knob = Range(1, 8, "int", log=True)
    counts = Counter(knob.from_unit((cell + 0.5) / 100_000) for cell in range(100_000))
    for value in range(1, 9):
        share = math.log((value + 0.5) / (value - 0.5)) / math.log(8.5 / 0.5)
        assert counts[value] / 100_000 == pytest.approx(share, abs=1e-4)
    knob = Range(0.001, 10.0, "float", log=True)
    counts = Counter(math.floor(math.log10(float(knob.from_unit((cell + 0.5) / 4000)))) for cell in range(4000))
    assert counts == {-3: 1000, -2: 1000, -1: 1000, 0: 1000}


# the space --------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(choices, stepped), min_size=1, max_size=4), st.data())
def test_points_are_a_mixed_radix_count(knobs: list[Choice | Range], data: st.DataObject) -> None:
    space = Space({f"k{index}": knob for index, knob in enumerate(knobs)})
    sizes = [knob.size or 0 for knob in knobs]
    assert space.size == math.prod(sizes)
    digits = [data.draw(st.integers(0, size - 1)) for size in sizes]
    point = space.point(sum(digit * math.prod(sizes[at + 1 :]) for at, digit in enumerate(digits)))
    assert list(point.values()) == [knob.at(digit) for knob, digit in zip(knobs, digits, strict=True)]
    assert space.accept(point) == point


SPACE = Space({"a": Choice((1, 2)), "r": Range(0, 9, "int")})


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([], r"an action is a mapping, not \[\]"),
        ({}, r"missing: a, r"),
        ({"a": 1, "r": 2, "z": 3, "y": 4}, r"extra: z, y"),
        ({"A": 1, "r": 2}, r"missing: a; extra: A"),
        ({"a": True, "r": 2}, r"a: true is not one of \[1, 2\]"),
        ({"a": np.array([1]), "r": 2}, r"a: .* is not one of"),
        *(({"a": 1, "r": value}, "r: .* is outside") for value in (10, 9.01, -0.01)),
        *(({"a": 1, "r": value}, "r: .*low = 0") for value in ("2", True, None, math.nan, math.inf, [2])),
    ],
)
def test_action_that_does_not_fit(action: Any, message: str) -> None:
    with pytest.raises(ActionError, match=message):
        SPACE.accept(action)


def test_action_is_put_in_order_and_snapped() -> None:
    for action in ({"r": 3.2, "a": 2}, {"r": np.float32(3.2), "a": np.int64(2)}):
        accepted = SPACE.accept(action)
        assert list(accepted.items()) == [("a", 2), ("r", 3)]
        assert {type(value) for value in accepted.values()} == {int}


# contexts ---------------------------------------------------------------------------------------------

PARAMS = {
    "drop_rate": EnvParam(Choice((0.001, 0.01, 0.1)), weights=(0.5, 0.3, 0.2)),
    "load": EnvParam(Range(1, 1000, "int", log=True)),
    "kind": EnvParam(Choice(("text", "binary"))),
}
NUMBERS = range(1, 200)


def test_contexts_depend_on_seed_name_and_number_only() -> None:
    contexts = [EnvParams(PARAMS, seed=7).context(number) for number in NUMBERS]
    assert contexts != [EnvParams(PARAMS, seed=8).context(number) for number in NUMBERS]
    turned = EnvParams(dict(reversed(PARAMS.items())), seed=7)
    assert [turned.context(number) for number in reversed(NUMBERS)] == contexts[::-1]
    for gone in PARAMS:
        fewer = EnvParams({name: param for name, param in PARAMS.items() if name != gone}, seed=7)
        for number, context in zip(NUMBERS, contexts, strict=True):
            assert fewer.context(number) == {name: value for name, value in context.items() if name != gone}
    assert EnvParams({}).context(5) == {}


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (0.9, 0.05, 0.05), (0.0, 0.25, 0.75), None])
def test_weights(weights: tuple[float, ...] | None) -> None:
    """Chi-square over 20,000 draws: with 2 degrees of freedom 25 is far beyond any chance."""
    param = EnvParam(Choice(("a", "b", "c")), weights)
    counts = Counter(param.draw(11, "p", number) for number in range(1, 20_001))
    expected = {value: share * 20_000 for value, share in zip("abc", weights or [1 / 3] * 3, strict=True)}
    assert all(counts[value] == 0 for value, count in expected.items() if count == 0)
    assert sum((counts[value] - count) ** 2 / count for value, count in expected.items() if count) < 25


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6).filter(lambda weights: sum(weights) > 0.01), st.integers())
def test_drawn_value_is_a_candidate_with_weight(weights: list[float], seed: int) -> None:
    param = EnvParam(Choice(tuple(range(len(weights)))), tuple(weight / sum(weights) for weight in weights))
    assert weights[int(param.draw(seed, "p", 1))] > 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "Box"}, 'kind must be "box" or "discrete", not \'Box\''),
        ({"kind": "box", "dim": 0}, "dim must be an integer of at least 1, not 0"),
        ({"kind": "box", "n": 3}, "a box has a dim and no n, here n=3"),
        ({"kind": "box", "high": math.nan}, "low must be below high"),
        ({"kind": "box", "low": "0", "high": 1.0}, "low must be below high"),
        ({"kind": "discrete"}, "a discrete leaf needs n, an integer of at least 1, not None"),
        ({"kind": "discrete", "n": 2.0}, "a discrete leaf needs n"),
        ({"kind": "discrete", "n": 2, "high": 1.0}, "neither dim nor bounds"),
    ],
)
def test_malformed_descriptor_of_a_leaf(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ObsLeafDescriptor(**settings)


def test_few_listed_contexts_are_all_represented() -> None:
    assert EnvParams({}).represented() == (({}, 1.0),)
    params = EnvParams(
        {"load": EnvParam(Choice(("low", "high", "never")), (0.25, 0.75, 0.0)), "size": EnvParam(Choice((1, 2)))}
    )
    assert params.represented() == (
        ({"load": "low", "size": 1}, 0.125),
        ({"load": "low", "size": 2}, 0.125),
        ({"load": "high", "size": 1}, 0.375),
        ({"load": "high", "size": 2}, 0.375),
    )


@pytest.mark.parametrize(
    ("others", "count", "points"),
    [
        ({}, 6, 6),
        ({"other": Range(1.0, 100.0, log=True)}, 6, 6),
        ({"other": Choice((1, 2))}, 6, 3),
        ({"other": Choice((1, 1.0, True))}, 6, 2),
        ({"other": Choice((1, 2, 3)), "more": Choice(("a", "b", "c"))}, 9, 9),
        ({"other": Choice(tuple(range(13)))}, 12, 12),
    ],
)
def test_ranges_are_represented_by_spread_points(others: dict[str, Choice | Range], count: int, points: int) -> None:
    """Lists meet the same points of the ranges where there is room, and each value comes as often as another."""
    params = EnvParams({"load": EnvParam(Range(0.0, 6.0)), **{name: EnvParam(one) for name, one in others.items()}})
    found = params.represented()
    assert len(found) == count
    assert math.fsum(weight for _, weight in found) == pytest.approx(1.0)
    loads = sorted({context["load"] for context, _ in found})
    assert loads == pytest.approx([6.0 * (at + 0.5) / points for at in range(points)])
    for name, domain in others.items():
        values = Counter(repr(context[name]) for context, _ in found)
        assert len(values) == min(domain.size or count, 12)
        assert len(set(values.values())) == 1


def test_many_lists_are_represented_evenly() -> None:
    params = {name: EnvParam(Choice(tuple("abcd"))) for name in ("one", "two", "three")}
    found = [tuple(context.values()) for context, _ in EnvParams(params).represented()]
    assert len(set(found)) == 12
    for first, second in combinations(range(3), 2):
        pairs = {(one[first], one[second]) for one in found}
        assert len(pairs) >= 10, "a value of one meets most values of another"
        assert set(Counter(one[first] for one in found).values()) == {3}
    skewed = {name: EnvParam(Choice(tuple("abcd")), (0.85, 0.05, 0.05, 0.05)) for name in ("one", "two")}
    points = EnvParams(skewed).represented()
    assert len(points) < 12, "draws that coincide are one context"
    assert math.fsum(weight for _, weight in points) == pytest.approx(1.0)
