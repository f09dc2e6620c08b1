"""One version's update: plain PPO on fresh rollouts, and the same however they are spread over ranks."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tunegym import dataplane
from tunegym.asyncrl.agents import LiveAsyncPpoConfig
from tunegym.asyncrl.async_ppo import FIELDS, PARTITION, TASK, AsyncLearner, Update, read_batch
from tunegym.asyncrl.policy import ActorCritic
from tunegym.asyncrl.ranks import Ranks

POLICY = ActorCritic.for_space(3, spaces.Discrete(4), (8,))
CONFIG = LiveAsyncPpoConfig(minibatch=16, n_epochs=3, ent_coef=0.01)


def first_state(seed: int = 0) -> dict[str, Any]:
    weights = POLICY.first_weights(np.random.default_rng(seed))
    return {"vectors": np.stack([weights, 0 * weights, 0 * weights]), "steps": 0}


def filled(plane: dataplane.DataPlaneClient, lengths: list[int]) -> dataplane.BatchMeta:
    """Rollouts of these lengths, claimed."""
    rng = np.random.default_rng(7)
    plane.register_partition(PARTITION, FIELDS, [TASK])
    for at, length in enumerate(lengths):
        row = {
            "observation": rng.normal(size=(length + 1, 3)).astype(np.float32),
            "action": rng.integers(0, 4, size=(length, 1)),
            "log_prob": rng.normal(-1.4, 0.5, size=length).astype(np.float32),
            "reward": rng.normal(size=length).astype(np.float32),
            "number": np.arange(length),
        }
        tags = {"weight_version": 0, "terminated": bool(at % 2)}
        columns = {name: [one] for name, one in row.items()}
        plane.put_samples(PARTITION, [f"s{at}"], columns, tags, lengths=[length])
    return plane.claim_meta(PARTITION, TASK, FIELDS, len(lengths))


def update(ranks: Ranks, batch: dataplane.BatchMeta) -> tuple[np.ndarray, dict[str, float]]:
    """The weights of version 1, and what the update said."""
    ranks.state = first_state()
    try:
        values = ranks.run(batch, None, 1, 1e-2)
    finally:
        ranks.close()
    return ranks.state["vectors"][0], values


class Sum:
    """Sums over threads, as gloo does over processes."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world)
        self._given: dict[int, torch.Tensor] = {}

    def over(self, rank: int) -> Any:
        def reduce(tensor: torch.Tensor) -> None:
            self._given[rank] = tensor.clone()
            self._barrier.wait()
            total = torch.stack([self._given[one] for one in sorted(self._given)]).sum(0)
            self._barrier.wait()
            tensor.copy_(total)

        return reduce


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [1, 40, 3, 2, 17], [9, 1, 1]], ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_make_the_same_update(lengths: list[int], world: int) -> None:
    url = f"memory://update-{world}-{len(lengths)}-{lengths[0]}"
    with dataplane.connect(url) as plane:
        batch = filled(plane, lengths)
        expected, told = update(Ranks(POLICY, CONFIG, 5, {"url": url}), batch)
        shards, _ = dataplane.shard_meta_for_dp(batch, world)
        offsets = dict(zip(batch.sample_ids, np.cumsum([0, *lengths]).tolist(), strict=False))
        together, found = Sum(world), {}

        def rank(at: int) -> None:
            own_update = Update(POLICY, CONFIG, 5, together.over(at))
            own_update.restore(first_state())
            meta = shards[at].meta
            places = [offsets[one] for one in meta.sample_ids]
            values = own_update.run(read_batch(plane, meta, places), sum(lengths), 1, 1e-2)
            found[at] = own_update.state()["vectors"][0], values

        threads = [threading.Thread(target=rank, args=(at,)) for at in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not np.allclose(expected, first_state()["vectors"][0], atol=1e-3)
    for weights, values in found.values():
        np.testing.assert_allclose(weights, expected, atol=2e-5)
        assert values == pytest.approx(told, rel=1e-3, abs=1e-4)


def test_fresh_rollouts_are_plain_ppo() -> None:
    """Advantages are GAE, and nothing is weighted."""
    config = SimpleNamespace(**{**vars(CONFIG), "gamma": 0.9, "gae_lambda": 0.7})
    one = Update(POLICY, config, 0)
    one.restore(first_state())
    with dataplane.connect("memory://fresh") as plane:
        batch = read_batch(plane, filled(plane, [3, 2]), [0, 3])
    weights = first_state()["vectors"][0]
    observations, rewards = batch["observation"].numpy(), batch["reward"].numpy()
    for row, length in enumerate(batch["length"].tolist()):
        chosen = batch["action"][row, :length].numpy()
        log_prob, _ = POLICY.judged(weights, observations[row, :length], chosen)
        batch["log_prob"][row, :length] = torch.tensor(log_prob)
    rows = one._rows(batch)
    np.testing.assert_allclose(rows["weight"], np.ones(5), atol=1e-5)
    expected = []
    for row, length in enumerate(batch["length"].tolist()):
        values = POLICY.values(weights, observations[row])
        if batch["terminated"][row]:
            values[length] = 0.0
        gae, own = 0.0, []
        for at in reversed(range(length)):
            gae = rewards[row, at] + 0.9 * values[at + 1] - values[at] + 0.9 * 0.7 * gae
            own.insert(0, gae)
        expected += own
    np.testing.assert_allclose(rows["advantage"], expected, atol=1e-4)


def test_a_checkpoint_of_another_network_is_refused() -> None:
    learner = AsyncLearner(CONFIG, 0, 3, spaces.Discrete(4))
    again = AsyncLearner(CONFIG, 1, 3, spaces.Discrete(4))
    again.restore(learner.state())
    np.testing.assert_array_equal(again.weights, learner.weights)
    with pytest.raises(ValueError, match="weights for a network"):
        AsyncLearner(CONFIG, 0, 4, spaces.Discrete(4)).restore(learner.state())


@pytest.mark.slow
def test_rank_processes_survive_the_death_of_one(tmp_path: Path) -> None:
    url = f"mmap://{tmp_path}/plane"
    config = LiveAsyncPpoConfig(minibatch=16, n_epochs=3, ent_coef=0.01, dp_world=2)
    with dataplane.connect(url) as plane:
        batch = filled(plane, [1, 40, 3, 2, 17])
        expected, told = update(Ranks(POLICY, CONFIG, 5, {"url": url}), batch)
        ranks = Ranks(POLICY, config, 5, {"url": url})
        ranks.state = first_state()
        try:
            assert ranks.run(batch, None, 1, 1e-2) == pytest.approx(told, rel=1e-3, abs=1e-4)
            np.testing.assert_allclose(ranks.state["vectors"][0], expected, atol=2e-5)
            ranks._ranks[1][0].kill()
            ranks.state = first_state()  # where they are started again
            ranks.run(batch, None, 1, 1e-2)
            assert ranks.restarts == 1
            np.testing.assert_allclose(ranks.state["vectors"][0], expected, atol=2e-5)
        finally:
            ranks.close()
