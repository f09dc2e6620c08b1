"""The plane of a Ray cluster: the contract, a flow across nodes, and what is left when processes and nodes die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ray_cluster import ThreeNodes

from tunegym.dataplane import (
    BatchMeta,
    DataPlaneClient,
    StalenessPolicy,
    attach,
    connect,
    kv_first_write,
    read_columns,
    shard_meta_for_dp,
    write_columns,
)
from tunegym.dataplane.errors import LeaseLostError, LostError, NoPlaneError, SampleError, SpecError, StorageError
from tunegym.dataplane.hosts import client
from tunegym.testing.dataplane import PATIENCE_S, Begin, DataPlaneSuite, Join, P, named, put, tokens, until

FRESH = "test_connect_makes_one_plane_and_attach_only_joins"
"""The test that needs a plane of its own."""


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """A ledger on a busy machine may answer late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "GRACE_S", 60.0)
        patch.setattr(client, "ABANDON_S", 60.0)
        yield


@pytest.fixture(scope="module")
def url(ray_connected: str) -> str:
    return f"tq://tests?address={ray_connected}"


@pytest.fixture(scope="module")
def keeper(url: str) -> Iterator[DataPlaneClient]:
    """One plane for all tests: it takes long to start. It ends with its last client, and gives its CPUs back."""
    import ray

    with connect(url, linger_s=0.5, timeout_s=60) as keeper:
        yield keeper
    until(lambda: not ray.util.list_named_actors(all_namespaces=True), "the plane ends")


@pytest.fixture
def plane(keeper: DataPlaneClient, url: str) -> Iterator[DataPlaneClient]:
    """Another client of it, and one partition of two fields and two tasks."""
    _empty(keeper)
    with attach(url, timeout_s=60) as plane:
        plane.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        yield plane


def _empty(keeper: DataPlaneClient) -> None:
    for name in keeper.stats():
        keeper.delete_partition(name)


@pytest.mark.invariant
@pytest.mark.slow
class TestCluster(DataPlaneSuite):
    @pytest.fixture
    def folder(self, request: pytest.FixtureRequest, keeper: DataPlaneClient, url: str) -> Path:
        """Names the plane: an empty one, or one that is not there yet."""
        self.address = url.partition("?")[2]
        _empty(keeper)
        return Path("fresh" if request.node.name == FRESH else "tests")

    def url(self, folder: Path) -> str:
        return f"tq://{folder.name}?{self.address}&num_cpus=0"

    def test_killed_ledger_loses_nothing(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """Leases of living owners, waiting calls and bytes are there afterwards, also for a client without calls."""
        put(plane, named(6), tags={"weight_version": 1})
        other = join(attach, timeout_s=60)
        claimed = plane.claim_meta(P, "train", ["tokens"], 2)
        plane.ack(other.claim_meta(P, "train", ["tokens"], 2), version=2)
        waiting = begin(other.claim_meta, P, "judge", ["reward"], 1, timeout_s=None)
        for _ in range(2):
            kill_ledger("tests")
            until(lambda: other.stats()[P]["waiting"]["claims"] == 1, "the waiting claim is there again")
        assert other.claim_meta(P, "train", ["tokens"], 6, min_batch=1).sample_ids == ("s-4", "s-5")
        read = plane.get_samples(claimed, ["tokens"])["tokens"].to_list()
        assert [row.tolist() for row in read] == [row.tolist() for row in tokens(claimed.sample_ids)]
        plane.ack(claimed)
        with pytest.raises(LeaseLostError):
            plane.ack(claimed)
        plane.put_samples(P, ["s-0"], {"reward": np.ones(1)})
        assert waiting.result(PATIENCE_S).sample_ids == ("s-0",)
        assert plane.stats()[P]["tasks"]["train"]["acked"] == 4


# across nodes -----------------------------------------------------------------------------------------


class Role:
    """A client of a plane in an actor."""

    def __init__(self, url: str) -> None:
        self.plane = attach(url, timeout_s=60)

    def produce(self, ids: list[str], version: int) -> str:
        """Put samples; where this runs."""
        import ray

        tags = {"weight_version": version}
        kv_first_write(self.plane, P, ids, {"tokens": tokens(ids)}, tags=tags)
        return ray.get_runtime_context().get_node_id()

    def produce_many(self, batches: list[list[str]]) -> int:
        """Put batch after batch; how many samples."""
        for ids in batches:
            self.produce(ids, 0)
        return sum(map(len, batches))

    def judge(self, count: int) -> str:
        """Claim, read, write a column back, and ack; where this runs."""
        import ray

        seen = self.plane.claim_meta(P, "judge", ["tokens"], count)
        rewards = [float(len(row)) for row in self.plane.get_samples(seen, ["tokens"])["tokens"]]
        write_columns(self.plane, seen, {"reward": np.array(rewards, dtype=np.float32)})
        self.plane.ack(seen)
        return ray.get_runtime_context().get_node_id()

    def claim(self, count: int) -> int:
        """Claim, and keep; the pid."""
        self.plane.claim_meta(P, "train", ["tokens"], count)
        return os.getpid()


@pytest.fixture
def start(url: str) -> Iterator[Callable[..., Any]]:
    """Start a role on a node, attached to the plane; it is killed at the end."""
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    started: list[Any] = []

    def begin(node: str | None = None, address: str = url) -> Any:
        where = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=False)
        started.append(ray.remote(Role).options(num_cpus=0, scheduling_strategy=where).remote(address))
        return started[-1]

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield begin
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for one in started:
        ray.kill(one)


