from __future__ import annotations

from collections.abc import Callable

import pytest

from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.rewards import LIMIT_COST, FromObjectives, RewardError, identity, inverse, negative


@pytest.mark.parametrize(("make", "expected"), [(identity, 4.0), (negative, -4.0), (inverse, 0.25)])
def test_of_the_first_metric(make: Callable[..., Callable[..., float]], expected: float) -> None:
    reward = make(["latency", "other"])
    assert reward({"other": 9.0, "latency": 4.0}) == expected


@pytest.mark.parametrize(("value", "message"), [(0.0, "latency is 0"), (-0.0, "latency is 0"), (5e-324, "is inf")])
def test_inverse_of_zero(value: float, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        inverse(["latency"])({"latency": value})


def test_objectives_are_weighed_in_units_of_the_first_measurement() -> None:
    assert FromObjectives([Objective("a", "max", 3.0)])({"a": 4.0, "b": 1.0}) == 4.0
    assert FromObjectives([Objective("a", "min")])({"a": 4.0}) == -4.0
    reward = FromObjectives([Objective("a", "max", 3.0), Objective("b", "min", 1.0)])
    reward.remember({"a": -200.0, "b": 0.5})
    reward.remember({"a": 7.0, "b": 7.0})
    assert reward({"a": -200.0, "b": 0.5}) == (-3.0 - 1.0) / 4
    assert reward({"a": 400.0, "b": 0.25}) == (6.0 - 0.5) / 4


def test_a_first_measurement_of_zero_is_no_unit() -> None:
    reward = FromObjectives([Objective("a"), Objective("b")])
    reward.remember({"a": 0.0, "b": 4.0})
    assert reward({"a": 0.0, "b": 4.0}) == 0.5
    reward.remember({"a": 2.0, "b": 4.0})
    assert reward({"a": 2.0, "b": 4.0}) == 1.0


def test_a_limit_is_soft() -> None:
    """It costs in proportion, in the objective's own units."""
    reward = FromObjectives([Objective("a", "max"), Objective("b", "min", 0.0, 2.0)])
    reward.remember({"a": 100.0, "b": 1.0})
    kept, slightly, badly = (reward({"a": 100.0, "b": b}) for b in (2.0, 2.1, 4.0))
    assert kept == 100.0
    assert slightly == pytest.approx(100.0 - 100.0 * LIMIT_COST * 0.05)
    assert badly == 100.0 - 100.0 * LIMIT_COST
    assert reward({"a": 100.0}) == 100.0  # an intermediate value comes without the other metrics
