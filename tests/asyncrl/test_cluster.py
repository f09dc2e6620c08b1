"""Asynchronous RL through the plane of a Ray cluster: collectors as actors, and a training that loses its storage."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tests.asyncrl.conftest import Change, assert_balanced, experiment_of, log_of, sound
from tests.dataplane.test_cluster import actors, kill_ledger

import tunegym
from tunegym.asyncrl.admission import Gate, RemoteGate
from tunegym.asyncrl.collector import FIELDS, FlatEnv, RolloutCollector
from tunegym.asyncrl.policy import ActorCritic
from tunegym.asyncrl.weights import WeightPublisher
from tunegym.dataplane import StalenessPolicy, connect
from tunegym.testing.dataplane import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
POLICY = ActorCritic(4, (2,), 0, (8,))


def test_collectors_on_other_nodes(ray_connected: str) -> None:
    """They run by themselves, as far as a gate in another actor admits them; the trainer claims what they put."""
    import ray

    staleness = StalenessPolicy(batch_size=4, max_staleness=1)
    make = lambda: FlatEnv(gymnasium.make("CartPole-v1"))  # noqa: E731 - a worker can't import this module
    url = f"tq://actors?address={ray_connected}&num_cpus=0"
    with connect(url, linger_s=0.5, timeout_s=60) as plane:
        plane.register_partition("rollouts", FIELDS, ["train"], **staleness.limits())
        publisher, weights = WeightPublisher(plane), POLICY.first_weights(np.random.default_rng(0))
        publisher.publish(weights, 0)
        gate = RemoteGate(ray.remote(num_cpus=0, max_concurrency=4)(Gate).remote(staleness))
        collector = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(RolloutCollector)
        started = [collector.remote(url, make, POLICY, n_steps=8, seed=seed) for seed in range(2)]
        ends = [one.run.remote("rollouts", gate, f"c{at}") for at, one in enumerate(started)]
        for version in range(5):
            batch = plane.claim_meta("rollouts", "train", FIELDS, 4, timeout_s=PATIENCE_S)
            gate.claimed(batch)
            keep, drop = staleness.filter().split(batch, current_weight_version=version)
            assert (keep.size, drop.size) == (4, 0)
            plane.ack(keep, version=version + 1)
            publisher.publish(weights, version + 1)
            gate.advance(version + 1, keep)
            plane.commit("rollouts", "train", version + 1)
        gate.close()
        ray.get(ends, timeout=PATIENCE_S)
        assert plane.stats()["rollouts"]["produced"] <= 5 * 4 + staleness.most_outstanding
        for one in (*started, gate.actor):
            ray.kill(one)


def test_a_training_outlives_its_storage(tmp_path: Path, reference: Change, ray_connected: str) -> None:
    """A storage unit and the ledger are killed: rollouts are lost, and the training goes on with others."""
    document = reference(agent_steps=6000, batch=8, n_steps=16)
    document["plane"] = {"url": f"tq://train?address={ray_connected}&num_cpus=0", "timeout_s": 120}
    results, over = tmp_path / "results", threading.Event()

    def versions() -> int:
        return max((len(log_of(one.parent)[0]) for one in results.rglob("async.jsonl")), default=0)

    def kill() -> None:
        for after, who in ((3, "unit"), (8, "ledger"), (12, "unit")):
            while versions() < after and not over.wait(0.1):
                pass
            if not over.is_set() and who == "ledger":
                kill_ledger("train")
            elif not over.is_set():
                units = [one["Pid"] for name, one in actors("SimpleStorageUnit").items() if name.startswith("train-")]
                os.kill(units[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert tunegym.run(document, output=results) == 0
    finally:
        over.set()
        killer.join()
    assert sound(results).steps == 6000
    account = assert_balanced(experiment_of(results))
    assert account["dropped"] == {}
