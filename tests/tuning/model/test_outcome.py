from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.trial import (
    STATUSES,
    Cancelled,
    Failed,
    Infeasible,
    Measured,
    Outcome,
    Pruned,
    TimedOut,
    Trial,
    outcome_of,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
ALL: list[Outcome] = [
    Measured(({"m": 1.0},)),
    Infeasible("i"),
    Failed("f"),
    TimedOut("t"),
    Cancelled("c"),
    Pruned("p"),
]


def test_a_status_each() -> None:
    assert tuple(outcome.status for outcome in ALL) == STATUSES


def test_back_from_a_record() -> None:
    for outcome in ALL:
        samples = [dict(sample) for sample in outcome.samples] if isinstance(outcome, Measured) else []
        reason = "" if isinstance(outcome, Measured) else outcome.reason
        assert outcome_of(outcome.status, reason, samples) == outcome


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_mean_and_spread(values: list[float]) -> None:
    measured = Measured(tuple({"m": value} for value in values))
    assert measured.mean()["m"] == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert measured.spread()["m"] == pytest.approx(statistics.stdev(values), abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=6))
def test_mean_and_spread_of_any_numbers(values: list[float]) -> None:
    """The mean of finite numbers is finite and among them; nothing overflows on the way."""
    measured = Measured(tuple({"m": value} for value in values))
    assert min(values) <= measured.mean()["m"] <= max(values) or math.isclose(measured.mean()["m"], values[0])
    assert measured.spread()["m"] >= 0.0


def test_single_sample_has_no_spread() -> None:
    assert Measured(({"m": 3.0},)).mean() == {"m": 3.0}
    assert Measured(({"m": 3.0},)).spread() == {"m": 0.0}


def test_metric_that_not_every_sample_has() -> None:
    measured = Measured(({"m": 1.0, "n": 5.0}, {"m": 3.0}))
    assert measured.mean() == {"m": 2.0, "n": 5.0}
    assert measured.spread() == {"m": pytest.approx(math.sqrt(2.0)), "n": 0.0}


def test_trial_without_a_measurement_has_no_metrics() -> None:
    for outcome in ALL:
        trial = Trial(1, {}, {}, outcome, 0.0, 0.0)
        assert trial.measured == isinstance(outcome, Measured)
        assert (trial.metrics == {}) == (not trial.measured)
        assert (trial.reason == "") == trial.measured


@pytest.mark.parametrize("value", [0.1, 0.7, 1e-300, 1.7976931348623157e308, -3.3])
@pytest.mark.parametrize("repeats", [2, 3, 7, 10])
def test_the_mean_of_equals_is_the_value_itself(value: float, repeats: int) -> None:
    assert Measured(({"m": value},) * repeats).mean() == {"m": value}