def test_rollouts_from_node_to_node(plane: DataPlaneClient, start: Callable[..., Any]) -> None:
    """Producer, judge and trainer on three nodes: staleness, shards, columns, write-back, clear and consumption."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    producer, judge = start(nodes[0]), start(nodes[1])
    old, new = named(2), named(6, 2)
    assert ray.get(producer.produce.remote(old, 0)) == nodes[0]
    ray.get(producer.produce.remote(new, 2))
    assert ray.get(judge.judge.remote(8)) == nodes[1]
    batch = plane.claim_meta(P, "train", ["tokens", "reward"], 8)
    keep, drop = StalenessPolicy(batch_size=4, max_staleness=1).filter().split(batch, current_weight_version=2)
    assert sorted(drop.sample_ids) == old
    assert plane.clear_samples(P, drop.sample_ids, "stale") == 2
    shards, inverse = shard_meta_for_dp(keep, 2)
    read = [read_columns(plane, one.meta, ["tokens", "reward"], pad_to=one.pad_to) for one in shards]
    assert {one["reward"].dtype for one in read} == {np.dtype(np.float32)}
    assert np.concatenate([one["tokens"] for one in read])[inverse][:, 0].tolist() == [
        int(i[2:]) for i in keep.sample_ids
    ]
    lengths = [len(row) for row in tokens(keep.sample_ids)]
    assert np.concatenate([one["reward"] for one in read])[inverse].tolist() == lengths
    plane.ack(keep, version=3)
    assert plane.check_consumption_status(P, ["judge", "train"])
    assert plane.commit(P, "train", 3) == 6
    assert plane.stats()[P]["gone"] == {"stale": 2, "consumed": 6}
    assert plane.stats()[P]["bytes"] == 0


# deaths -----------------------------------------------------------------------------------------------


def actors(name: str) -> dict[str, Any]:
    """The living actors of a class by their names, as Ray knows them."""
    from ray._private import state

    known = state.actors().values()
    return {one["Name"]: one for one in known if one["ActorClassName"] == name and one["State"] == "ALIVE"}


def kill_ledger(name: str) -> None:
    """Kill the process of a plane's ledger, and wait for its death."""
    pid = actors("LedgerActor")[f"plane/{name}"]["Pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: actors("LedgerActor").get(f"plane/{name}", {"Pid": 0})["Pid"] != pid, "the ledger is dead")


@pytest.mark.invariant
@pytest.mark.slow
def test_ledger_is_killed_in_the_middle(plane: DataPlaneClient, url: str, start: Callable[..., Any]) -> None:
    """Producers on other nodes go on, and every sample is trained once."""
    import ray

    producers = [start() for _ in range(2)]
    total, trained = 2 * 30 * 4, Counter[str]()
    begun = [
        one.produce_many.remote([named(4, 1000 * at + 4 * number) for number in range(30)])
        for at, one in enumerate(producers)
    ]
    while trained.total() < total:
        batch = plane.claim_meta(P, "train", ["tokens"], 8, min_batch=1, timeout_s=PATIENCE_S)
        read = plane.get_samples(batch, ["tokens"])["tokens"].to_list()
        assert [int(row[0]) for row in read] == [int(one[2:]) for one in batch.sample_ids]
        if trained.total() // 80 < (trained.total() + batch.size) // 80:
            kill_ledger("tests")
        plane.ack(batch, version=1)
        trained.update(batch.sample_ids)
    assert set(trained.values()) == {1}
    assert ray.get(begun) == [120, 120]
    assert plane.commit(P, "train", 1) == total
    found = plane.stats()[P]
    assert (found["produced"], found["tasks"]["train"]["claimed"]) == (total, total)


@pytest.mark.invariant
@pytest.mark.slow
def test_killed_client_gives_back_and_a_stopped_one_does_not(plane: DataPlaneClient, start: Callable[..., Any]) -> None:
    import ray

    put(plane, named(4))
    stopped, killed = start(), start()
    frozen, pid = ray.get([stopped.claim.remote(2), killed.claim.remote(2)])
    os.kill(frozen, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        back = plane.claim_meta(P, "train", ["tokens"], 2, timeout_s=PATIENCE_S)
        assert plane.stats()[P]["tasks"]["train"]["leased"] == 4
        plane.ack(back)
    finally:
        os.kill(frozen, signal.SIGCONT)


@pytest.mark.invariant
@pytest.mark.slow
def test_lost_node(ray_cluster: ThreeNodes, keeper: DataPlaneClient, url: str, start: Callable[..., Any]) -> None:
    """Samples with bytes on it are cleared as lost, and their producer is told. The plane goes on with other nodes."""

    nodes = [ray_cluster.add_node(num_cpus=2) for _ in range(2)]  # all others are taken
    url = url.replace("tests", "fragile")
    try:
        with connect(url, linger_s=0.5, timeout_s=60) as plane, attach(url, timeout_s=60) as producer:
            plane.register_partition(P, ["tokens", "reward"], ["train"])
            home = actors("TransferQueueController")
            (controller,) = [one["Address"]["NodeID"] for name, one in home.items() if name.startswith("fragile-")]
            where = [
                one["Address"]["NodeID"] for name, one in actors("SimpleStorageUnit").items() if "fragile-" in name
            ]
            victim = next(node for node in nodes if node.node_id != controller)
            assert victim.node_id in where
            for one in named(8):
                put(producer, [one], tags={"weight_version": 0})
            plane.ack(plane.claim_meta(P, "train", ["tokens"], 2), version=1)
            held = plane.claim_meta(P, "train", ["tokens"], 2)
            ray_cluster.remove_node(victim)
            nodes.remove(victim)
            until(lambda: plane.stats()[P]["gone"].get("lost", 0) > 0, "the loss is noticed")
            found = plane.stats()[P]
            assert found["gone"] == {"lost": 8 - found["alive"]}
            with pytest.raises(LostError) as told:
                put(producer, named(1, 8), tags={"weight_version": 0})
            assert len(told.value.sample_ids) == found["gone"]["lost"]
            put(producer, named(1, 8), tags={"weight_version": 0})
            there = [one for one in named(9) if one not in told.value.sample_ids]
            assert sorted(held.sample_ids) != sorted(told.value.sample_ids)
            for one in told.value.sample_ids:
                with pytest.raises(SampleError):
                    plane.get_samples(BatchMeta(P, (one,)), ["tokens"])
            assert plane.rewind(P, "train", 0)["orphaned"] == 0  # the lost ones are not given back
            rest = plane.claim_meta(P, "train", ["tokens"], len(there))
            assert sorted(rest.sample_ids) == there
            assert sorted(int(row[0]) for row in plane.get_samples(rest, ["tokens"])["tokens"]) == [
                int(i[2:]) for i in there
            ]
            kill_ledger("fragile")
            for one in named(4, 9):  # also while one of its two units is gone
                put(producer, [one], tags={"weight_version": 0})
            nodes.append(ray_cluster.add_node(num_cpus=2))
            until(
                lambda: len([n for n in actors("SimpleStorageUnit") if "fragile-" in n]) == 2, "another unit is there"
            )
            again = named(6, 13)
            for one in again:
                put(producer, [one], tags={"weight_version": 0})
            assert plane.stats()[P]["produced"] == 8 + 1 + 4 + 6
    finally:
        until(lambda: not [one for one in actors("LedgerActor") if "fragile" in one], "the plane ends")
        for node in nodes:
            ray_cluster.remove_node(node)


@pytest.mark.slow
def test_killed_controller(plane: DataPlaneClient) -> None:
    """All bytes are lost with it, and all producers are told. Then the plane goes on."""
    put(plane, named(4))
    (controller,) = [one for name, one in actors("TransferQueueController").items() if name.startswith("tests-")]
    os.kill(controller["Pid"], signal.SIGKILL)
    until(lambda: plane.stats()[P]["gone"] == {"lost": 4}, "the loss is noticed")
    with pytest.raises(LostError) as told:
        put(plane, named(4, 4))
    assert sorted(told.value.sample_ids) == named(4)
    put(plane, named(4, 4))
    claimed = plane.claim_meta(P, "train", ["tokens"], 4)
    assert plane.get_samples(claimed, ["tokens"])["tokens"].lengths == [len(row) for row in tokens(claimed.sample_ids)]


# refusals ---------------------------------------------------------------------------------------------


def test_settings_that_cant_be(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (
        "tq://x?cpus=1",
        "tq://x?storage_units=two",
        "tq://x?storage_units=0",
        "tq://x?num_cpus=-1",
        "tq://x?journal=j",
    )
    for one in wrong:
        with pytest.raises(SpecError):
            connect(one)
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(NoPlaneError, match="in no Ray cluster"):
        attach("tq://x")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StorageError, match="needs the package ray"):
        connect("tq://x")


@pytest.mark.slow
def test_a_journal_that_is_taken(ray_connected: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=f"the plane 'taken' can't be used: {tmp_path}") as refused:
        connect(f"tq://taken?address={ray_connected}&num_cpus=0&journal={tmp_path}")
    assert refused.value.hint


def test_a_plane_that_does_not_fit(ray_connected: str) -> None:
    with pytest.raises(StorageError, match=r"takes 65 CPUs.* of the cluster's \d+ are free"):
        connect(f"tq://large?address={ray_connected}&storage_units=64")
    with pytest.raises(StorageError, match=r"takes 6 CPUs, 1.5 of a node for each"):  # no node has that many
        connect(f"tq://large?address={ray_connected}&storage_units=3&num_cpus=1.5")
    with pytest.raises(NoPlaneError, match="there is no plane 'large'"):
        attach(f"tq://large?address={ray_connected}")


ALONE = """
import numpy, ray
from tunegym.dataplane import attach, connect
with connect("tq://", linger_s=0.5) as plane:
    plane.register_partition("p", ["x"], ["train"])
    attach("tq://").put_samples("p", ["a"], {"x": numpy.arange(1)})
    print(plane.claim_meta("p", "train", ["x"], 1).sample_ids, plane.durable)
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ray_cluster")  # never beside another Ray
def test_a_cluster_of_its_own(tmp_path: Path) -> None:
    """Without an address one is started, large enough, and ends with the process."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=250)
    assert done.stdout == "('a',) False\n", done.stderr
