"""Closed trials as agents see them: rewards whatever the unit, outliers that hide nothing, settings that work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tunegym.tuning.agents.history import LOWEST, TrialHistory
from tunegym.tuning.model.values import exact_key

USUAL = [float(one) for one in np.random.default_rng(1).normal(10.0, 2.0, 40)]


def history_of(rewards: list[float | None], contexts: list[int] | None = None) -> TrialHistory:
    """A setting for each of the rewards; None failed, with the worst penalty that there is."""
    history = TrialHistory()
    for index, reward in enumerate(rewards):
        context = {} if contexts is None else {"load": contexts[index]}
        status = "failed" if reward is None else "measured"
        history.add(context, {"x": index}, -1e15 if reward is None else reward, status)
    return history


def scaled(rewards: list[float | None], contexts: list[int] | None = None) -> np.ndarray:
    return history_of(rewards, contexts).scaled()


@pytest.mark.parametrize(("offset", "factor"), [(1e9, 1.0), (-1e9, 1e3), (0.0, 1e-9), (1e9, 1e-3), (0.0, 1e200)])
def test_neither_offset_nor_unit_matters(offset: float, factor: float) -> None:
    moved = scaled([offset + factor * reward for reward in USUAL])
    np.testing.assert_allclose(moved, scaled(USUAL), atol=2e-3)


@pytest.mark.parametrize("outlier", [-1e7, 1e7])
def test_an_outlier_hides_nothing(outlier: float) -> None:
    alone, seen = scaled(USUAL), scaled([*USUAL, outlier])
    assert np.ptp(seen[:-1]) == pytest.approx(np.ptp(alone), rel=0.25)
    assert (seen[-1] < seen[:-1].min()) if outlier < 0 else (seen[-1] > seen[:-1].max())
    assert abs(seen[-1]) < 60


@pytest.mark.parametrize("outlier", [-1e4, -1e7, -1e300])
@pytest.mark.parametrize("share", [0.15, 0.3, 0.4])
def test_many_slow_settings_hide_nothing(outlier: float, share: float) -> None:
    count = int(len(USUAL) * share / (1.0 - share))
    seen = scaled([*USUAL, *[outlier] * count])
    assert np.ptp(seen[: len(USUAL)]) > 0.15 * np.ptp(scaled(USUAL))
    assert np.array_equal(np.argsort(seen[: len(USUAL)]), np.argsort(USUAL))
    assert seen[-1] < seen[: len(USUAL)].min()


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_of_both_signs_can_be_scaled() -> None:
    largest = float(np.finfo(float).max)
    near = [1.0 + at * 1e-10 for at in range(20)]
    for rewards in ([largest, -largest] * 10, [largest] + [-largest] * 20, [0.0] * 20 + [1e200], [*near, largest]):
        seen = scaled(rewards)
        assert np.isfinite(seen).all()
        assert np.array_equal(seen == seen.max(), np.array(rewards) == max(rewards))


def test_a_failure_is_below_everything_whatever_its_penalty() -> None:
    seen = scaled([*USUAL, None, None])
    assert LOWEST - 1.0 <= seen[-1] == seen[-2] < seen[:-2].min()
    np.testing.assert_allclose(seen[:-2], scaled(USUAL))
    contexts = [index % 2 for index in range(40)]
    rewards: list[float | None] = [reward * 1000.0**load for reward, load in zip(USUAL, contexts, strict=True)]
    seen = scaled([*rewards, None], [*contexts, 0])
    assert seen[-1] < seen[:-1].min()


def test_equal_rewards_are_equally_good() -> None:
    assert set(scaled([7.0] * 20)) == {0.0}
    seen = scaled([*[7.0] * 20, None])
    assert seen[-1] < seen[0] == 0.0


def test_contexts_have_their_own_scales() -> None:
    """Best in a poor context counts as much as best in a rich one, also where a few settings are tried often."""
    contexts = [index % 2 for index in range(80)]
    rewards: list[float | None] = [1e6 * load + 1e3**load * USUAL[at // 2] for at, load in enumerate(contexts)]
    seen = scaled(rewards, contexts)
    np.testing.assert_allclose(seen[0::2], seen[1::2], atol=1e-6)
    history = TrialHistory()
    for _, setting, load in itertools.product(range(20), range(4), (1, 1000)):
        history.add({"load": load}, {"x": setting}, load * (10.0 + setting), "measured")
    seen = history.scaled().reshape(20, 4, 2)
    np.testing.assert_allclose(seen[..., 0], seen[..., 1])
    assert np.diff(seen[0, :, 0]).min() > 0.3


def test_few_trials_in_a_context_are_not_compared_with_those_in_others() -> None:
    """From two in each, on average; where contexts hardly come again there is one scale for all."""
    poor_then_rich: list[float | None] = [1.0, 2.0, 3.0, 1001.0, 1002.0]
    seen = scaled(poor_then_rich, [0, 0, 0, 1, 1])
    assert seen[2] > 1.0 > 0.0 > seen[3]
    assert np.all(np.diff(scaled(poor_then_rich, [0, 1, 2, 3, 4])) > 0)


def test_a_setting_weighs_once() -> None:
    """Repeating the best one doesn't shrink the differences between the others."""
    once, often = history_of(USUAL), history_of(USUAL)
    for _ in range(1000):
        often.add({}, {"x": int(np.argmax(USUAL))}, max(USUAL), "measured")
    np.testing.assert_allclose(often.scaled()[: len(USUAL)], once.scaled())


def test_a_pruned_trial_is_as_bad_as_the_worst() -> None:
    history = history_of(USUAL)
    history.add({}, {"x": 100}, -1e15, "pruned")
    history.add({}, {"x": 101}, -1e15, "failed")
    *seen, pruned, failed = history.scaled()
    assert (pruned, failed) == pytest.approx((min(seen), min(seen) - 1.0))


def test_asking_changes_nothing() -> None:
    asked, alone = TrialHistory(), TrialHistory()
    for number, reward in enumerate(np.random.default_rng(4).normal(size=500).tolist()):
        for history in (asked, alone):
            status = "failed" if number % 9 == 0 else "measured"
            history.add({"load": number % 4}, {"x": number // 3}, reward, status)
        asked.scaled()
    everything = alone.scaled()
    np.testing.assert_array_equal(asked.scaled(), everything)
    np.testing.assert_array_equal(alone.scaled(last=7), everything[-7:])
    np.testing.assert_array_equal(alone.scaled(last=1000), everything)


def test_balance_counts_measurements_and_failures_by_context() -> None:
    history = TrialHistory()
    for load, x, status in [(1, 1, "measured"), (2, 1, "failed"), (1, 2, "failed"), (1, 1, "pruned"), (2, 1, "failed")]:
        history.add({"load": load}, {"x": x}, 0.0, status)
    found = {(load, x): history.balance({"load": load}, exact_key({"x": x})) for load in (1, 2, 3) for x in (1, 2, 3)}
    never = dict.fromkeys(itertools.product((1, 2, 3), (2, 3)))
    assert found == {(1, 1): 1, (2, 1): -2, (3, 1): 0, **never}
    assert list(history.settings.values()) == [{"x": 1}, {"x": 2}]
