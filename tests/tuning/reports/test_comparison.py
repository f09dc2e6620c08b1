from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tunegym.tuning.model.trial import Failed, Measured, Trial
from tunegym.tuning.reports.page import compare, run_labels
from tunegym.tuning.reports.results import RunResults

KNOBS = {"x": {"values": [1, 2, 3, 4]}}


def trials(*rewards: float | None) -> list[Trial]:
    return [
        Trial(n, {}, {"x": n}, Failed("f") if r is None else Measured(({"m": r},)), -1e9 if r is None else r, 0.1)
        for n, r in enumerate(rewards, 1)
    ]


def test_labels_are_short_and_unique() -> None:
    root = Path("/results")
    assert run_labels([root / "s" / "one", root / "s" / "two"]) == ["one", "two"]
    assert run_labels([root / "a" / "one", root / "b" / "one"]) == ["a/one", "b/one"]
    assert run_labels([root / "s" / "one"]) == ["s/one"]
    assert run_labels([root / "s" / "one", root / "s" / "one"]) == ["s/one", "s/one #2"]
    assert len(set(run_labels([root / "s", root / "s" / "inner", root / "s", root / "t"]))) == 4


def test_best_and_its_curve(runs: Callable[..., RunResults]) -> None:
    first = runs("one", e={"trials": trials(1.0, None, 0.5, 3.0), "knobs": KNOBS})
    second = runs("two", e={"trials": trials(None, 2.0), "knobs": KNOBS})
    told = compare([first, second]).facts
    assert told["warnings"] == []
    one, two = told["entries"]
    assert (one["run"], one["experiment"], one["trials"], one["measured"]) == ("one", "e", 4, 3)
    assert (one["best"]["reward"], one["best"]["labels"]) == (3.0, {"x": "4"})
    assert one["curve"]["trials"] == [(1, 1.0), (4, 3.0)]
    assert [reward for _, reward in one["curve"]["seconds"]] == [1.0, 3.0]
    assert two["curve"]["trials"] == [(2, 2.0)], "a failure is no reward"


def test_what_differs_is_told(runs: Callable[..., RunResults]) -> None:
    first = runs("one", e={"trials": trials(1.0), "knobs": KNOBS}, only={"trials": trials(1.0), "metrics": ["q"]})
    second = runs("two", e={"trials": trials(2.0), "knobs": {"x": {"values": [1, 2]}}, "metrics": ["m", "n"]})
    (warning,) = compare([first, second]).facts["warnings"]
    assert warning.startswith("e: the metrics and the knobs differ")


def test_without_a_shared_experiment_all_are_compared(runs: Callable[..., RunResults]) -> None:
    first = runs("one", a={"trials": trials(1.0)})
    second = runs("two", b={"trials": trials(2.0), "metrics": ["other"]})
    (warning,) = compare([first, second]).facts["warnings"]
    assert "the metrics differ" in warning


def test_limits_that_are_exceeded(runs: Callable[..., RunResults]) -> None:
    limits = [{"metric": "m", "goal": "max", "limit": 2.5}]
    first = runs("one", e={"trials": trials(1.0, 2.0), "knobs": KNOBS, "objectives": limits})
    second = runs("two", e={"trials": trials(1.0, 3.0), "knobs": KNOBS, "objectives": limits})
    told = compare([first, second]).facts
    assert [(one["best"]["violation"], one["best"]["note"]) for one in told["entries"]] == [
        (0.2, "limits exceeded"),
        (0.0, None),
    ]
    assert told["warnings"] == ["one: no measured setting of e keeps the limits"]


def test_what_was_not_started_or_not_measured(runs: Callable[..., RunResults]) -> None:
    told = compare([runs("one", e={"trials": None}), runs("two", e={"trials": trials(None)})]).facts
    assert [entry["best"] for entry in told["entries"]] == [None, None]
    assert [entry["state"] for entry in told["entries"]] == ["not started", "finished"]
    assert told["warnings"] == []
