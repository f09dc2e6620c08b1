"""What a recommendation says about itself: limits, the Pareto set, and who looks better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tunegym.tuning.answers.recommendation import Recommendation
from tunegym.tuning.model.outcome import Failed, Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.recommend import recommend
from tunegym.tuning.reports.results import RunResults

Written = Callable[..., RunResults]
Row = tuple[Mapping[str, Any], int, float | None]
"""Context, the knob ``x``, and the metric ``s``; the reward is minus it."""

KNOBS = {"x": {"values": [1, 2, 3]}}
NET = {"net": {"values": ["wifi", "wire"]}, "load": {"values": ["low", "high"]}}


@pytest.fixture
def asked(written: Written) -> Callable[..., Recommendation]:
    """The recommendation of a run with these trials."""

    def ask(rows: list[Row], context: Mapping[str, Any] | None = None, env_params: Any = NET) -> Recommendation:
        trials = [
            Trial(n, at, {"x": x}, Failed("no"), -1e6, 0.1)
            if s is None
            else Trial(n, at, {"x": x}, Measured(({"s": s},)), -s, 0.1)
            for n, (at, x, s) in enumerate(rows, 1)
        ]
        declared = {"agent_metrics": ["s"], "agent_reward_function": "negative"}
        run = written(trials, knobs=KNOBS, env_params=env_params, metrics=["s"], declared=declared)
        return recommend(run.folder, context)

    return ask


@pytest.fixture
def judged(written: Written) -> Callable[..., Recommendation]:
    """The recommendation of a run with objectives: each row has the metrics of one setting."""

    def ask(objectives: list[dict[str, Any]], *rows: dict[str, float]) -> Recommendation:
        trials = [Trial(n, {}, {"x": n}, Measured((row,)), -n, 0.1) for n, row in enumerate(rows, 1)]
        return recommend(written(trials, knobs=KNOBS, metrics=list(rows[0]), objectives=objectives).folder)

    return ask


# limits and the Pareto set --------------------------------------------------------------------------------


def test_limits_that_no_setting_keeps(judged: Callable[..., Recommendation]) -> None:
    limits = [{"metric": "s", "goal": "min", "limit": 2.0}, {"metric": "mb", "goal": "min", "weight": 0, "limit": 64}]
    found = judged(limits, {"s": 5.0, "mb": 1.0}, {"s": 3.0, "mb": 128.0}, {"s": 3.0, "mb": 32.0})
    assert found.action == {"x": 3}
    assert found.violation == found.as_dict()["violation"] == 0.5
    assert found.note == "no measured setting keeps the limits, and this one comes closest (s is 3, the limit 2)"


def test_limits_that_are_kept(judged: Callable[..., Recommendation]) -> None:
    found = judged([{"metric": "s", "goal": "min", "limit": 2.0}], {"s": 5.0}, {"s": 1.0})
    assert (found.action, found.violation, found.note) == ({"x": 2}, 0.0, None)


def test_one_of_a_pareto_set(judged: Callable[..., Recommendation]) -> None:
    both = [{"metric": "s", "goal": "min"}, {"metric": "mb", "goal": "min"}]
    found = judged(both, {"s": 1.0, "mb": 3.0}, {"s": 3.0, "mb": 1.0}, {"s": 4.0, "mb": 4.0})
    assert found.note == "one of 2 settings on the Pareto set, the one with the highest reward: see best.toml"
    assert judged(both, {"s": 1.0, "mb": 1.0}, {"s": 3.0, "mb": 2.0}).note is None, "a set of one leaves no choice"


# who looks better -----------------------------------------------------------------------------------------


def at(net: str, x: int, s: float | None, load: str = "low") -> Row:
    return {"net": net, "load": load}, x, s


HERE = {"net": "wifi", "load": "low"}


def test_a_setting_that_looks_better_and_was_measured_once(asked: Callable[..., Recommendation]) -> None:
    rows = [*(at("wifi", 1, s) for s in (17.0, 17.6, 17.3, 17.3)), *(at("wifi", 3, 21.0) for _ in range(4))]
    found = asked([*rows, at("wifi", 2, 16.7)], HERE)
    assert found.action == {"x": 1}, "the ranking stays as it is"
    assert found.note == "x=2 looks better (s 16.7 against 17.3) but was measured only once"
    assert asked([*rows, at("wifi", 2, 18.0)], HERE).note is None
    assert asked([*rows, at("wire", 2, 1.0)], HERE).note is None, "it did well somewhere else"


def test_several_times_and_closely(asked: Callable[..., Recommendation]) -> None:
    rows = [*(at("wifi", 1, 10.0) for _ in range(9)), *(at("wifi", 3, 20.0) for _ in range(9))]
    found = asked([*rows, *(at("wifi", 2, 9.9999) for _ in range(2))], HERE)
    assert found.note == "x=2 looks better (s 9.9999 against 10) but was measured only 2 times"


def test_in_part_of_a_context_only_the_same_places_are_compared(asked: Callable[..., Recommendation]) -> None:
    rows = [
        at(net, x, s + hard) for net, hard in (("wifi", 0), ("wire", 50)) for x, s in ((1, 10), (3, 20)) for _ in "abcd"
    ]
    found = asked([*rows, at("wifi", 2, 9.0)], {"load": "low"})
    assert (found.action, found.note) == ({"x": 1}, None), "it was measured only where it is easy"
    found = asked([*rows, at("wifi", 2, 9.0), at("wire", 2, 59.0)], {"load": "low"})
    assert found.note == "x=2 looks better (s 34 against 35) but was measured only 2 times"


def test_an_answer_that_was_not_measured_everywhere(asked: Callable[..., Recommendation]) -> None:
    rows = [at(net, x, 20.0) for net in ("wifi", "wire") for x in (2, 3) for _ in "ab"]
    found = asked([*rows, *(at("wifi", 1, 1.0) for _ in "abc"), at("wire", 1, None)], {"load": "low"})
    assert (found.action, found.failed) == ({"x": 1}, 1)
    assert found.note is not None
    assert found.note == "it was measured in 1 of the 2 contexts that match"


def test_near_a_value_of_a_range_luck_with_the_draws_is_no_better_look(asked: Callable[..., Recommendation]) -> None:
    """The metric is the size itself, plus 5 for all but the first setting: one small draw of another is luck."""
    spec = {"size": {"low": 0.0, "high": 100.0, "dtype": "float"}}
    rows: list[Row] = [({"size": 40.0 + n}, 1 + n % 2, 40.0 + n + 5 * (n % 2)) for n in range(20)]
    found = asked([*rows, ({"size": 20.0}, 3, 25.0)], {"size": 45.0}, spec)
    assert found.action == {"x": 1}
    assert found.note is not None
    assert "looks better" not in found.note
    assert "contexts that match" not in found.note
