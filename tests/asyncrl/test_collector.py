"""Collectors: what a rollout carries, who writes its version, and that they stop rather than produce for nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tunegym import dataplane
from tunegym.asyncrl.admission import Gate
from tunegym.asyncrl.collector import FIELDS, FlatEnv, RolloutCollector
from tunegym.asyncrl.policy import ActorCritic
from tunegym.asyncrl.weights import WeightPublisher, fetch
from tunegym.dataplane import StalenessPolicy
from tunegym.dataplane.errors import SampleError

POLICY = ActorCritic(4, (2,), 0, (8,))
WEIGHTS = POLICY.first_weights(np.random.default_rng(0))


def pole() -> FlatEnv:
    return FlatEnv(gymnasium.make("CartPole-v1"))


def test_what_a_rollout_carries() -> None:
    with dataplane.connect("memory://carries") as plane:
        plane.register_partition("rollouts", FIELDS, ["train"])
        collector = RolloutCollector(plane, pole, POLICY, n_steps=5)
        collector.policy_refit(WEIGHTS, 3)
        put = collector.rollout_to_plane("rollouts", ["a", "b"])
        assert put is not None
        found = plane.claim_meta("rollouts", "train", FIELDS, 2)
        columns = dataplane.read_columns(plane, found, FIELDS)
    assert found.sequence_lengths == (5, 5)
    assert columns["observation"].shape == (2, 6, 4)
    np.testing.assert_array_equal(columns["observation"][0, -1], columns["observation"][1, 0])  # one episode goes on
    for row, tags in enumerate(found.tags or ()):
        assert tags["weight_version"] == 3
        assert tags["length"] == 5
        assert tags["return"] == 5.0 * (row + 1)
        assert json.loads(tags["context"]) == {}
        assert {"episode", "produced_at", "terminated"} <= tags.keys()
        log_prob, _ = POLICY.judged(WEIGHTS, columns["observation"][row, :-1], columns["action"][row])
        np.testing.assert_allclose(columns["log_prob"][row], log_prob, atol=1e-5)


def test_a_rollout_of_vanished_weights_is_refused() -> None:
    with dataplane.connect("memory://vanished") as plane:
        plane.register_partition("rollouts", FIELDS, ["train"])
        publisher = WeightPublisher(plane)
        publisher.publish(WEIGHTS, 0)
        rewound = []

        class Rewinds(Gate):
            def start(self, owner: str, sample_ids: Sequence[str], version: int, timeout_s: float | None = None) -> Any:
                found = super().start(owner, sample_ids, version, timeout_s)
                if found[0] and not rewound:
                    rewound.append(plane.rewind("rollouts", "train", 0))
                return found

            def ready(self, sample_ids: Sequence[str]) -> None:
                super().ready(sample_ids)
                self.close()

        collector = RolloutCollector(plane, pole, POLICY, n_steps=5)
        collector.run("rollouts", Rewinds(StalenessPolicy(2, 0)), "a")
        assert plane.stats()["rollouts"]["produced"] == 1  # the first one was refused, the second one made afresh


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_collectors_obey_admission(staleness: int) -> None:
    """Two collectors and a trainer: a batch is always there, and nothing in it is too old."""
    policy = StalenessPolicy(batch_size=4, max_staleness=staleness)
    with dataplane.connect(f"memory://obey-{staleness}") as plane:
        plane.register_partition("rollouts", FIELDS, ["train"], **policy.limits())
        publisher = WeightPublisher(plane)
        publisher.publish(WEIGHTS, 0)
        gate = Gate(policy)
        collectors = [RolloutCollector(plane, pole, POLICY, n_steps=8, seed=seed) for seed in range(2)]
        threads = [
            threading.Thread(target=one.run, args=("rollouts", gate, f"c{at}")) for at, one in enumerate(collectors)
        ]
        for thread in threads:
            thread.start()
        try:
            for version in range(20):
                batch = plane.claim_meta("rollouts", "train", FIELDS, 4, timeout_s=120)
                gate.claimed(batch)
                keep, drop = policy.filter().split(batch, current_weight_version=version)
                assert not drop.size
                plane.ack(keep, version=version + 1)
                publisher.publish(WEIGHTS, version + 1)
                gate.advance(version + 1, keep)
                plane.commit("rollouts", "train", version + 1)
        finally:
            gate.close()
            for thread in threads:
                thread.join(120)
        assert plane.stats()["rollouts"]["produced"] <= 20 * 4 + policy.most_outstanding


def test_only_the_newest_weights_stay() -> None:
    with dataplane.connect("memory://newest") as plane:
        publisher = WeightPublisher(plane, keep=2)
        for version in range(4):
            publisher.publish({"layers": [WEIGHTS + version]}, version)
        np.testing.assert_array_equal(fetch(plane, 3)["layers"][0], WEIGHTS + 3)
        fetch(plane, 2)
        with pytest.raises(SampleError):
            fetch(plane, 1)
        publisher.restore()
        fetch(plane, 2)
        plane.clear_samples("weights", ["v3"])  # as a node does that takes it with it
        publisher.restore()
        np.testing.assert_array_equal(fetch(plane, 3)["layers"][0], WEIGHTS + 3)
        WeightPublisher(plane).publish(WEIGHTS, 1)  # a learner that restarted from an older version
        np.testing.assert_array_equal(fetch(plane, 1), WEIGHTS)


@pytest.mark.slow
@pytest.mark.xdist_group("ray_cluster")  # never beside another Ray
def test_a_collector_as_a_ray_actor(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    url = f"mmap://{tmp_path}/plane"
    with dataplane.connect(url) as plane:
        plane.register_partition("rollouts", FIELDS, ["train"])
        make = lambda: FlatEnv(gymnasium.make("CartPole-v1"))  # noqa: E731 - a worker can't import this module
        ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.2")
        try:
            actor = ray.remote(num_cpus=1)(RolloutCollector).remote(url, make, POLICY, n_steps=6)
            ray.get(actor.policy_refit.remote(WEIGHTS, 2))
            put = ray.get(actor.rollout_to_plane.remote("rollouts", ["r1", "r2"]))
        finally:
            ray.shutdown()
        found = plane.claim_meta("rollouts", "train", FIELDS, 2)
        assert found.sample_ids == put.sample_ids
        assert found.tag("weight_version") == [2, 2]
