"""The algorithms without their loop: what an update is made of, and what is remembered."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

Make = Callable[..., Any]


def advantages(learner: Any, steps: Sequence[Any], rewards: np.ndarray) -> np.ndarray:
    return learner._rollout(steps, rewards).advantages[:, 0]


def by_the_library(learner: Any, steps: Sequence[Any], rewards: np.ndarray, gae_lambda: float) -> np.ndarray:
    """Stable-Baselines3's own estimate for one lane, whose loop adds what follows a cut-off to its reward."""
    import torch
    from stable_baselines3.common.buffers import RolloutBuffer

    model = learner.model
    buffer = RolloutBuffer(
        len(steps), model.observation_space, model.action_space, gamma=model.gamma, gae_lambda=gae_lambda
    )
    start = True
    for one, reward in zip(steps, rewards, strict=True):
        with torch.no_grad():
            after = float(model.policy.predict_values(torch.as_tensor(one.after[None])))
        told = reward + (model.gamma * after if one.truncated else 0.0)
        decision = one.decision
        value, log_prob = torch.tensor([[decision.value]]), torch.tensor([decision.log_prob])
        buffer.add(one.seen[None], np.asarray(decision.chosen), np.array([told]), np.array([start]), value, log_prob)
        start = one.truncated or one.terminated
    with torch.no_grad():
        last = model.policy.predict_values(torch.as_tensor(steps[-1].after[None]))
    buffer.compute_returns_and_advantage(last, np.array([start]))
    return buffer.advantages[:, 0]


def episode(learner: Any, step: Make, ends: Sequence[str], lane: int = 0, first: int = 1) -> list[Any]:
    """Trials that follow from each other, of which some end an episode: "cut" or "over"."""
    steps = [
        step(learner, first + at, float(at), lane=lane, truncated=end == "cut", terminated=end == "over")
        for at, end in enumerate(ends)
    ]
    # What a trial is acted on is what its lane saw after the one before, unless that ended an episode.
    for at in range(1, len(steps)):
        if not ends[at - 1]:
            steps[at] = replace(steps[at], seen=steps[at - 1].after)
            steps[at] = replace(steps[at], decision=learner.judge(steps[at].seen, steps[at].decision.chosen))
    return steps


