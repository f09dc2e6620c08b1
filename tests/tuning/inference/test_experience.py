"""Closed trials as learners see them: rewards whatever the unit, outliers that hide nothing, settings that work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tunegym.tuning.inference.experience import LOWEST, Experience
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.model.scenario import Judged
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Range, Space
from tunegym.tuning.model.trial import Failed, Measured, Pruned, Trial
from tunegym.tuning.model.values import Context

SPACE = Space({"x": Range(0, 10_000, "int")})
LOADS = EnvParams({"load": EnvParam(Choice((0, 1)))})
USUAL = [float(reward) for reward in np.random.default_rng(1).normal(10.0, 2.0, 40)]


def closed(number: int, reward: float | None, setting: int | None = None, context: Context | None = None) -> Trial:
    """A trial of a setting of its own; None failed, with the worst penalty that there is."""
    action = {"x": number if setting is None else setting}
    outcome = Failed() if reward is None else Measured(({"m": 1.0},))
    return Trial(number, context or {}, action, outcome, -1e15 if reward is None else reward, 0.1)


def experience_of(trials: list[Trial], params: EnvParams | None = None) -> Experience:
    experience = Experience(Question(SPACE, params or EnvParams({}), Judged("m", "max")))
    for trial in trials:
        experience.add(trial)
    return experience


def scaled(rewards: Sequence[float | None]) -> np.ndarray:
    return experience_of([closed(number, reward) for number, reward in enumerate(rewards, 1)]).rewards()


@pytest.mark.parametrize(("offset", "factor"), [(1e6, 1.0), (-1e6, 1e3), (0.0, 1e-9), (1e3, 1e-3), (0.0, 1e100)])
def test_neither_offset_nor_unit_matters(offset: float, factor: float) -> None:
    np.testing.assert_allclose(scaled([offset + factor * reward for reward in USUAL]), scaled(USUAL), atol=2e-3)


@pytest.mark.parametrize("outlier", [-1e4, -1e7, -1e100])
@pytest.mark.parametrize("share", [0.02, 0.15, 0.3, 0.4])
def test_slow_settings_hide_nothing(outlier: float, share: float) -> None:
    """The better half keeps its order and its spread, however bad the others are."""
    count = max(int(len(USUAL) * share / (1.0 - share)), 1)
    seen = scaled([*USUAL, *[outlier] * count])
    assert np.ptp(seen[: len(USUAL)]) > 0.3 * np.ptp(scaled(USUAL))
    assert np.array_equal(np.argsort(seen[: len(USUAL)]), np.argsort(USUAL))
    assert LOWEST <= seen[-1] < seen[: len(USUAL)].min()


def test_a_failure_is_below_everything_whatever_its_penalty() -> None:
    seen = scaled([*USUAL, None, None])
    assert LOWEST - 1.0 <= seen[-1] == seen[-2] == pytest.approx(seen[:-2].min() - 1.0)
    np.testing.assert_allclose(seen[:-2], scaled(USUAL))
    assert scaled([None, None]).tolist() == [-1.0, -1.0]


def test_equal_rewards_are_equally_good() -> None:
    assert scaled([*[7.0] * 20, None]).tolist() == [0.0] * 20 + [-1.0]


def test_a_pruned_trial_is_as_bad_as_the_worst() -> None:
    trials = [closed(number, reward) for number, reward in enumerate([*USUAL, None, None], 1)]
    *seen, pruned, failed = experience_of([*trials[:-2], replace(trials[-2], outcome=Pruned()), trials[-1]]).rewards()
    assert (pruned, failed) == pytest.approx((min(seen), min(seen) - 1.0))


def test_contexts_have_their_own_scales() -> None:
    """Best in a poor context counts as much as best in a rich one."""
    trials = [
        closed(2 * place + load, 1e6 * load + 1e3**load * reward, place, {"load": load})
        for place, reward in enumerate(USUAL)
        for load in (0, 1)
    ]
    seen = experience_of(trials, LOADS).rewards()
    np.testing.assert_allclose(seen[0::2], seen[1::2], atol=1e-6)


def test_along_a_range_a_context_that_costs_more_is_no_worse_setting() -> None:
    """Contexts hardly come again, and rewards fall along the range."""
    params = EnvParams({"load": EnvParam(Range(0.0, 1.0))}, seed=2)
    contexts = [params.context(number) for number in range(1, 201)]
    trials = [
        closed(number, number % 4 - 50.0 * float(context["load"]), context=context)
        for number, context in enumerate(contexts, 1)
    ]
    seen = experience_of(trials, params).rewards()
    levels = [np.median(seen[level - 1 :: 4]) for level in (4, 1, 2, 3)]
    assert np.all(np.diff(levels) > 0.3)


def test_a_setting_weighs_once() -> None:
    """Repeating the best one, or serving it from the cache, doesn't shrink the differences between the others."""
    trials = [closed(number, reward) for number, reward in enumerate(USUAL, 1)]
    best = int(np.argmax(USUAL)) + 1
    again = [replace(closed(100 + place, max(USUAL), best), cached_from=best) for place in range(200)]
    seen = experience_of([*trials, *again]).rewards()
    np.testing.assert_allclose(seen[: len(USUAL)], scaled(USUAL))
    assert set(seen[len(USUAL) :]) == {seen.max()}


def test_working_settings_were_measured_and_did_not_fail_more_often_than_not() -> None:
    rows = [(1, 1, 0.0), (0, 1, None), (1, 2, None), (0, 1, None), (1, 3, 0.0), (1, 3, None), (0, 4, 0.0)]
    trials = [closed(number, reward, x, {"load": load}) for number, (load, x, reward) in enumerate(rows, 1)]
    trials.append(replace(closed(8, None, 3, {"load": 1}), outcome=Pruned()))
    experience = experience_of(trials, LOADS)
    working = {
        load: {experience.observations.actions[setting]["x"] for setting in experience.working({"load": load})}
        for load in (0, 1)
    }
    assert working == {0: {3, 4}, 1: {1, 3, 4}}
