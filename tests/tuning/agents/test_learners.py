"""Algorithms without their loop: updates, replay buffers, draws, checkpoints."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.conftest import no_space

from tunegym.tuning.agents.sb3.config import A2cConfig, DqnConfig, PpoConfig, SacConfig
from tunegym.tuning.inference.experience import Experience
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.model.scenario import Judged
from tunegym.tuning.model.space import EnvParams, Range, Space
from tunegym.tuning.model.trial import Failed, Measured, Trial

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

CONFIGS = {"ppo": PpoConfig, "a2c": A2cConfig, "dqn": DqnConfig, "sac": SacConfig}
EACH = pytest.mark.parametrize("agent", CONFIGS)
ON_POLICY = pytest.mark.parametrize("agent", ["ppo", "a2c"])
OFF_POLICY = pytest.mark.parametrize("agent", ["dqn", "sac"])
ACTIONS: dict[str, spaces.Space[Any]] = {
    "ppo": spaces.MultiDiscrete([3, 4]),
    "a2c": spaces.Discrete(5),
    "dqn": spaces.Discrete(5),
    "sac": spaces.Box(-1.0, 1.0, shape=(2,), dtype=np.float32),
}
SEEN = np.array([0.5, -0.5, 1.0], dtype=np.float32)


def build(agent: str, *, seed: int = 0, trials: int = 100, **settings: Any) -> Any:
    """An agent's algorithm over three observed numbers; settings as in ``agent_config``."""
    from tunegym.tuning.agents.sb3.learners import build_learner

    seen = spaces.Box(-10.0, 10.0, shape=(3,), dtype=np.float32)
    experience = Experience(Question(Space({"x": Range(1, 100, "int")}), EnvParams({}), Judged()))
    return build_learner(CONFIGS[agent](**settings), seen, ACTIONS[agent], experience, seed, trials)


def step(learner: Any, number: int, reward: float | None, **more: Any) -> Any:
    """A closed trial of the learner's choice; None failed."""
    from tunegym.tuning.agents.sb3.learners import Step

    seen, after = np.random.default_rng(number).normal(size=(2, 3)).astype(np.float32)
    outcome = Failed() if reward is None else Measured(({},))
    learner.experience.add(Trial(number, {}, {"x": number}, outcome, -1e15 if reward is None else reward, 0.1))
    decision = more.get("decision") or learner.act(seen, number)
    terminated, truncated = more.get("terminated", False), more.get("truncated", False)
    index = len(learner.experience) - 1
    return Step(index, more.get("lane", 0), seen, decision, after, terminated, truncated)


# on-policy --------------------------------------------------------------------------------------------


def advantages(learner: Any, steps: Sequence[Any], rewards: np.ndarray) -> dict[bytes, float]:
    """The advantages in an update's rollout, by observation."""
    buffer = learner._rollout(steps, rewards)
    return {buffer.observations[at, 0].tobytes(): float(buffer.advantages[at, 0]) for at in range(len(steps))}


def by_the_book(learner: Any, steps: Sequence[Any], rewards: np.ndarray) -> dict[bytes, float]:
    """Generalised advantage estimates of one lane, straight from their definition."""
    import torch

    found: dict[bytes, float] = {}
    ahead, gamma, decay = 0.0, learner.model.gamma, learner.model.gamma * learner.model.gae_lambda
    for one, reward in reversed(list(zip(steps, rewards, strict=True))):
        with torch.no_grad():
            after = float(learner.model.policy.predict_values(torch.as_tensor(one.after[None])))
        ahead = 0.0 if one.terminated or one.truncated else ahead
        ahead = reward + (0.0 if one.terminated else gamma * after) - one.decision.value + decay * ahead
        found[one.seen.tobytes()] = ahead
    return found


def episode(learner: Any, ends: Sequence[str], lane: int = 0, first: int = 1) -> list[Any]:
    """Trials that follow from each other, of which some end an episode: "cut" or "over"."""
    steps = [
        step(learner, first + at, float(at), lane=lane, truncated=end == "cut", terminated=end == "over")
        for at, end in enumerate(ends)
    ]
    for at in range(1, len(steps)):
        if not ends[at - 1]:
            steps[at] = replace(steps[at], seen=steps[at - 1].after)
            steps[at] = replace(steps[at], decision=learner.judge(steps[at].seen, steps[at].decision.chosen))
    return steps


