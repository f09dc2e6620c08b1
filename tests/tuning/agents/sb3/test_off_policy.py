"""DQN and SAC without their loop: what is remembered, and what it is learned as."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

Make = Callable[..., Any]


def remembered(learner: Any) -> dict[float, float]:
    """The rewards in the replay buffer by the first number that was seen, which tells trials apart."""
    buffer = learner.model.replay_buffer
    count = buffer.size()
    return {float(buffer.observations[at, 0, 0]): float(buffer.rewards[at, 0]) for at in range(count)}


@pytest.mark.parametrize("agent", ["dqn", "sac"])
@pytest.mark.parametrize("size", [7, 10, 100])
def test_rewards_follow_their_trials_through_a_buffer_that_wraps(
    agent: str, size: int, learner: Make, step: Make
) -> None:
    """Rewards are scaled anew at each update, by all that is known then, also those that were forgotten."""
    ours = learner(agent, buffer_size=size, learning_starts=0, train_freq=1, batch_size=4)
    steps = []
    for number in range(1, 25):
        # A larger spread, and failures, later on: the scale moves, and what is remembered must move with it.
        reward = None if number % 5 == 0 else float(number**2)
        steps.append(step(ours, number, reward, terminated=True))
        ours.take(steps[-1])
        if number % 6 == 0:
            ours.train(number)
            scaled = ours.scale.scaled()
            expected = {float(one.seen[0]): np.float32(scaled[one.index]) for one in steps[-size:]}
            assert remembered(ours) == pytest.approx(expected)


@pytest.mark.parametrize(("batch", "drawn"), [(4, 4), (256, 256), (1_000_000, 256)])
def test_no_more_is_drawn_than_there_is(
    batch: int, drawn: int, learner: Make, step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = learner("dqn", learning_starts=0, train_freq=1, gradient_steps=2, batch_size=batch)
    for number in range(1, 6):
        ours.take(step(ours, number, float(number), terminated=True))
    buffer, sizes = ours.model.replay_buffer, []
    sample = buffer.sample
    monkeypatch.setattr(buffer, "sample", lambda size, **more: (sizes.append(size), sample(size, **more))[1])
    ours.train(5)
    assert sizes == [drawn] * 2


def test_what_was_cut_off_has_a_next_state_and_what_ended_has_none(learner: Make, step: Make) -> None:
    ours = learner("dqn", gamma=0.9, learning_starts=0)
    kinds = [{"terminated": True}, {"truncated": True}, {}]
    for number, kind in enumerate(kinds, 1):
        ours.take(step(ours, number, float(number), **kind))
    buffer = ours.model.replay_buffer
    samples = buffer._get_samples(np.arange(3))
    assert samples.dones.flatten().tolist() == [1.0, 0.0, 0.0]
    assert samples.rewards.shape == samples.dones.shape == samples.actions.shape == (3, 1)
    assert samples.observations.shape == samples.next_observations.shape == (3, 3)


def test_the_target_network_follows_now_and_then(learner: Make, step: Make) -> None:
    import torch

    ours = learner("dqn", learning_starts=0, train_freq=1, target_update=10, gamma=0.5)

    def away() -> float:
        pairs = zip(ours.model.q_net.parameters(), ours.model.q_net_target.parameters(), strict=True)
        return float(sum((one - other).abs().sum() for one, other in pairs).detach())

    behind = []
    for number in range(1, 31):
        ours.take(step(ours, number, float(number % 3), terminated=True))
        ours.train(number)
        behind.append(away() > 0)
    assert [number for number, one in enumerate(behind, 1) if not one] == [10, 20, 30]

    resumed = learner("dqn", learning_starts=0, train_freq=1, target_update=10, gamma=0.5)
    ours.take(step(ours, 31, 1.0))
    ours.train(31)
    resumed.restore(ours.parameters())
    for name in ("q_net", "q_net_target"):
        for one, other in zip(
            getattr(resumed.model, name).parameters(), getattr(ours.model, name).parameters(), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.parametrize("agent", ["dqn", "sac"])
def test_a_restored_one_trains_on_as_the_other_does(agent: str, learner: Make, step: Make) -> None:
    """Optimisers and all: the same trials give the same network."""
    ours, other = (learner(agent, learning_starts=0, batch_size=8) for _ in range(2))
    for number in range(1, 20):
        for one in (ours, other):
            one.take(step(one, number, float(number % 4), terminated=True))
    ours.train(19)
    other.restore(copy.deepcopy(ours.parameters()))
    for one in (ours, other):
        one.train(20)
    seen = np.ones(3, dtype=np.float32)
    elements = np.arange(5) if agent == "dqn" else np.zeros((1, 2), dtype=np.float32)
    np.testing.assert_array_equal(ours.preference(seen, elements), other.preference(seen, elements))
    np.testing.assert_array_equal(ours.greedy(seen)[0], other.greedy(seen)[0])


def test_it_is_due_once_there_is_enough(learner: Make, step: Make) -> None:
    ours = learner("dqn", learning_starts=5, train_freq=3)
    due = []
    for number in range(1, 13):
        ours.take(step(ours, number, 1.0, terminated=True))
        if ours.due():
            due.append(number)
            ours.train(number)
    assert due == [6, 9, 12]
    few = learner("dqn", learning_starts=5)
    few.take(step(few, 1, 1.0))
    assert few.train(1, last=True) == {}
    assert not few.trained


def test_exploring_fades_and_old_trials_count(learner: Make, step: Make) -> None:
    ours = learner("dqn", trials=100, exploration_fraction=0.5, exploration_final=0.1)
    assert ours.epsilon(1) > 0.95
    assert ours.epsilon(25) == pytest.approx(0.55)
    assert ours.epsilon(50) == ours.epsilon(1000) == pytest.approx(0.1)
    warm = learner("dqn", trials=100, exploration_fraction=0.5, exploration_final=0.1)
    warm.warm([step(warm, number, float(number), terminated=True) for number in range(1, 26)])
    assert warm.epsilon(25) == pytest.approx(0.1)
    assert warm.model.replay_buffer.size() == 25


def test_without_a_number_of_trials_it_still_explores_less_and_less(learner: Make) -> None:
    ours = learner("dqn", trials=None)
    assert 0.9 > ours.epsilon(200) > ours.epsilon(800) == pytest.approx(0.05)


@pytest.mark.parametrize("agent", ["dqn", "sac"])
def test_a_draw_belongs_to_its_number(agent: str, learner: Make, step: Make) -> None:
    ours, again, other = learner(agent, seed=4), learner(agent, seed=4), learner(agent, seed=5)
    seen = np.array([0.5, -0.5, 1.0], dtype=np.float32)
    numbers = range(1, 61)  # random ones first, then the policy's own
    drawn = [ours.act(seen, number).chosen.tolist() for number in numbers]
    assert drawn == [again.act(seen, number).chosen.tolist() for number in numbers]
    assert drawn != [other.act(seen, number).chosen.tolist() for number in numbers]
    assert all(ours.model.action_space.contains(ours.act(seen, number).chosen) for number in numbers)
