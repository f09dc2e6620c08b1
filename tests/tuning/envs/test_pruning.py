"""What running trials report, and what becomes of those that are hopeless."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tunegym.tuning.envs.trials import measure as prune
from tunegym.tuning.model.space import Choice, EnvParam
from tunegym.tuning.model.trial import Measured, Pruned
from tunegym.tuning.pruners.median import MedianConfig, MedianPruner
from tunegym.tuning.rewards import identity, negative

Benches = Callable[..., Any]
Curve = Sequence[tuple[int, float]]


class Floor:
    """Prunes what is below 0, and remembers what it was told."""

    def __init__(self) -> None:
        self.judged: list[tuple[int, list[tuple[int, float]]]] = []
        self.ended: list[tuple[int, list[tuple[int, float]], str]] = []

    def judge(self, number: int, curve: Curve) -> str | None:
        self.judged.append((number, list(curve)))
        return "below 0" if curve[-1][1] < 0 else None

    def closed(self, number: int, curve: Curve, status: str) -> None:
        self.ended.append((number, list(curve), status))


def climb(x: int, report: Any, **_: Any) -> dict[str, float]:
    """Reports x, x - 1, x - 2; returns x."""
    for step in range(1, 4):
        report(step, float(x - step + 1))
    return {"m": float(x)}


def test_pruned_trial(bench: Benches) -> None:
    """It has what it reported and why, the penalty of a failure, and is neither best nor seen as measured."""
    one = bench(climb, pruner=Floor, store="journal")
    assert one.step(x=5).outcome == Measured(({"m": 5.0},))
    trial = one.step(x=1)
    assert trial.outcome == Pruned("pruned at step 3: below 0")
    assert trial.reports == ((1, 1.0), (2, 0.0), (3, -1.0))
    assert trial.reward == 5.0 - 10 * 5.0
    assert (trial.measured, trial.metrics) == (False, {})
    observed = one.engine.observe()
    assert (observed.number, observed.metrics, observed.measured) == (3, {}, False)
    assert one.engine.tally.best.number == 1
    assert one.engine.tally.statuses == {"measured": 1, "pruned": 1}
    assert one.trials() == list(one.engine.history())
    assert one.trials()[1] == trial


def test_values_are_recorded_without_a_pruner(bench: Benches) -> None:
    trial = bench(climb).step(x=0)
    assert trial.measured
    assert trial.reports == ((1, 0.0), (2, -1.0), (3, -2.0))


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError()])
def test_values_of_a_failure_are_recorded(bench: Benches, error: Exception) -> None:
    """The pruner hears how it ended."""
    floor = Floor()

    def function(x: int, report: Any) -> dict[str, float]:
        report(1, 3.0)
        raise error

    trial = bench(function, pruner=lambda: floor).step(x=0)
    assert trial.reports == ((1, 3.0),)
    assert floor.ended == [(1, [(1, 3.0)], trial.status)]


def test_pruned_is_never_cached(bench: Benches) -> None:
    one = bench(climb, pruner=Floor)
    assert [one.step(x=x).status for x in (0, 0, 5, 5)] == ["pruned", "pruned", "measured", "measured"]
    assert [run["x"] for run in one.lab.runs] == [0, 0, 5]
    assert one.trials()[3].cached_from == 3
    assert one.trials()[3].reports == ()


def test_only_the_first_repeat_is_judged(bench: Benches) -> None:
    runs: list[int] = []

    def function(x: int, report: Any) -> dict[str, float]:
        runs.append(x)
        report(len(runs), -1.0 if len(runs) == 2 or x == 0 else 1.0)
        return {"m": 1.0}

    one = bench(function, pruner=Floor, repeats=3)
    trial = one.step(x=1)
    assert trial.measured
    assert trial.reports == ((1, 1.0),)
    assert one.step(x=0).outcome == Pruned("repeat 1 of 3: pruned at step 4: below 0")


def test_reward_of_two_metrics_prunes_nothing(bench: Benches, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, however many values."""

    def wants_two(_: Any) -> Any:
        return lambda metrics: metrics["m"] + metrics["other"]

    def function(x: int, report: Any) -> dict[str, float]:
        return {**climb(x, report), "other": 1.0}

    one = bench(function, pruner=Floor, reward=wants_two)
    with caplog.at_level(logging.WARNING):
        assert [one.step(x=x).status for x in (0, 1)] == ["measured"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "a reported value can't be judged, so its trial isn't pruned there: reward identity raised KeyError: 'other'"
    ]
    assert one.trials()[0].reports == ((1, 0.0), (2, -1.0), (3, -2.0))