@ON_POLICY
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_advantages_are_those_of_each_lane_alone(agent: str, gamma: float) -> None:
    """Whatever the order in which trials of several lanes end, and whether episodes end or are cut off."""
    ours = build(agent, gamma=gamma, gae_lambda=0.8)
    lanes = [["", "", "cut", "", ""], ["", "cut", "", "", "cut"], ["over", "over"], ["", "over", "", "cut", ""]]
    steps = [episode(ours, ends, lane, first=1 + 50 * lane) for lane, ends in enumerate(lanes)]
    rewards = [np.random.default_rng(lane).normal(size=len(ends)) for lane, ends in enumerate(lanes)]
    expected: dict[bytes, float] = {}
    for one, gained in zip(steps, rewards, strict=True):
        expected |= by_the_book(ours, one, gained)
    # Any order in which each lane's trials follow each other.
    turns = np.random.default_rng(9).permutation([lane for lane, ends in enumerate(lanes) for _ in ends])
    queues = [list(zip(one, gained, strict=True)) for one, gained in zip(steps, rewards, strict=True)]
    mixed = [queues[lane].pop(0) for lane in turns]
    found = advantages(ours, [one for one, _ in mixed], np.array([gained for _, gained in mixed]))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@ON_POLICY
def test_an_update_takes_n_steps_and_forgets_them(agent: str) -> None:
    ours = build(agent, n_steps=6)
    for number in range(1, 7):
        assert not ours.due()
        ours.take(step(ours, number, float(number), terminated=True))
    assert ours.due()
    assert {"train/value_loss", "rollout/reward"} <= ours.train(6).keys()
    assert not ours.due()
    assert ours.train(6, last=True) == {}


@ON_POLICY
def test_choices_follow_the_probabilities(agent: str) -> None:
    ours = build(agent, seed=4)
    drawn = [tuple(np.atleast_1d(ours.act(SEEN, number).chosen)) for number in range(1, 801)]
    for chosen in set(drawn):
        element = np.array(chosen) if len(chosen) > 1 else np.int64(chosen[0])
        (chance,) = ours.preference(SEEN, np.array([element]))
        assert drawn.count(chosen) / 800 == pytest.approx(chance, abs=0.05)
        assert np.log(chance) == pytest.approx(ours.judge(SEEN, element).log_prob, abs=1e-5)


def test_pretraining_prefers_better_trials() -> None:
    from tunegym.tuning.agents.sb3.learners import Decision

    ours, rewards = build("a2c"), [0.0, 1.0, 5.0, 2.0, 3.0]
    steps = [step(ours, at, rewards[at % 5], decision=Decision(np.int64(at % 5))) for at in range(60)]
    ours.pretrain([replace(one, seen=SEEN) for one in steps])
    assert ours.trained
    assert ours.preference(SEEN, np.arange(5)).argmax() == 2


# off-policy -------------------------------------------------------------------------------------------


@OFF_POLICY
@pytest.mark.parametrize("size", [7, 10, 100])
def test_rewards_in_the_buffer_follow_the_scale(agent: str, size: int) -> None:
    """Before each update all are scaled by everything known, also by trials that the buffer has dropped."""
    ours = build(agent, buffer_size=size, learning_starts=0, train_freq=1, batch_size=4)
    buffer, steps = ours.model.replay_buffer, []
    for number in range(1, 25):
        steps.append(step(ours, number, None if number % 5 == 0 else float(number**2), terminated=True))
        ours.take(steps[-1])
        if number % 6 == 0:
            ours.train(number)
            scaled = ours.experience.rewards()
            expected = {float(one.seen[0]): np.float32(scaled[one.index]) for one in steps[-size:]}
            rows = range(buffer.size())
            found = {float(buffer.observations[at, 0, 0]): float(buffer.rewards[at, 0]) for at in rows}
            assert found == pytest.approx(expected)


def test_only_an_ended_episode_has_no_next_state() -> None:
    ours = build("dqn", gamma=0.9, learning_starts=0)
    for number, kind in enumerate([{"terminated": True}, {"truncated": True}, {}], 1):
        ours.take(step(ours, number, float(number), **kind))
    samples = ours.model.replay_buffer._get_samples(np.arange(3))
    assert samples.dones.flatten().tolist() == [1.0, 0.0, 0.0]


