"""What every data plane must do. Subclass ``DataPlaneSuite``, say where yours is, and let pytest collect it.

A plane that outlives its processes subclasses ``DurablePlaneSuite`` of ``tunegym.testing.durable_planes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.dataplane import (
    BatchMeta,
    DataPlaneClient,
    StalenessFilter,
    Tag,
    attach,
    connect,
    read_columns,
    shard_meta_for_dp,
    write_columns,
)
from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    ClosedError,
    DataPlaneError,
    EndOfStreamError,
    EpochError,
    FieldError,
    FullError,
    LeaseLostError,
    NoPlaneError,
    SampleError,
    SealedError,
    SpecError,
    TagError,
    UnknownPartitionError,
)

P = "rollouts"
PATIENCE_S = 60.0
LINGER_S = 0.5

Join = Callable[..., DataPlaneClient]
Begin = Callable[..., "Future[Any]"]


def named(count: int, first: int = 0) -> list[str]:
    """Some sample ids."""
    return [f"s-{number}" for number in range(first, first + count)]


def tokens(ids: Sequence[str]) -> list[np.ndarray]:
    """Rows that tell whose they are, of different lengths."""
    return [np.full(1 + int(one.rpartition("-")[2]) % 5, int(one.rpartition("-")[2])) for one in ids]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what another thread or process is about to do; fail if it doesn't."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen: {what}"
        time.sleep(0.005)


class DataPlaneSuite:
    """P1 to P15, through the client only.

    Attributes:
        durable: whether the plane says that it outlives its processes.
    """

    durable = False

    def url(self, folder: Path) -> str:
        """A plane of this test's own, which need not exist yet."""
        raise NotImplementedError

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """What a test has for itself."""
        return tmp_path / "plane"

    @pytest.fixture
    def join(self, folder: Path) -> Iterator[Join]:
        """Gives clients; all are closed at the end."""
        clients: list[DataPlaneClient] = []

        def joined(how: Callable[..., DataPlaneClient] = connect, **options: Any) -> DataPlaneClient:
            clients.append(how(self.url(folder), **{"linger_s": LINGER_S, **options}))
            return clients[-1]

        yield joined
        for client in clients:
            client.close()

    @pytest.fixture
    def plane(self, join: Join) -> DataPlaneClient:
        """A client, and a partition of two fields and two tasks."""
        client = join()
        client.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        return client

    @pytest.fixture
    def begin(self, plane: DataPlaneClient) -> Iterator[Begin]:
        """Starts a call in a thread, and returns when the plane says that it waits."""
        with ThreadPoolExecutor(16) as threads:

            def started(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
                before = sum(plane.stats()[P]["waiting"].values())
                future = threads.submit(call, *args, **kwargs)
                until(
                    lambda: future.done() or sum(plane.stats()[P]["waiting"].values()) > before,
                    "a call waits",
                )
                return future

            yield started
            with contextlib.suppress(DataPlaneError):  # whoever still waits need not
                plane.delete_partition(P)
            plane.close()

    # P1: ready ----------------------------------------------------------------------------------------

    def test_a_sample_is_ready_with_every_required_field_and_not_before(self, plane: DataPlaneClient) -> None:
        """A sample is ready with every required field and not before."""
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        with pytest.raises(ClaimTimeoutError, match=r"0 of at least 4 were ready.* 4 lack 'reward'"):
            plane.claim_meta(P, "train", ["tokens", "reward"], 4, timeout_s=0)
        write_columns(plane, plane.put_samples(P, ["s-1", "s-3"], {"reward": np.zeros(2)}), {"reward": np.ones(2)})
        claimed = plane.claim_meta(P, "train", ["tokens", "reward"], 4, min_batch=1)
        assert claimed.sample_ids == ("s-1", "s-3")
        assert plane.get_data(claimed)["reward"].to_list() == [1.0, 1.0]
        assert plane.claim_meta(P, "judge", ["tokens"], 4).size == 4

    # P2: claims ---------------------------------------------------------------------------------------

    def test_no_two_claimers_of_a_task_get_the_same_sample(self, plane: DataPlaneClient, join: Join) -> None:
        """No two claimers of a task get the same sample."""
        ids = named(240)
        plane.put_samples(P, ids, {"tokens": tokens(ids)})
        plane.seal(P)
        clients = [join(attach) for _ in range(4)]

        def consume(client: DataPlaneClient, task: str) -> list[str]:
            mine: list[str] = []
            while True:
                try:
                    claimed = client.claim_meta(P, task, ["tokens"], 7, min_batch=1)
                except EndOfStreamError:
                    return mine
                mine += claimed.sample_ids
                client.ack(claimed)

        with ThreadPoolExecutor(16) as threads:
            for task in ("train", "judge"):
                parts = list(threads.map(lambda client: consume(client, task), [*clients, *clients]))  # noqa: B023
                assert Counter(one for part in parts for one in part) == Counter(ids)
        assert plane.check_consumption_status(P, ["train", "judge"])

    def test_a_group_is_claimed_whole(self, plane: DataPlaneClient) -> None:
        """A group is claimed whole."""
        plane.register_partition("groups", ["tokens"], ["train"], group_size=3)
        ids = named(8)
        plane.put_samples("groups", ids, {"tokens": tokens(ids)}, group_ids=list("aaabbbcc"))
        claimed = plane.claim_meta("groups", "train", ["tokens"], 5, min_batch=1)
        assert claimed.group_ids == tuple("aaa")
        assert plane.claim_meta("groups", "train", ["tokens"], 5, min_batch=1).group_ids == tuple("bbb")
        with pytest.raises(ClaimTimeoutError):
            plane.claim_meta("groups", "train", ["tokens"], 5, min_batch=1, timeout_s=0)
        plane.put_samples("groups", ["s-8"], {"tokens": tokens(["s-8"])}, group_ids=["c"])
        assert plane.claim_meta("groups", "train", ["tokens"], 3).group_ids == tuple("ccc")

    # P3: leases ---------------------------------------------------------------------------------------

    def test_what_is_released_comes_back_and_its_lease_is_lost(self, plane: DataPlaneClient, join: Join) -> None:
        """What is released comes back and its lease is lost."""
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        claimed = plane.claim_meta(P, "train", ["tokens"], 4)
        plane.release(claimed.slice(0, 2))
        again = join(attach).claim_meta(P, "train", ["tokens"], 2)
        assert again.sample_ids == claimed.sample_ids[:2]
        for call in (plane.ack, plane.release, plane.extend):
            with pytest.raises(LeaseLostError):
                call(claimed)
        plane.ack(claimed.slice(2))
        assert plane.stats()[P]["tasks"]["train"]["acked"] == 2
        with pytest.raises(LeaseLostError, match="no claim"):
            plane.ack(plane.put_samples(P, ["s-9"], {"tokens": tokens(["s-9"])}))

    def test_who_closes_gives_back(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """Who closes gives back."""
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        other = join(attach)
        claimed = other.claim_meta(P, "train", ["tokens"], 2)
        waiting = begin(plane.claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        other.close()
        assert waiting.result(PATIENCE_S).sample_ids == claimed.sample_ids
        other.close()
        with pytest.raises(ClosedError):
            other.ack(claimed)

    def test_a_lease_ends_by_time_and_wakes_who_waits(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """A lease ends by time and wakes who waits."""
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))}, tags={"weight_version": 1})
        waiting = begin(plane.claim_meta, P, "train", ["tokens"], 3, timeout_s=None)
        short = join(attach, lease_s=0.3)
        claimed = short.claim_meta(P, "train", ["tokens"], 2, where=Tag("weight_version") == 1)
        plane.put_samples(P, ["s-2"], {"tokens": tokens(["s-2"])})
        assert sorted(waiting.result(PATIENCE_S).sample_ids) == named(3)
        with pytest.raises(LeaseLostError):
            short.ack(claimed)

    # P4: tags -----------------------------------------------------------------------------------------

    def test_tags_travel(self, plane: DataPlaneClient) -> None:
        """Tags travel."""
        ids = named(8)
        tags = [{"weight_version": at % 4, "source": "math"} for at in range(8)]
        plane.put_samples(P, ids, {"tokens": tokens(ids)}, tags=tags)
        newest = plane.claim_meta(P, "train", ["tokens"], 4, where=Tag("weight_version") >= 2)
        assert sorted(newest.tag("weight_version")) == [2, 2, 3, 3]
        rest = plane.claim_meta(P, "train", ["tokens"], 4)
        whole = BatchMeta.concat([rest.subset([3, 1]), newest.slice(0, 3)])
        shards, _ = shard_meta_for_dp(pickle.loads(pickle.dumps(whole)), 2)
        by_id = dict(zip(ids, tags, strict=True))
        for shard in shards:
            assert [dict(one) for one in shard.meta.tags or ()] == [by_id[one] for one in shard.meta.sample_ids]
        plane.write_tags(rest.stamp_tags({"seen": True}))
        plane.release(rest)
        again = plane.claim_meta(P, "train", ["tokens"], 4, where=(Tag("seen") == True) & (Tag("source") == "math"))  # noqa: E712
        assert set(again.sample_ids) == set(rest.sample_ids)

    # P5: fields are named -----------------------------------------------------------------------------

    def test_a_read_names_its_fields(self, plane: DataPlaneClient) -> None:
        """A read names its fields."""
        put = plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        assert list(plane.get_data(put)) == ["tokens"]
        for call in (lambda: plane.get_samples(put, []), lambda: plane.get_data(put.with_fields([]))):
            with pytest.raises(FieldError, match="no field is named"):
                call()

    # P6, P7, P9: filters and shards -------------------------------------------------------------------

    def test_filter_shard_and_read_a_claim(self, plane: DataPlaneClient) -> None:
        """Filter shard and read a claim."""
        ids = named(24)
        plane.put_samples(P, ids, {"tokens": tokens(ids)}, tags=[{"weight_version": 1 + at % 3} for at in range(24)])
        claimed = plane.claim_meta(P, "train", ["tokens"], 24)
        keep, drop = StalenessFilter(1).split(claimed, current_weight_version=3)
        assert Counter(keep.sample_ids + drop.sample_ids) == Counter(ids)
        assert set(drop.tag("weight_version")) == {1}
        shards, inverse = shard_meta_for_dp(keep, 4)
        read = [read_columns(plane, one.meta, ["tokens"], pad_to=one.pad_to)["tokens"] for one in shards]
        assert {one.shape[1] for one in read} == {shards[0].pad_to}
        assert np.concatenate(read)[inverse][:, 0].tolist() == [int(one[2:]) for one in keep.sample_ids]
        plane.ack(keep)
        assert plane.clear_samples(P, drop.sample_ids, "stale") == drop.size
        assert plane.stats()[P]["gone"] == {"stale": drop.size}
        with pytest.raises(LeaseLostError):
            plane.ack(drop)

    # P8: columns --------------------------------------------------------------------------------------

    def test_columns_come_back_exactly(self, plane: DataPlaneClient) -> None:
        """Columns come back exactly."""
        torch = pytest.importorskip("torch")
        objects = [{"messages": [{"role": "user", "content": "\u20ac"}], "state": np.arange(3)}, {"none": None}]
        columns = {
            "big": np.array([2**62, -(2**62)]),
            "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
            "rows": [np.arange(2, dtype=np.float32), np.zeros(0, dtype=np.float32)],
            "log": objects,
        }
        plane.register_partition("columns", list(columns), ["train"])
        put = plane.put_samples("columns", named(2), columns)
        assert put.sequence_lengths is not None
        read = plane.get_samples(put.subset([1, 0]), list(columns))
        assert read["big"].dense().dtype == np.int64
        assert read["big"].dense().tolist() == [-(2**62), 2**62]
        half = read["half"].dense("torch")
        assert half.dtype == torch.bfloat16
        assert torch.equal(half, columns["half"][[1, 0]])
        assert [row.dtype for row in read["rows"].to_list()] == [np.float32, np.float32]
        assert [row.tolist() for row in read["rows"].to_list()] == [[], [0.0, 1.0]]
        none, log = read["log"].to_list()
        assert none == {"none": None}
        assert log["messages"] == objects[0]["messages"]
        np.testing.assert_array_equal(log["state"], np.arange(3))

    # P10: clears --------------------------------------------------------------------------------------

    def test_what_is_cleared_or_not_produced_cant_be_read(self, plane: DataPlaneClient) -> None:
        """What is cleared or not produced can't be read."""
        ids = named(50)
        put = plane.put_samples(P, ids, {"tokens": np.arange(50 * 100).reshape(50, 100)})
        with pytest.raises(DataPlaneError, match="reward"):
            plane.get_samples(put, ["reward"])
        held = plane.get_samples(put, ["tokens"])["tokens"].dense()
        assert plane.stats()[P]["bytes"] >= held.nbytes
        assert plane.clear_samples(P, ids) == 50
        assert plane.clear_samples(P, ids) == 0
        assert plane.stats()[P]["bytes"] == 0
        with pytest.raises(SampleError):
            plane.get_samples(put, ["tokens"])
        more = named(50, 50)
        plane.put_samples(P, more, {"tokens": np.zeros((50, 100), dtype=np.int64)})
        assert held.tolist() == np.arange(50 * 100).reshape(50, 100).tolist()
        with pytest.raises(SampleError):
            plane.put_samples(P, ids[:1], {"tokens": np.zeros((1, 100), dtype=np.int64)})

    def test_a_field_written_again_is_the_old_or_the_new(self, plane: DataPlaneClient, join: Join) -> None:
        """A field written again is the old or the new."""
        put = plane.put_samples(P, named(8), {"reward": np.zeros(8)})
        writer = join(attach)
        with ThreadPoolExecutor(1) as threads:

            def rewrite() -> None:
                for value in range(1, 60):
                    writer.put_samples(P, named(8), {"reward": np.full(8, float(value))})

            writing = threads.submit(rewrite)
            seen: list[float] = []
            while not writing.done():
                values = set(plane.get_samples(put, ["reward"])["reward"].dense().tolist())
                assert len(values) == 1
                seen += values
            writing.result()
        assert seen == sorted(seen)
        assert plane.get_samples(put, ["reward"])["reward"].dense().tolist() == [59.0] * 8

    # P11: waiting -------------------------------------------------------------------------------------

    def test_a_waiting_claim_is_woken_by_the_put_that_completes_it(self, plane: DataPlaneClient, begin: Begin) -> None:
        """A waiting claim is woken by the put that completes it."""
        waiting = begin(plane.claim_meta, P, "train", ["tokens", "reward"], 2, timeout_s=None)
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        plane.put_samples(P, ["s-0"], {"reward": np.zeros(1)})
        assert plane.stats()[P]["waiting"]["claims"] == 1
        assert not waiting.done()
        plane.put_samples(P, ["s-1"], {"reward": np.zeros(1)})
        assert plane.stats()[P]["waiting"]["claims"] == 0, "the put itself ends the wait"
        assert waiting.result(PATIENCE_S).sample_ids == ("s-0", "s-1")

    def test_many_wait_in_one_client_and_nobody_is_in_the_way(self, plane: DataPlaneClient, begin: Begin) -> None:
        """Many wait in one client and nobody is in the way."""
        waiting = [begin(plane.claim_meta, P, "train", ["tokens"], 2, timeout_s=None) for _ in range(8)]
        never = begin(plane.claim_meta, P, "judge", ["reward"], 1, timeout_s=None)
        for first in range(0, 16, 2):
            plane.put_samples(P, named(2, first), {"tokens": tokens(named(2, first))})
        claimed = [one.result(PATIENCE_S) for one in waiting]
        assert Counter(one for part in claimed for one in part.sample_ids) == Counter(named(16))
        assert not never.done()
        plane.close()
        with pytest.raises(ClosedError):
            never.result(PATIENCE_S)

    def test_a_claim_that_waits_in_vain_says_why(self, plane: DataPlaneClient) -> None:
        """A claim that waits in vain says why."""
        plane.put_samples(P, named(3), {"tokens": tokens(named(3))}, tags={"weight_version": 1})
        with pytest.raises(ClaimTimeoutError, match=r"0 of at least 1 were ready.* 3 are ready, and not wanted"):
            plane.claim_meta(P, "train", ["tokens"], 1, where=Tag("weight_version") > 1, timeout_s=0.05)
        assert plane.stats()[P]["waiting"]["claims"] == 0

    def test_async_twins(self, plane: DataPlaneClient) -> None:
        """Async twins."""

        async def both() -> BatchMeta:
            claim = asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2))
            await plane.put_samples_async(P, named(2), {"tokens": tokens(named(2))})
            return await claim

        assert asyncio.run(both()).sample_ids == ("s-0", "s-1")

    # P12: capacity ------------------------------------------------------------------------------------

    def test_a_full_partition_raises_or_blocks(self, plane: DataPlaneClient, begin: Begin) -> None:
        """A full partition raises or blocks."""
        plane.register_partition("raises", ["tokens"], ["train"], capacity=4, on_full="raise")
        plane.put_samples("raises", named(4), {"tokens": tokens(named(4))})
        with pytest.raises(FullError, match="4 of 4"):
            plane.put_samples("raises", ["s-4"], {"tokens": tokens(["s-4"])})
        plane.delete_partition(P)
        plane.register_partition(P, ["tokens"], ["train"], capacity=4)
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        with pytest.raises(FullError):
            plane.put_samples(P, named(2, 4), {"tokens": tokens(named(2, 4))}, timeout_s=0.05)
        waiting = begin(plane.put_samples, P, named(2, 4), {"tokens": tokens(named(2, 4))})
        plane.clear_samples(P, ["s-0"])
        assert plane.stats()[P]["waiting"]["puts"] == 1
        plane.clear_samples(P, ["s-1"])
        put = waiting.result(PATIENCE_S)
        assert plane.get_samples(put, ["tokens"])["tokens"].lengths == [len(row) for row in tokens(named(2, 4))]
        with pytest.raises(DataPlaneError):
            plane.put_samples(P, named(5, 6), {"tokens": tokens(named(5, 6))})
        with pytest.raises(SpecError, match="never fits"):
            plane.register_partition("stuck", ["tokens"], ["train"], capacity=4, group_size=5)

    # P13, P14: joining --------------------------------------------------------------------------------

    def test_attach_only_joins(self, folder: Path, join: Join) -> None:
        """Attach only joins."""
        with pytest.raises(NoPlaneError):
            attach(self.url(folder))
        first = join()
        first.register_partition(P, ["tokens"], ["train"])
        assert join(attach).stats().keys() == join().stats().keys() == {P}
        assert first.durable is self.durable

    def test_everybody_connects_to_one_plane(self, join: Join) -> None:
        """Everybody connects to one plane."""
        with ThreadPoolExecutor(6) as threads:
            clients = list(threads.map(lambda _: join(), range(6)))
        for at, client in enumerate(clients):
            client.register_partition(f"of-{at}", ["tokens"], ["train"])
        assert all(len(client.stats()) == 6 for client in clients)

    # P15: versions ------------------------------------------------------------------------------------

    def test_rewind_gives_back_what_no_checkpoint_covers(self, plane: DataPlaneClient, join: Join) -> None:
        """Rewind gives back what no checkpoint covers."""
        plane.register_partition("versions", ["tokens"], ["train"])
        producer = join(attach)
        for version in range(3):
            ids = named(2, 2 * version)
            producer.put_samples("versions", ids, {"tokens": tokens(ids)}, tags={"weight_version": version})
            plane.ack(plane.claim_meta("versions", "train", ["tokens"], 2), version=version + 1)
        assert plane.commit("versions", "train", 1) == 2
        assert plane.stats()["versions"]["alive"] == 4
        found = plane.rewind("versions", "train", 1)
        assert (found["given_back"], found["orphaned"]) == (2, 2)
        assert plane.claim_meta("versions", "train", ["tokens"], 2).sample_ids == ("s-2", "s-3")
        assert plane.stats()["versions"]["gone"]["orphaned"] == 2
        with pytest.raises(EpochError):
            producer.put_samples("versions", ["s-6"], {"tokens": tokens(["s-6"])}, tags={"weight_version": 3})
        producer.put_samples("versions", ["s-6"], {"tokens": tokens(["s-6"])}, tags={"weight_version": 1})

    # the life of a partition --------------------------------------------------------------------------

    def test_registering_again(self, plane: DataPlaneClient) -> None:
        """Registering again."""
        plane.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        with pytest.raises(SpecError):
            plane.register_partition(P, ["tokens"], ["train", "judge"])

    def test_a_sealed_partition_ends(self, plane: DataPlaneClient, begin: Begin) -> None:
        """A sealed partition ends."""
        plane.put_samples(P, named(1), {"tokens": tokens(named(1))})
        waiting = begin(plane.claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        plane.seal(P)
        claimed = waiting.result(PATIENCE_S)
        assert claimed.sample_ids == ("s-0",)
        plane.ack(claimed)
        with pytest.raises(EndOfStreamError):
            plane.claim_meta(P, "train", ["tokens"], 2)
        with pytest.raises(SealedError):
            plane.put_samples(P, ["s-1"], {"tokens": tokens(["s-1"])})

    def test_a_partition_deleted_under_a_waiting_claim(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """A partition deleted under a waiting claim."""
        waiting = begin(join(attach).claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        plane.delete_partition(P)
        with pytest.raises(UnknownPartitionError):
            waiting.result(PATIENCE_S)
        with pytest.raises(UnknownPartitionError):
            plane.put_samples(P, ["s-1"], {"tokens": tokens(["s-1"])})

    def test_what_is_refused_leaves_nothing(self, plane: DataPlaneClient) -> None:
        """What is refused leaves nothing."""
        ids = named(2)
        plane.put_samples(P, ids, {"tokens": tokens(ids)})
        before = plane.stats()
        good = {"tokens": tokens(named(2, 2))}
        refused: list[tuple[type[DataPlaneError], Callable[[], Any]]] = [
            (SpecError, lambda: plane.claim_meta(P, "nobody", ["tokens"], 1)),
            (SpecError, lambda: plane.claim_meta(P, "train", ["nothing"], 1)),
            (DataPlaneError, lambda: plane.put_samples(P, named(2, 2), {"nothing": tokens(ids)})),
            (SampleError, lambda: plane.put_samples(P, ["s-2", "s-2"], good)),
            (SampleError, lambda: plane.put_samples(P, ["s-2", ""], good)),
            (FieldError, lambda: plane.put_samples(P, ["s-2"], good)),
            (FieldError, lambda: plane.put_samples(P, named(2, 2), {"tokens": np.zeros((2, 3))})),
            (FieldError, lambda: plane.put_samples(P, named(2, 2), {"tokens": np.zeros((2, 3, 3), dtype=np.int64)})),
            (TagError, lambda: plane.put_samples(P, named(2, 2), good, tags=[{}])),
            (TagError, lambda: plane.put_samples(P, named(2, 2), good, tags={"a": [1]})),  # type: ignore[dict-item]
            (UnknownPartitionError, lambda: plane.put_samples("elsewhere", named(2, 2), good)),
            (UnknownPartitionError, lambda: plane.check_consumption_status("elsewhere", ["train"])),
        ]
        for error, call in refused:
            with pytest.raises(error):
                call()
        after = plane.stats()
        for one in ("produced", "alive", "bytes", "blocks"):
            assert after[P][one] == before[P][one]
        plane.put_samples(P, named(2, 2), good)
        assert not plane.check_consumption_status(P, ["train"])
        plane.clear_samples(P, named(4))
        assert plane.check_consumption_status(P, ["train", "judge"])