@pytest.mark.parametrize("agent", ["ppo", "a2c"])
@pytest.mark.parametrize(
    "ends",
    [
        ["", "", "cut", "", ""],
        ["", "cut", "", "", "cut"],
        ["over", "over", "over"],
        ["", "over", "", "cut", "", ""],
    ],
    ids=["cut in the middle", "cut at the end", "single", "mixed"],
)
def test_advantages_are_the_librarys(agent: str, ends: list[str], learner: Make, step: Make) -> None:
    ours = learner(agent, gamma=0.9, gae_lambda=0.8)
    steps = episode(ours, step, ends)
    rewards = np.random.default_rng(7).normal(size=len(steps))
    expected = by_the_library(ours, steps, rewards, 0.8)
    np.testing.assert_allclose(advantages(ours, steps, rewards), expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 0.1


def test_lanes_are_apart(learner: Make, step: Make) -> None:
    """However the trials of lanes come in between each other, each lane's are what they would be alone."""
    ours = learner("ppo", gamma=0.9, gae_lambda=0.8)
    first = episode(ours, step, ["", "", "cut", ""], lane=0)
    second = episode(ours, step, ["cut", "", ""], lane=1, first=50)
    rewards = np.random.default_rng(3).normal(size=7)
    order = [0, 4, 1, 2, 5, 6, 3]
    mixed = advantages(ours, [[*first, *second][at] for at in order], rewards[order])
    alone = [*by_the_library(ours, first, rewards[:4], 0.8), *by_the_library(ours, second, rewards[4:], 0.8)]
    np.testing.assert_allclose(mixed, np.array(alone)[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("agent", ["ppo", "a2c"])
def test_an_update_is_due_after_n_steps_and_forgets_them(agent: str, learner: Make, step: Make) -> None:
    ours = learner(agent, n_steps=6)
    for number in range(1, 7):
        assert not ours.due()
        ours.take(step(ours, number, float(number), terminated=True))
    assert ours.due()
    told = ours.train(6)
    assert "train/value_loss" in told
    assert "rollout/reward" in told
    assert not ours.due()
    assert ours.train(6, last=True) == {}


@pytest.mark.parametrize("agent", ["ppo", "a2c"])
def test_a_draw_belongs_to_its_number_and_follows_the_chances(agent: str, learner: Make) -> None:
    ours = learner(agent, seed=4)
    seen = np.array([0.5, -0.5, 1.0], dtype=np.float32)
    first = [ours.act(seen, number) for number in range(1, 801)]
    again = learner(agent, seed=4)
    assert [one.chosen.tolist() for one in first[:20]] == [again.act(seen, n).chosen.tolist() for n in range(1, 21)]
    other = learner(agent, seed=5)
    assert [one.chosen.tolist() for one in first[:20]] != [other.act(seen, n).chosen.tolist() for n in range(1, 21)]
    for chosen in {tuple(np.atleast_1d(one.chosen)) for one in first}:
        element = np.array(chosen) if len(chosen) > 1 else np.int64(chosen[0])
        (chance,) = ours.preference(seen, np.array([element]))
        share = np.mean([tuple(np.atleast_1d(one.chosen)) == chosen for one in first])
        assert share == pytest.approx(chance, abs=0.05)
        assert np.log(chance) == pytest.approx(ours.judge(seen, element).log_prob, abs=1e-5)


def test_pre_training_prefers_what_was_better(learner: Make, step: Make) -> None:
    from tunegym.tuning.agents.sb3.learners import Decision

    ours = learner("a2c")
    rewards = [0.0, 1.0, 5.0, 2.0, 3.0]
    chosen = [number % 5 for number in range(60)]
    decided = [Decision(np.int64(one)) for one in chosen]
    steps = [step(ours, number, rewards[one], decision=decided[number]) for number, one in enumerate(chosen)]
    seen = np.zeros(3, dtype=np.float32)
    ours.pretrain([replace(one, seen=seen) for one in steps])
    assert ours.trained
    assert ours.preference(seen, np.arange(5)).argmax() == 2


# off-policy ---


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

    from tunegym.tuning.agents.sb3.algorithms import state_of

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
    resumed.restore(state_of(ours.model))
    for name in ("q_net", "q_net_target"):
        for one, other in zip(
            getattr(resumed.model, name).parameters(), getattr(ours.model, name).parameters(), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.parametrize("agent", ["dqn", "sac"])
def test_a_restored_one_trains_on_as_the_other_does(agent: str, learner: Make, step: Make) -> None:
    """Optimisers and all: the same trials give the same network."""
    from tunegym.tuning.agents.sb3.algorithms import state_of

    ours, other = (learner(agent, learning_starts=0, batch_size=8) for _ in range(2))
    for number in range(1, 20):
        for one in (ours, other):
            one.take(step(one, number, float(number % 4), terminated=True))
    ours.train(19)
    other.restore(copy.deepcopy(state_of(ours.model)))
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
    warm.warm_up([step(warm, number, float(number), terminated=True) for number in range(1, 26)])
    assert warm.epsilon(25) == pytest.approx(0.1)
    assert warm.model.replay_buffer.size() == 25


@pytest.mark.parametrize("agent", ["dqn", "sac"])
def test_a_draw_belongs_to_its_number(agent: str, learner: Make, step: Make) -> None:
    ours, again, other = learner(agent, seed=4), learner(agent, seed=4), learner(agent, seed=5)
    seen = np.array([0.5, -0.5, 1.0], dtype=np.float32)
    numbers = range(1, 61)  # random ones first, then the policy's own
    drawn = [ours.act(seen, number).chosen.tolist() for number in numbers]
    assert drawn == [again.act(seen, number).chosen.tolist() for number in numbers]
    assert drawn != [other.act(seen, number).chosen.tolist() for number in numbers]
    assert all(ours.model.action_space.contains(ours.act(seen, number).chosen) for number in numbers)