def test_values_that_are_not_finite_are_left_out(bench: Benches, caplog: pytest.LogCaptureFixture) -> None:
    def function(x: int, report: Any) -> dict[str, float]:
        for step, value in enumerate((1.0, float("nan"), float("-inf"), 2.0)):
            report(step, value)
        return {"m": 1.0}

    one = bench(function, pruner=Floor, store="journal")
    with caplog.at_level(logging.WARNING):
        assert one.step(x=1).reports == ((0, 1.0), (3, 2.0))
        one.step(x=2)
    assert [record.getMessage() for record in caplog.records] == [
        "trial 1 reported nan at step 1: such values are left out"
    ]


def test_trials_are_compared_under_the_same_context_only(bench: Benches) -> None:
    """What is hopeless under one load may be the best there is under another."""

    def function(x: int, load: int, report: Any) -> dict[str, float]:
        report(1, 100.0 / load + x)
        return {"m": 100.0 / load + x}

    one = bench(
        function,
        env_params={"load": EnvParam(Choice((1, 50)))},
        pruner=lambda: MedianPruner(MedianConfig(startup_trials=1)),
        cache=False,
    )
    trials = [one.step(x=5) for _ in range(20)]
    assert {trial.context["load"] for trial in trials} == {1, 50}
    assert {trial.status for trial in trials} == {"measured"}
    assert {one.step(x=x).status for x in (4, 3, 2, 1)} == {"pruned"}


def test_error_of_the_pruner(bench: Benches) -> None:
    class Broken(Floor):
        def judge(self, number: int, curve: Curve) -> str | None:
            raise ZeroDivisionError("a bug")

    one = bench(climb, pruner=Broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        one.engine.begin({"x": 1})


def test_late_reports_are_ignored(bench: Benches) -> None:
    """What comes after the end of a trial counts for nobody."""
    late: list[Any] = []
    floor = Floor()

    def function(x: int, report: Any) -> dict[str, float]:
        late.append(report._tell)
        report(1, 1.0)
        return {"m": 1.0}

    one = bench(function, pruner=lambda: floor)
    one.step(x=1)
    assert late[0](2, -5.0) is False
    assert [number for number, _ in floor.judged] == [1]
    assert one.step(x=2).reports == ((1, 1.0),)


# many values ------------------------------------------------------------------------------------------------


def test_many_values_are_thinned() -> None:
    """Evenly, and the newest is always the last."""
    recording = prune.Curve()
    for step in range(100_000):
        recording.add(step, float(step))
        assert recording.points[-1] == (step, float(step))
        assert len(recording.points) <= prune.MOST_VALUES + 1
    steps = [step for step, _ in recording.points]
    gaps = {after - before for before, after in itertools.pairwise(steps[:-1])}
    assert gaps == {128}
    assert steps[0] == 0


# the past -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [identity, negative])
def test_the_pruner_is_told_of_the_past(bench: Benches, reward: Any) -> None:
    """Of each trial what it was told at its end; of trials of another fingerprint nothing."""
    told: list[Floor] = []

    def make() -> Floor:
        told.append(Floor())
        return told[-1]

    one = bench(climb, pruner=make, store="journal", reward=reward)
    ended = {one.step(x=x).status for x in (5, 1, 5)}
    assert ended == ({"measured", "pruned"} if reward is identity else {"pruned"})
    one.store.close()
    before = [trial for floor in told for trial in floor.ended]
    assert len(before) == (2 if reward is identity else 3), "a cached one has no curve"
    for fingerprint, expected in (("f", before), ("g", [])):
        told.clear()
        again = bench(climb, pruner=make, store="journal", fingerprint=fingerprint, reward=reward)
        assert [trial for floor in told for trial in floor.ended] == expected
        again.store.close()
