from __future__ import annotations

import pytest

from tunegym.tuning.model.scenario import Objective, aims, violation


def test_value_is_turned_so_that_more_is_better() -> None:
    assert Objective("m", "max").value({"m": 3.0}) == 3.0
    assert Objective("m", "min").value({"m": 3.0}) == -3.0


@pytest.mark.parametrize(
    ("objective", "value", "expected"),
    [
        (Objective("m", "min", limit=2.0), 1.0, 0.0),
        (Objective("m", "min", limit=2.0), 2.0, 0.0),
        (Objective("m", "min", limit=2.0), 3.0, 0.5),
        (Objective("m", "max", limit=2.0), 1.0, 0.5),
        (Objective("m", "max", limit=2.0), 5.0, 0.0),
        (Objective("m", "max", limit=-2.0), -3.0, 0.5),
        (Objective("m", "min", limit=0.0), 3.0, 3.0),
        (Objective("m", "min"), 1e9, 0.0),
    ],
)
def test_violation_is_a_share_of_the_limit(objective: Objective, value: float, expected: float) -> None:
    assert objective.violation({"m": value}) == expected


def test_violations_add_up() -> None:
    both = [Objective("a", "min", limit=1.0), Objective("b", "max", limit=4.0, weight=0.0), Objective("c")]
    assert violation(both, {"a": 1.5, "b": 3.0, "c": 0.0}) == 0.75
    assert aims(both) == (both[0], both[2])


def test_plain_data_and_back() -> None:
    for objective in (Objective("m"), Objective("m", "min", 0.0, 2.5)):
        assert Objective(**objective.as_dict()) == objective