def test_the_target_network_is_copied_every_target_update_trials() -> None:
    ours = build("dqn", learning_starts=0, train_freq=1, target_update=10, gamma=0.5)
    copied = []
    for number in range(1, 31):
        ours.take(step(ours, number, float(number % 3), terminated=True))
        ours.train(number)
        pairs = zip(ours.model.q_net.parameters(), ours.model.q_net_target.parameters(), strict=True)
        copied += [number] if all(bool((one == other).all()) for one, other in pairs) else []
    assert copied == [10, 20, 30]


def test_updates_begin_after_learning_starts() -> None:
    ours, due = build("dqn", learning_starts=5, train_freq=3), []
    for number in range(1, 13):
        ours.take(step(ours, number, 1.0, terminated=True))
        if ours.due():
            due.append(number)
            ours.train(number)
    assert due == [6, 9, 12]
    few = build("dqn", learning_starts=5)
    few.take(step(few, 1, 1.0))
    assert few.train(1, last=True) == {}
    assert not few.trained


def test_exploration_fades_and_a_warm_start_counts() -> None:
    ours, warm = (build("dqn", trials=100, exploration_fraction=0.5, exploration_final=0.1) for _ in range(2))
    assert [ours.epsilon(number) for number in (25, 50, 1000)] == pytest.approx([0.55, 0.1, 0.1])
    warm.warm_up([step(warm, number, float(number), terminated=True) for number in range(1, 26)])
    assert warm.epsilon(25) == pytest.approx(0.1)


# draws ------------------------------------------------------------------------------------------------


@EACH
def test_a_choice_depends_on_seed_and_number(agent: str) -> None:
    ours, again, other = build(agent, seed=4), build(agent, seed=4), build(agent, seed=5)
    numbers = range(1, 61)  # random ones first, then the policy's
    drawn = [ours.act(SEEN, number).chosen.tolist() for number in numbers]
    assert drawn == [again.act(SEEN, number).chosen.tolist() for number in numbers]
    assert drawn != [other.act(SEEN, number).chosen.tolist() for number in numbers]
    assert all(ours.model.action_space.contains(ours.act(SEEN, number).chosen) for number in numbers)


# checkpoints ------------------------------------------------------------------------------------------


def restored(folder: Path, agent: str, **settings: Any) -> tuple[Any, int]:
    """A fresh learner at the last checkpoint, and the trials that it has seen."""
    from tunegym.tuning.agents.checkpoints import PolicyFiles
    from tunegym.tuning.agents.sb3.learners import Learner

    return PolicyFiles(folder, agent).restored(lambda kind: build(agent, seed=2, **settings), Learner.restore)


@EACH
def test_a_restored_learner_trains_on_as_the_other(agent: str, tmp_path: Path) -> None:
    """Networks, target networks, optimisers and entropy: the same trials give the same network."""
    from tunegym.tuning.agents.checkpoints import PolicyFiles
    from tunegym.tuning.agents.sb3.algorithms import state_of

    settings = {"learning_starts": 0, "batch_size": 8, "gamma": 0.5} if agent in ("dqn", "sac") else {"n_steps": 19}
    ours = build(agent, seed=2, **settings)
    first = [step(ours, number, float(number % 5), terminated=True) for number in range(1, 20)]
    for one in first:
        ours.take(one)
    ours.train(19)
    PolicyFiles(tmp_path, agent).save(type(ours.model.action_space).__name__, ours.state(), 19)
    again, seen = restored(tmp_path, agent, **settings)
    assert (seen, again.trained) == (19, True)
    for one in first if ours.off_policy else []:
        again.take(one)
    later = [step(ours, number, float(number % 3), terminated=True) for number in range(20, 30)]
    again.experience = ours.experience
    for learner in (ours, again):
        for one in later:
            learner.take(one)
        learner.train(30)
    states = [state_of(one.model)["model"]["policy"] for one in (ours, again)]
    assert all(bool((states[0][name] == states[1][name]).all()) for name in states[0])
    assert restored(tmp_path, "ppo" if agent != "ppo" else "a2c")[1] == 0, "another agent's is none"


def test_a_full_disk_is_a_warning_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tunegym.tuning.agents.checkpoints import PolicyFiles

    files, learner = PolicyFiles(tmp_path, "ppo"), build("ppo")
    files.save("Discrete", learner.state(), 7)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        files.save("Discrete", learner.state(), 9)
        learner.save_model(files)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "a checkpoint could not be written: No space left on device" in caplog.text
    assert "the model could not be written: No space left on device" in caplog.text
    assert [file.name for file in (tmp_path / "policy").iterdir()] == ["checkpoint.pt"]
    assert restored(tmp_path, "ppo")[1] == 7
