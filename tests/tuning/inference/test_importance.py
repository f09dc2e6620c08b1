"""Importance: what matters has a share, what does nothing has none, and failures are counted apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.tuning.inference.experiments import Cost, Simulation, loads

from tunegym.tuning.inference.importance import Importance, importance_of
from tunegym.tuning.inference.observations import Observations
from tunegym.tuning.inference.surrogate import Surrogate
from tunegym.tuning.model.scenario import Judged
from tunegym.tuning.model.space import Choice, Range
from tunegym.tuning.model.trial import SEARCH, TimedOut, Trial
from tunegym.tuning.model.values import Action, Context

MIXED: dict[str, Any] = {
    "size": Range(1, 1024, "int", log=True),
    "ratio": Range(0.0, 1.0),
    "mode": Choice(("slow", "fast", "odd")),
    "flag": Choice((True, False)),
    "depth": Choice((1, 2, 4, 8)),
    "idle": Range(0.0, 1.0),
}
LIVE = ("size", "mode")


def mixed(action: Action, context: Context) -> float:
    """The mode and the size matter, alike at both loads."""
    cost = {"slow": 2.0, "fast": 1.0, "odd": 1.6}[str(action["mode"])] * float(action["size"]) ** 0.1
    return cost * {"low": 1.0, "high": 300.0}.get(str(context.get("load")), 1.0)


def importance(simulation: Simulation, trials: list[Trial] | None = None) -> Importance:
    observations = Observations(simulation.question, simulation.trials if trials is None else trials)
    return importance_of(Surrogate(observations))


def drawn(cost: Cost, count: int, noise: float = 0.05, seed: int = 0, **more: Any) -> Simulation:
    """Random settings, measured once each."""
    simulation = Simulation(cost, noise, seed, **{"knobs": MIXED, "baseline": None, **more})
    for number in range(1, count + 1):
        context = simulation.params.context(number)
        simulation.measure(simulation.drawn(context, number), context, SEARCH)
    return simulation


def by_knob(found: Importance) -> dict[str, float]:
    return {share.names[0]: share.share for share in found.knobs}


def test_what_does_nothing_has_no_share_and_what_matters_comes_first() -> None:
    """At 5 to 25 % noise, in one context and in two, after a search that moved all knobs together."""
    idle: list[float] = []
    first: list[str] = []
    for seed in range(6):
        params = loads("low", "high") if seed % 2 else loads()
        simulation = Simulation(mixed, (0.05, 0.15, 0.25)[seed % 3], seed, MIXED, params=params, baseline=None)
        found = importance(simulation.search(60))
        shares = by_knob(found)
        assert all(share.low <= share.share <= share.high for share in found.knobs)
        assert [share.share for share in found.knobs] == sorted(shares.values(), reverse=True)
        idle += [share for name, share in shares.items() if name not in LIVE]
        first.append(found.knobs[0].names[0])
    assert np.mean(np.array(idle) < 0.02) >= 0.9
    assert set(first) <= set(LIVE)


def test_shares_are_those_of_the_spread_within_contexts() -> None:
    """How much slower one context is doesn't matter; a share lies in its interval."""
    for params in (loads(), loads("low", "high")):
        found = importance(drawn(mixed, 120, params=params))
        shares = by_knob(found)
        assert 0.9 < shares["mode"] + shares["size"] <= 1.0 + 1e-9
        assert max(share for name, share in shares.items() if name not in LIVE) < 0.02
        assert not any("idle" in pair.names for pair in found.pairs)


def test_a_pair_is_what_two_knobs_do_beyond_each() -> None:
    def together(action: Action, context: Context) -> float:
        works = action["flag"] and action["mode"] == "fast"
        return 1.0 if works else 3.0

    found = importance(drawn(together, 150))
    assert found.pairs[0].names in (("flag", "mode"), ("mode", "flag"))
    assert found.pairs[0].share > 0.1
    assert all(pair.share < 0.02 for pair in importance(drawn(mixed, 150)).pairs)


def test_values_that_are_no_ratios_have_shares_too() -> None:
    """The mode moves a metric around zero."""
    judged = Judged("score", "max")
    simulation = drawn(mixed, 100, metrics=lambda value: {"score": 2.0 - value}, judged=judged)
    assert by_knob(importance(simulation))["mode"] > 0.5


@pytest.mark.parametrize(
    ("knob", "fails", "value"),
    [("depth", lambda depth: depth == 4, "4"), ("idle", lambda idle: idle >= 0.75, "0.75 to 1")],
)
def test_a_value_that_always_fails_is_named(knob: str, fails: Any, value: str) -> None:
    """Whether or not the others fail now and then; how they fail is counted."""
    simulation = drawn(mixed, 80)
    trials = [
        replace(trial, outcome=TimedOut()) if fails(trial.action[knob]) or trial.number % 20 == 0 else trial
        for trial in simulation.trials
    ]
    (failing,) = importance(simulation, trials).failures
    assert (failing.name, failing.value) == (knob, value)
    expected = sum(fails(trial.action[knob]) for trial in trials)
    assert (failing.failed, failing.trials, failing.kinds) == (expected, expected, {"timed_out": expected})


def test_failures_by_chance_are_no_value_s() -> None:
    named = 0
    for seed in range(20):
        simulation = drawn(mixed, 80, seed=seed)
        draw = np.random.default_rng(seed)
        trials = [replace(trial, outcome=TimedOut()) if draw.random() < 0.2 else trial for trial in simulation.trials]
        named += bool(importance(simulation, trials).failures)
    assert named <= 1


def test_too_few_measurements_say_nothing() -> None:
    assert importance_of(None) == Importance()
    few = importance(drawn(mixed, 5))
    assert (few.measured, few.knobs, few.pairs) == (5, (), ())


def test_one_value_for_all_settings_has_no_shares() -> None:
    found = importance(drawn(lambda action, context: 7.0, 30, noise=0.0))
    assert set(by_knob(found).values()) == {0.0}
    assert not found.pairs


def test_the_same_trials_give_the_same_plain_data() -> None:
    simulation = drawn(mixed, 40)
    plain = msgspec.to_builtins(importance(simulation))
    assert plain == msgspec.to_builtins(importance(simulation))
    assert plain["knobs"][0].keys() == {"names", "share", "low", "high"}
