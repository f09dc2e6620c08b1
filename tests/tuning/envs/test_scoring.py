"""Only a measurement is scored; anything else gets a penalty that can't be taken for a success."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunegym.core.randomness import unit
from tunegym.tuning.envs.score import TrialScore
from tunegym.tuning.model.scenario import Penalties
from tunegym.tuning.model.space import Range
from tunegym.tuning.model.trial import Cancelled, Failed, Infeasible, Measured, TimedOut
from tunegym.tuning.rewards import identity, inverse, negative

Benches = Callable[..., Any]


@pytest.mark.parametrize("reward", [negative, identity, inverse])
def test_crashing_settings_never_look_good(bench: Benches, reward: Any) -> None:
    """30 % of the space crashes: never best, never served, and below every measured reward."""
    crashed: list[int] = []

    def function(x: int) -> dict[str, float]:
        if x % 10 < 3:
            crashed.append(x)
            raise ValueError("segmentation fault")
        return {"m": 1.0 + x}

    one = bench(function, knobs={"x": Range(0, 99, "int")}, reward=reward)
    for number in range(1, 301):
        one.step(x=int(unit(5, "x", number) * 100))
    trials = one.trials()
    failed = [trial for trial in trials if not trial.measured]
    measured = [trial for trial in trials if trial.measured]
    assert len(failed) == len(crashed) > 50
    assert max(trial.reward for trial in failed) < min(trial.reward for trial in measured)
    assert all(trial.cached_from is None for trial in failed)
    assert all(math.isfinite(trial.reward) for trial in trials)
    best = one.engine.tally.best
    assert best.measured
    assert best.reward == max(trial.reward for trial in measured)


def test_penalty_is_not_put_through_the_reward_function(bench: Benches) -> None:
    """-1.0 under `negative` would otherwise be the best there is."""

    def function(x: int) -> dict[str, float]:
        if x == 5:
            raise ValueError("no")
        return {"m": float(x)}

    penalties = Penalties(constraint_failure=-50.0, metric_failure=-70.0)
    one = bench(function, reward=negative, penalties=penalties, constraints=[lambda p: p["x"] != 4])
    assert [one.step(x=x).reward for x in (3, 4, 5)] == [-3.0, -50.0, -70.0]
    scoring = TrialScore(identity(["m"]), penalties)
    for outcome in (Failed("f"), TimedOut(), Cancelled()):
        assert scoring.score(outcome) == (outcome, -70.0)


@pytest.mark.parametrize("worst", [-1e-9, 0.0, 5.0, -3.0, 1e12, -1e300, -1e308, 1e308])
def test_auto_is_below_the_worst_so_far(worst: float) -> None:
    scoring = TrialScore(identity(["m"]), Penalties())
    before = scoring.penalty(Failed("f"))
    assert math.isfinite(before)
    scoring.score(Measured(({"m": worst},)))
    after = scoring.penalty(Infeasible("i"))
    assert math.isfinite(after)
    assert after < worst


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_attractive_penalty_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """As soon as a measured reward is below it, whichever came first."""
    scoring = TrialScore(identity(["m"]), Penalties(constraint_failure=-1.0, metric_failure=-100.0))
    scoring.score(Infeasible("i"))
    scoring.score(Measured(({"m": 5.0},)))
    assert warnings(caplog) == []
    for value in (-2.0, -3.0, -4.0):
        scoring.score(Measured(({"m": value},)))
        scoring.score(Infeasible("i"))
    assert len(warnings(caplog)) == 1
    assert "rewards.constraint_failure = -1 is above a measured reward (-2)" in warnings(caplog)[0]
    scoring.score(Measured(({"m": -200.0},)))
    scoring.score(Failed("f"))
    assert len(warnings(caplog)) == 2
    assert "rewards.metric_failure = -100" in warnings(caplog)[1]


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        (lambda metrics: metrics["nothing"], "reward identity raised KeyError: 'nothing'"),
        (lambda metrics: math.nan, "reward identity gave nan"),
        (lambda metrics: -math.inf, "reward identity gave -inf"),
        (lambda metrics: None, "reward identity raised TypeError"),
        (lambda metrics: "much", "reward identity raised ValueError"),
        (lambda metrics: sys.exit(3), "reward identity raised SystemExit: 3"),
    ],
)
def test_failing_reward_fails_the_trial(bench: Benches, reward: Any, reason: str) -> None:
    """A reward that somebody plugged in fails the trial, not the run."""
    trial = bench(lambda x: {"m": 1.0}, reward=lambda _: reward).step(x=1)
    assert trial.status == "failed"
    assert trial.reason.startswith(reason)
    assert math.isfinite(trial.reward)


def test_a_reward_is_a_float(bench: Benches) -> None:
    trial = bench(lambda x: {"m": 1.0}, reward=lambda _: lambda metrics: np.float32(metrics["m"] + 0.5)).step(x=1)
    assert (trial.reward, type(trial.reward)) == (1.5, float)
