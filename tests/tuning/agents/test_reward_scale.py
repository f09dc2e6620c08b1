"""Rewards as a policy sees them: the same whatever the unit, and no outlier hides what matters."""

from __future__ import annotations

import numpy as np
import pytest

from tunegym.tuning.agents.reward_scale import LOWEST, RewardScale


def scaled(rewards: list[float | None], contexts: list[int] | None = None) -> np.ndarray:
    """What a policy sees of rewards; None failed, with the worst penalty that there is."""
    scale = RewardScale()
    for index, reward in enumerate(rewards):
        context = {} if contexts is None else {"load": contexts[index]}
        scale.add(context, -1e15 if reward is None else reward, measured=reward is not None)
    return scale.scaled()


USUAL = [float(one) for one in np.random.default_rng(1).normal(10.0, 2.0, 40)]


@pytest.mark.parametrize(("offset", "factor"), [(1e9, 1.0), (-1e9, 1e3), (0.0, 1e-9), (1e9, 1e-3), (0.0, 1e200)])
def test_neither_offset_nor_unit_matters(offset: float, factor: float) -> None:
    moved = scaled([offset + factor * reward for reward in USUAL])
    np.testing.assert_allclose(moved, scaled(USUAL), atol=2e-3)


def test_an_outlier_hides_nothing() -> None:
    """A setting that is a million times worse, or better, leaves the others as far apart as they were."""
    alone = scaled(USUAL)
    for outlier in (-1e7, 1e7):
        seen = scaled([*USUAL, outlier])
        assert np.isfinite(seen).all()
        assert np.ptp(seen[:-1]) == pytest.approx(np.ptp(alone), rel=0.25)
        assert (seen[-1] < seen[:-1].min()) if outlier < 0 else (seen[-1] > seen[:-1].max())
        assert abs(seen[-1]) < 60


@pytest.mark.parametrize("outlier", [-1e4, -1e7, -1e300])
@pytest.mark.parametrize("share", [0.15, 0.3, 0.4])
def test_nor_do_many_of_them(outlier: float, share: float) -> None:
    """Also where a part of all settings is a thousand times slower, the others can be told apart."""
    count = int(len(USUAL) * share / (1.0 - share))
    seen = scaled([*USUAL, *[outlier] * count])
    alone = scaled(USUAL)
    assert np.ptp(seen[: len(USUAL)]) > 0.15 * np.ptp(alone)
    assert np.array_equal(np.argsort(seen[: len(USUAL)]), np.argsort(USUAL))
    assert seen[-1] < seen[: len(USUAL)].min()


def test_contexts_with_few_settings_have_their_own_scales_too() -> None:
    """Four settings that are tried again and again, where one context has a thousand times as much to give."""
    scale = RewardScale()
    for turn in range(20):
        for setting in range(4):
            for load in (1, 1000):
                scale.add({"load": load}, load * (10.0 + setting), measured=True, weighs=turn == 0)
    seen = scale.scaled().reshape(20, 4, 2)
    np.testing.assert_allclose(seen[..., 0], seen[..., 1])
    assert np.diff(seen[0, :, 0]).min() > 0.3


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
    assert seen[-1] == seen[-2] < seen[:-2].min()
    assert seen[-1] >= LOWEST - 1.0
    np.testing.assert_allclose(seen[:-2], scaled(USUAL))


def test_a_failure_is_below_everything_in_all_contexts() -> None:
    contexts = [index % 2 for index in range(40)]
    rewards: list[float | None] = [
        reward * (1000.0 if context else 1.0) for reward, context in zip(USUAL, contexts, strict=True)
    ]
    seen = scaled([*rewards, None], [*contexts, 0])
    assert seen[-1] < seen[:-1].min()


def test_when_everything_is_equal_nothing_is_better() -> None:
    assert set(scaled([7.0] * 20)) == {0.0}
    seen = scaled([*[7.0] * 20, None])
    assert seen[-1] < seen[0] == 0.0


def test_contexts_have_their_own_scales() -> None:
    """Best in a poor context counts as much as best in a rich one."""
    contexts = [index % 2 for index in range(80)]
    rewards: list[float | None] = [
        1e6 + 1e3 * USUAL[index // 2] if context else USUAL[index // 2] for index, context in enumerate(contexts)
    ]
    seen = scaled(rewards, contexts)
    np.testing.assert_allclose(seen[0::2], seen[1::2], atol=1e-6)


def test_the_last_ones_are_those_of_all() -> None:
    scale = RewardScale()
    for number, reward in enumerate(USUAL):
        scale.add({"load": number % 3}, reward, measured=number % 5 != 0)
    everything = scale.scaled()
    np.testing.assert_array_equal(scale.scaled(last=7), everything[-7:])
    np.testing.assert_array_equal(scale.scaled(last=1000), everything)
    assert len(scale) == 40


def test_what_was_pruned_is_as_bad_as_the_worst() -> None:
    scale = RewardScale()
    for reward in USUAL:
        scale.add({}, reward, measured=True)
    scale.add({}, -1e15, measured=False, pruned=True)
    scale.add({}, -1e15, measured=False)
    *seen, pruned, failed = scale.scaled()
    assert pruned == pytest.approx(min(seen))
    assert failed == pytest.approx(pruned - 1.0)


def test_it_does_not_matter_when_somebody_asks() -> None:
    asked, alone = RewardScale(), RewardScale()
    draw = np.random.default_rng(4)
    for number, reward in enumerate(draw.normal(size=500).tolist()):
        for scale in (asked, alone):
            scale.add({"load": number % 4}, reward, measured=number % 9 != 0, weighs=number % 3 != 0)
        asked.scaled()
    np.testing.assert_array_equal(asked.scaled(), alone.scaled())
