"""Values and their spelling, outcomes and objectives."""

from __future__ import annotations

import math
import statistics
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import scalars, texts

from tunegym.tuning.model.scenario import Objective, aims, violation
from tunegym.tuning.model.trial import Measured
from tunegym.tuning.model.values import (
    counted,
    exact_key,
    number,
    pairs,
    plus_minus,
    rounded,
    seconds,
    spelled,
    storable,
)

mappings = st.dictionaries(texts, scalars, max_size=4)


def typed(mapping: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {key: (type(value).__name__, repr(value)) for key, value in mapping.items()}


@given(mappings, mappings)
def test_keys_are_equal_only_for_equal_values(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (exact_key(one) == exact_key(other)) == (typed(one) == typed(other))
    assert exact_key(one) == exact_key(dict(reversed(one.items())))
    assert (exact_key(one, other) == exact_key(other, one)) == (typed(one) == typed(other))


@given(scalars)
def test_storable_values_are_spelled_as_printable_toml(value: Any) -> None:
    assert storable(value) is None
    assert spelled(value).isprintable()
    assert typed(tomllib.loads(f"x = {spelled(value)}")) == typed({"x": value})


NUMBERS = {
    0.0: "0", 3: "3", 1234567: "1,234,567", 12340.56: "12,341", 999.96: "1,000", 4.7483: "4.748",
    -0.0123456: "-0.01235", 0.00012: "0.00012", 0.0000512: "5.12e-5", 1e9: "1e9", -1.23456e12: "-1.235e12",
    1.7e308: "1.7e308",
}  # fmt: skip
SECONDS = {
    0.0: "0 s", 0.000012: "12 µs", 0.25: "250 ms", 1.5: "1.5 s", 59.94: "59.9 s", 125.0: "2 min 05 s",
    5400.0: "1 h 30 min",
}  # fmt: skip


def test_numbers_have_one_style() -> None:
    assert [number(value) for value in NUMBERS] == list(NUMBERS.values())
    assert [seconds(value) for value in SECONDS] == list(SECONDS.values())
    assert [number(123.456, digits) for digits in (2, 3, 6)] == ["123", "123", "123.456"]
    assert [plus_minus(4.75, spread) for spread in (1.26, 123.4, 1e-12)] == ["4.75 ±1.3", "4.75 ±123", "4.75"]
    assert [counted(count, "trial") for count in (0, 1, 2, 1000)] == ["0 trials", "1 trial", "2 trials", "1,000 trials"]


def test_values_are_short_where_people_read_them() -> None:
    """And still of their type: 1, 1.0 and True differ."""
    given = {
        "a": 0.1 + 0.2,
        "b": 0.27571018286789567,
        "c": 1.0,
        "d": 1,
        "e": True,
        "f": 1234567.25,
        "g": 2**53,
        "h": "on",
    }
    assert pairs(given) == "a=0.3 b=0.27571 c=1.0 d=1 e=true f=1234567.0 g=9007199254740992 h=on"
    assert [rounded(one) for one in (1.5e300, -1e-12, 123456789.0, "x")] == [1.5e300, -1e-12, 123456789.0, "x"]


# outcomes ---------------------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6), st.integers(1, 9))
def test_mean_and_spread_of_any_numbers(values: list[float], repeats: int) -> None:
    """The mean of finite numbers is finite and among them, that of equals the value itself; nothing overflows."""
    measured = Measured(tuple({"m": value} for value in values))
    assert min(values) <= measured.mean()["m"] <= max(values) or math.isclose(measured.mean()["m"], values[0])
    assert measured.spread()["m"] >= 0.0
    if len(values) > 1 and max(map(abs, values)) < 1e6:
        assert measured.mean()["m"] == pytest.approx(statistics.fmean(values), abs=1e-9)
        assert measured.spread()["m"] == pytest.approx(statistics.stdev(values), abs=1e-6)
    equal = Measured(({"m": values[0]},) * repeats)
    assert (equal.mean(), equal.spread()) == ({"m": values[0]}, {"m": 0.0})


def test_metric_that_not_every_sample_has() -> None:
    measured = Measured(({"m": 1.0, "n": 5.0}, {"m": 3.0}))
    assert measured.mean() == {"m": 2.0, "n": 5.0}
    assert measured.spread() == {"m": pytest.approx(math.sqrt(2.0)), "n": 0.0}


# objectives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "value", "expected"),
    [
        (Objective("m", "min", limit=2.0), 2.0, 0.0),
        (Objective("m", "min", limit=2.0), 3.0, 0.5),
        (Objective("m", "max", limit=2.0), 5.0, 0.0),
        (Objective("m", "max", limit=-2.0), -3.0, 0.5),
        (Objective("m", "min", limit=0.0), 3.0, 3.0),
        (Objective("m", "min"), 1e9, 0.0),
    ],
)
def test_violation_is_a_share_of_the_limit(objective: Objective, value: float, expected: float) -> None:
    assert objective.violation({"m": value}) == expected
    assert Objective(**objective.as_dict()) == objective
    assert objective.value({"m": value}) == (value if objective.goal == "max" else -value)


def test_violations_add_up() -> None:
    both = [Objective("a", "min", limit=1.0), Objective("b", "max", limit=4.0, weight=0.0), Objective("c")]
    assert violation(both, {"a": 1.5, "b": 3.0, "c": 0.0}) == 0.75
    assert aims(both) == (both[0], both[2])
