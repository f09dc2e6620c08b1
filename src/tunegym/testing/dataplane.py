"""The contract of a data plane, as tests. Subclass ``DataPlaneSuite``, give its ``url``, and let pytest collect it.

The tests follow the rules of a plane, P1 to P15, and use it through the client only.
"""

# ruff: noqa: D102 - the name of a test says what it checks

from __future__ import annotations

import asyncio
import contextlib
import pickle
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
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
    errors,
    read_columns,
    shard_meta_for_dp,
    write_columns,
)

P = "rollouts"
PATIENCE_S = 60.0
LINGER_S = 0.5

Join = Callable[..., DataPlaneClient]
Begin = Callable[..., "Future[Any]"]


def named(count: int, first: int = 0) -> list[str]:
    """Sample ids."""
    return [f"s-{number}" for number in range(first, first + count)]


def tokens(ids: Sequence[str]) -> list[np.ndarray]:
    """Rows of different lengths that identify their samples."""
    return [np.full(1 + int(one.rpartition("-")[2]) % 5, int(one.rpartition("-")[2])) for one in ids]


def put(plane: DataPlaneClient, ids: Sequence[str], partition_id: str = P, **more: Any) -> BatchMeta:
    """Put the tokens of samples."""
    return plane.put_samples(partition_id, ids, {"tokens": tokens(ids)}, **more)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for another thread or process; fail if it takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen: {what}"
        time.sleep(0.005)


class DataPlaneSuite(ABC):
    """P1 to P15, on a plane for each test.

    Attributes:
        durable: whether the plane reports that it outlives its processes.
    """

    durable = False

    @abstractmethod
    def url(self, folder: Path) -> str:
        """The URL of a plane for one test, which need not exist yet."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "plane"

    @pytest.fixture
    def join(self, folder: Path) -> Iterator[Join]:
        """Makes clients, which are closed at the end."""
        clients: list[DataPlaneClient] = []

        def joined(how: Callable[..., DataPlaneClient] = connect, **options: Any) -> DataPlaneClient:
            clients.append(how(self.url(folder), **{"linger_s": LINGER_S, **options}))
            return clients[-1]

        yield joined
        for client in clients:
            client.close()

    @pytest.fixture
    def plane(self, join: Join) -> DataPlaneClient:
        """A client of a plane with one partition of two fields and two tasks."""
        client = join()
        client.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        return client

    @pytest.fixture
    def begin(self, plane: DataPlaneClient) -> Iterator[Begin]:
        """Starts a call in a thread, and returns when the plane reports that it waits."""
        with ThreadPoolExecutor(16) as threads:

            def started(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
                before = sum(plane.stats()[P]["waiting"].values())
                future = threads.submit(call, *args, **kwargs)
                until(lambda: future.done() or sum(plane.stats()[P]["waiting"].values()) > before, "a call waits")
                return future

            yield started
            with contextlib.suppress(errors.DataPlaneError):  # end calls that still wait
                plane.delete_partition(P)
            plane.close()

    # claims: ready, atomic, leased, waited for and cancelled (P1, P2, P3, P11) -------------------------

    def test_a_sample_is_ready_with_every_required_field(self, plane: DataPlaneClient) -> None:
        put(plane, named(4), tags={"weight_version": 1})
        with pytest.raises(errors.ClaimTimeoutError, match=r"0 of at least 4 were ready.* 4 lack 'reward'"):
            plane.claim_meta(P, "train", ["tokens", "reward"], 4, timeout_s=0)
        with pytest.raises(errors.ClaimTimeoutError, match=r"0 of at least 1 were ready.* 4 are ready, but"):
            plane.claim_meta(P, "train", ["tokens"], 1, where=Tag("weight_version") > 1, timeout_s=0.05)
        assert plane.stats()[P]["waiting"]["claims"] == 0
        write_columns(plane, plane.put_samples(P, ["s-1", "s-3"], {"reward": np.zeros(2)}), {"reward": np.ones(2)})
        claimed = plane.claim_meta(P, "train", ["tokens", "reward"], 4, min_batch=1)
        assert claimed.sample_ids == ("s-1", "s-3")
        assert plane.get_data(claimed)["reward"].to_list() == [1.0, 1.0]
        assert plane.claim_meta(P, "judge", ["tokens"], 4).size == 4

    def test_no_two_claimers_of_a_task_get_the_same_sample(self, plane: DataPlaneClient, join: Join) -> None:
        ids = named(240)
        put(plane, ids)
        plane.seal(P)
        clients = [join(attach) for _ in range(4)]

        def consume(client: DataPlaneClient, task: str) -> list[str]:
            mine: list[str] = []
            while True:
                try:
                    claimed = client.claim_meta(P, task, ["tokens"], 7, min_batch=1)
                except errors.EndOfStreamError:
                    return mine
                mine += claimed.sample_ids
                client.ack(claimed)

        with ThreadPoolExecutor(16) as threads:
            for task in ("train", "judge"):
                parts = list(threads.map(consume, [*clients, *clients], [task] * 8))
                assert Counter(one for part in parts for one in part) == Counter(ids)
        assert plane.check_consumption_status(P, ["train", "judge"])

    def test_a_group_is_claimed_whole(self, plane: DataPlaneClient) -> None:
        plane.register_partition("groups", ["tokens"], ["train"], group_size=3)
        put(plane, named(8), "groups", group_ids=list("aaabbbcc"))
        for group in "ab":
            claimed = plane.claim_meta("groups", "train", ["tokens"], 5, min_batch=1)
            assert claimed.group_ids == tuple(3 * group)
        with pytest.raises(errors.ClaimTimeoutError):
            plane.claim_meta("groups", "train", ["tokens"], 5, min_batch=1, timeout_s=0)
        put(plane, ["s-8"], "groups", group_ids=["c"])
        assert plane.claim_meta("groups", "train", ["tokens"], 3).group_ids == tuple("ccc")

    def test_a_claim_is_settled_once(self, plane: DataPlaneClient, join: Join) -> None:
        """Released samples come back; a part can be settled; a lost lease leaves the others as they are."""
        put(plane, named(6))
        claimed = plane.claim_meta(P, "train", ["tokens"], 6)
        plane.release(claimed.slice(0, 2))
        again = join(attach).claim_meta(P, "train", ["tokens"], 2)
        assert again.sample_ids == claimed.sample_ids[:2]
        plane.ack(claimed.subset([2]))
        for call in (plane.ack, plane.release, plane.extend):
            with pytest.raises(errors.LeaseLostError, match="is lost") as lost:
                call(claimed)
            assert lost.value.sample_ids == claimed.sample_ids[:3]
        rest = claimed.drop(lost.value.sample_ids)
        plane.extend(rest)
        plane.clear_samples(P, rest.sample_ids[:1])
        with pytest.raises(errors.LeaseLostError):
            plane.ack(rest)
        plane.ack(rest.slice(1))
        plane.ack(rest.slice(0, 0))
        found = plane.stats()[P]["tasks"]["train"]
        assert (found["acked"], found["leased"], found["free"]) == (3, 2, 0)
        with pytest.raises(errors.LeaseLostError, match="not a claim"):
            plane.ack(put(plane, ["s-9"]))

    def test_a_claim_of_another_partition_or_plane_is_refused(self, plane: DataPlaneClient) -> None:
        plane.register_partition("other", ["tokens"], ["train", "judge"])
        with connect("memory://elsewhere") as elsewhere:
            elsewhere.register_partition(P, ["tokens", "reward"], ["train", "judge"])
            for one, partition_id in ((plane, P), (plane, "other"), (elsewhere, P)):
                put(one, named(2), partition_id)
            claimed = plane.claim_meta(P, "train", ["tokens"], 2)
            foreign = elsewhere.claim_meta(P, "train", ["tokens"], 2)
            other = plane.claim_meta("other", "train", ["tokens"], 2)
        for wrong in (foreign, replace(other, partition_id=P)):
            for call in (plane.ack, plane.release, plane.extend):
                with pytest.raises(errors.LeaseLostError):
                    call(wrong)
        plane.ack(claimed)

    def test_an_expired_lease_wakes_a_waiting_claim(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        put(plane, named(2), tags={"weight_version": 1})
        waiting = begin(plane.claim_meta, P, "train", ["tokens"], 3, timeout_s=None)
        short = join(attach, lease_s=0.3)
        claimed = short.claim_meta(P, "train", ["tokens"], 2, where=Tag("weight_version") == 1)
        put(plane, ["s-2"])
        assert sorted(waiting.result(PATIENCE_S).sample_ids) == named(3)
        with pytest.raises(errors.LeaseLostError):
            short.ack(claimed)

    def test_the_put_that_completes_a_claim_wakes_it(self, plane: DataPlaneClient, begin: Begin) -> None:
        waiting = begin(plane.claim_meta, P, "train", ["tokens", "reward"], 2, timeout_s=None)
        put(plane, named(2))
        plane.put_samples(P, ["s-0"], {"reward": np.zeros(1)})
        assert plane.stats()[P]["waiting"]["claims"] == 1
        assert not waiting.done()
        plane.put_samples(P, ["s-1"], {"reward": np.zeros(1)})
        assert plane.stats()[P]["waiting"]["claims"] == 0, "the put itself ends the wait"
        assert waiting.result(PATIENCE_S).sample_ids == ("s-0", "s-1")

    def test_many_waiting_claims_do_not_block_their_client(self, plane: DataPlaneClient, begin: Begin) -> None:
        waiting = [begin(plane.claim_meta, P, "train", ["tokens"], 2, timeout_s=None) for _ in range(8)]
        never = begin(plane.claim_meta, P, "judge", ["reward"], 1, timeout_s=None)
        for first in range(0, 16, 2):
            put(plane, named(2, first))
        claimed = [one.result(PATIENCE_S) for one in waiting]
        assert Counter(one for part in claimed for one in part.sample_ids) == Counter(named(16))
        assert not never.done()
        plane.close()
        with pytest.raises(errors.ClosedError):
            never.result(PATIENCE_S)

    def test_ctrl_c_ends_a_wait(self, plane: DataPlaneClient) -> None:
        """An interrupted claim waits no more, and gets nothing later."""
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("only the main thread is interrupted")
        main = threading.get_ident()

        def interrupt() -> None:
            until(lambda: plane.stats()[P]["waiting"]["claims"] == 1, "the claim waits")
            signal.pthread_kill(main, signal.SIGINT)

        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        other = threading.Thread(target=interrupt)
        try:
            other.start()
            with pytest.raises(KeyboardInterrupt):
                plane.claim_meta(P, "train", ["tokens"], 2, timeout_s=None)
        finally:
            signal.signal(signal.SIGINT, handler)
            other.join()
        assert plane.stats()[P]["waiting"]["claims"] == 0
        put(plane, named(2))
        assert plane.claim_meta(P, "train", ["tokens"], 2, timeout_s=0).size == 2

    def test_async_calls(self, plane: DataPlaneClient) -> None:
        """Many wait in one event loop, without blocking the put that they wait for. All arguments are passed on."""

        async def both() -> list[BatchMeta]:
            claims = [asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2)) for _ in range(40)]
            while plane.stats()[P]["waiting"]["claims"] < 40:
                await asyncio.sleep(0.005)
            producer, half = plane.producer(P), named(40)
            token = producer.start(40)
            await plane.put_samples_async(P, named(40, 40), {"tokens": tokens(named(40, 40))}, lengths=[7] * 40)
            await producer.put_samples_async(token, half, {"tokens": tokens(half)}, lengths=[7] * 40)
            return await asyncio.gather(*claims)

        claimed = asyncio.run(both())
        assert sorted(one for part in claimed for one in part.sample_ids) == sorted(named(80))
        assert {part.sequence_lengths for part in claimed} == {(7, 7)}

    def test_a_cancelled_claim_keeps_nothing(self, plane: DataPlaneClient, join: Join) -> None:
        """Cancelled while it waits, or at any moment around the put that completes it: nothing stays leased."""
        other = join(attach)

        async def cancelled(pause: Callable[[], Any]) -> None:
            claim = asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2, timeout_s=None))
            await pause()
            claim.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                plane.release(await claim)
            found = plane.stats()[P]
            assert (found["tasks"]["train"]["leased"], found["waiting"]["claims"]) == (0, 0)

        async def waits() -> None:
            while not plane.stats()[P]["waiting"]["claims"]:
                await asyncio.sleep(0.005)

        asyncio.run(cancelled(waits))
        put(other, named(2))
        for turns in range(20):
            asyncio.run(cancelled(lambda turns=turns: asyncio.sleep(0.0003 * turns)))
        assert other.claim_meta(P, "train", ["tokens"], 2).size == 2

    def test_a_cancelled_put_leaves_nothing(self, plane: DataPlaneClient) -> None:
        """A put that is cancelled while it waits for room has no effect; the room goes to the next."""
        plane.register_partition("full", ["tokens"], ["train"], capacity=2)
        put(plane, named(2), "full")

        async def cancelled() -> None:
            late = asyncio.create_task(plane.put_samples_async("full", named(2, 2), {"tokens": tokens(named(2, 2))}))
            while not plane.stats()["full"]["waiting"]["puts"]:
                await asyncio.sleep(0.005)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late

        asyncio.run(cancelled())
        assert plane.stats()["full"]["waiting"]["puts"] == 0
        plane.clear_samples("full", named(2))
        assert plane.stats()["full"]["alive"] == 0
        put(plane, named(2, 2), "full", timeout_s=0)

    # batches: tags, fields, columns, filters, shards and clears (P4 to P10) ----------------------------

    def test_tags_travel(self, plane: DataPlaneClient) -> None:
        ids = named(8)
        tags = [{"weight_version": at % 4, "source": "math"} for at in range(8)]
        put(plane, ids, tags=tags)
        newest = plane.claim_meta(P, "train", ["tokens"], 4, where=Tag("weight_version") >= 2)
        assert sorted(newest.tag("weight_version")) == [2, 2, 3, 3]
        rest = plane.claim_meta(P, "train", ["tokens"], 4)
        whole = BatchMeta.concat([rest.subset([3, 1]), newest.slice(0, 3)])
        shards, _ = shard_meta_for_dp(pickle.loads(pickle.dumps(whole)), 2)
        by_id = dict(zip(ids, tags, strict=True))
        for shard in shards:
            assert [dict(one) for one in shard.meta.tags or ()] == [by_id[one] for one in shard.meta.sample_ids]
        plane.write_tags(P, rest.sample_ids, {"seen": True})
        plane.release(rest)
        again = plane.claim_meta(P, "train", ["tokens"], 4, where=(Tag("seen") == True) & (Tag("source") == "math"))  # noqa: E712
        assert set(again.sample_ids) == set(rest.sample_ids)

    def test_filter_shard_and_read_a_claim(self, plane: DataPlaneClient) -> None:
        ids = named(24)
        put(plane, ids, tags=[{"weight_version": 1 + at % 3} for at in range(24)])
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
        with pytest.raises(errors.LeaseLostError):
            plane.ack(drop)

    def test_columns_come_back_exactly(self, plane: DataPlaneClient) -> None:
        torch = pytest.importorskip("torch")
        objects = [{"messages": [{"role": "user", "content": "\u20ac"}], "state": np.arange(3)}, {"none": None}]
        columns = {
            "big": np.array([2**62, -(2**62)]),
            "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
            "rows": [np.arange(2, dtype=np.float32), np.zeros(0, dtype=np.float32)],
            "log": objects,
        }
        plane.register_partition("columns", list(columns), ["train"])
        done = plane.put_samples("columns", named(2), columns)
        assert done.sequence_lengths is not None
        read = plane.get_samples(done.subset([1, 0]), list(columns))
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

    def test_lists_of_numbers_are_jagged(self, plane: DataPlaneClient) -> None:
        """What inference engines return: lists of tokens, log-probabilities and masks."""
        columns = {
            "tokens": [[1, 2], [], (3,)],
            "logprobs": [[-0.5, -1.0], [], [-2.0]],
            "mask": [[True, False], [], []],
        }
        columns["mixed"] = [[1], np.arange(2), []]
        plane.register_partition("lists", list(columns), ["train"])
        done = plane.put_samples("lists", named(3), columns)
        assert plane.claim_meta("lists", "train", list(columns), 3).sequence_lengths == (2, 0, 1)
        read = plane.get_samples(done, list(columns))
        assert [read[name].dtype for name in columns] == ["int64", "float64", "bool", "int64"]
        for name, rows in columns.items():
            assert [row.tolist() for row in read[name].to_list()] == [list(row) for row in rows]
        with pytest.raises(errors.FieldError, match="no dtype"):
            plane.put_samples("lists", named(2, 3), {"tokens": [[], []]})

    def test_cleared_and_unproduced_fields_cant_be_read(self, plane: DataPlaneClient) -> None:
        ids, rows = named(50), np.arange(50 * 100).reshape(50, 100)
        done = plane.put_samples(P, ids, {"tokens": rows})
        with pytest.raises(errors.DataPlaneError, match="reward"):
            plane.get_samples(done, ["reward"])
        held = plane.get_samples(done, ["tokens"])["tokens"].dense()
        assert plane.stats()[P]["bytes"] >= held.nbytes
        assert plane.clear_samples(P, ids) == 50
        assert plane.clear_samples(P, ids) == 0
        assert plane.stats()[P]["bytes"] == 0
        with pytest.raises(errors.SampleError):
            plane.get_samples(done, ["tokens"])
        plane.put_samples(P, named(50, 50), {"tokens": np.zeros_like(rows)})
        assert held.tolist() == rows.tolist()
        with pytest.raises(errors.SampleError):
            plane.put_samples(P, ids[:1], {"tokens": rows[:1]})

    def test_a_read_gets_the_old_or_the_new_field(self, plane: DataPlaneClient, join: Join) -> None:
        done = plane.put_samples(P, named(8), {"reward": np.zeros(8)})
        writer = join(attach)

        def rewrite() -> None:
            for value in range(1, 60):
                writer.put_samples(P, named(8), {"reward": np.full(8, float(value))})

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(rewrite)
            seen: list[float] = []
            while not writing.done():
                values = set(plane.get_samples(done, ["reward"])["reward"].dense().tolist())
                assert len(values) == 1
                seen += values
            writing.result()
        assert seen == sorted(seen)
        assert plane.get_samples(done, ["reward"])["reward"].dense().tolist() == [59.0] * 8

    # life: capacity, attaching, versions and epochs (P12 to P15), stats --------------------------------

    def test_a_full_partition_raises_or_blocks(self, plane: DataPlaneClient, begin: Begin) -> None:
        plane.register_partition("raises", ["tokens"], ["train"], capacity=4, on_full="raise")
        put(plane, named(4), "raises")
        with pytest.raises(errors.FullError, match="4 of 4"):
            put(plane, ["s-4"], "raises")
        plane.delete_partition(P)
        plane.register_partition(P, ["tokens"], ["train"], capacity=4)
        put(plane, named(4))
        with pytest.raises(errors.FullError):
            put(plane, named(2, 4), timeout_s=0.05)
        waiting = begin(put, plane, named(2, 4))
        plane.clear_samples(P, ["s-0"])
        assert plane.stats()[P]["waiting"]["puts"] == 1
        plane.clear_samples(P, ["s-1"])
        late = waiting.result(PATIENCE_S)
        assert plane.get_samples(late, ["tokens"])["tokens"].lengths == [len(row) for row in tokens(named(2, 4))]

    def test_stored_bytes_are_bounded(self, plane: DataPlaneClient, begin: Begin) -> None:
        rows = np.zeros((4, 25_000))
        most = 5 * rows.nbytes // 2
        plane.register_partition("raises", ["x"], ["train"], on_full="raise", capacity_bytes=most)
        with pytest.raises(errors.SpecError, match="never fit into capacity_bytes"):
            plane.put_samples("raises", named(12), {"x": np.zeros((12, 25_000))})
        with pytest.raises(errors.FullError, match="bytes"):
            [plane.put_samples("raises", named(4, at), {"x": rows}) for at in (0, 4, 8)]
        plane.delete_partition(P)
        plane.register_partition(P, ["x", "reward"], ["train"], capacity_bytes=most)
        first, _ = (plane.put_samples(P, named(4, at), {"x": rows}) for at in (0, 4))
        waiting = begin(plane.put_samples, P, named(4, 8), {"x": rows})
        write_columns(plane, first, {"reward": np.zeros(4)})  # fields of samples that are there always fit
        stats = plane.stats()[P]
        assert 2 * rows.nbytes < stats["bytes"] <= stats["stored_bytes"] < stats["capacity_bytes"] == most
        plane.clear_samples(P, first.sample_ids[:2])
        assert plane.stats()[P]["bytes"] < 2 * rows.nbytes
        plane.clear_samples(P, first.sample_ids[2:])
        assert plane.get_samples(waiting.result(PATIENCE_S), ["x"])["x"].dense().shape == rows.shape

    def test_connect_makes_one_plane_and_attach_only_joins(self, folder: Path, join: Join) -> None:
        with pytest.raises(errors.NoPlaneError):
            attach(self.url(folder))
        with ThreadPoolExecutor(6) as threads:
            clients = list(threads.map(lambda _: join(), range(6)))
        clients.append(join(attach))
        for at, client in enumerate(clients):
            client.register_partition(f"of-{at}", ["tokens"], ["train"])
        clients[1].register_partition("of-0", ["tokens"], ["train"])  # again
        with pytest.raises(errors.SpecError):
            clients[1].register_partition("of-0", ["reward"], ["train"])
        assert all(len(client.stats()) == 7 for client in clients)
        assert clients[0].durable is self.durable

    def test_rewind_gives_back_what_no_checkpoint_covers(self, plane: DataPlaneClient, join: Join) -> None:
        producer = join(attach).producer(P)
        for version in range(3):
            put(plane, named(2, 2 * version), tags={"weight_version": version})
            plane.ack(plane.claim_meta(P, "train", ["tokens"], 2), version=version + 1)
        assert plane.commit(P, "train", 1) == 2
        token = producer.start(1)
        found = plane.rewind(P, "train", 1)
        assert (found["given_back"], found["orphaned"]) == (2, 2)
        assert plane.claim_meta(P, "train", ["tokens"], 2).sample_ids == ("s-2", "s-3")
        assert plane.stats()[P]["gone"]["orphaned"] == 2
        with pytest.raises(errors.EpochError):
            producer.put_samples(token, ["s-6"], {"tokens": tokens(["s-6"])}, tags={"weight_version": 3})
        producer.put_samples(producer.start(1), ["s-6"], {"tokens": tokens(["s-6"])}, tags={"weight_version": 1})

    def test_a_rollout_belongs_to_the_epoch_of_its_start(self, plane: DataPlaneClient, join: Join) -> None:
        """Weights are fetched after the start: a rewind that comes later refuses the put, at every client."""
        producers = [join(attach).producer(P), plane.producer(P)]
        old = [one.start(2) for one in producers]
        done = producers[0].put_samples(old[0], ["s-0"], {"tokens": tokens(["s-0"])})
        plane.rewind(P, "train", 0)
        for _ in range(2):  # a refusal changes nothing
            for producer, token in zip(producers, old, strict=True):
                with pytest.raises(errors.EpochError, match="was rewound"):
                    producer.put_samples(token, ["s-1"], {"tokens": tokens(["s-1"])})
        assert (done.epoch, put(plane, ["s-1"]).epoch) == (0, 1), "a plain put is of the epoch in which it arrives"
        token = producers[0].start(2)
        for fields in ({"tokens": tokens(named(2, 2))}, {"reward": np.zeros(2)}):  # one rollout, in several puts
            assert producers[0].put_samples(token, named(2, 2), fields).epoch == 1
        with pytest.raises(errors.SampleError, match="covers 2"):
            producers[0].put_samples(token, ["s-4"], {"tokens": tokens(["s-4"])})
        plane.delete_partition(P)
        plane.register_partition(P, ["tokens"], ["train"])
        with pytest.raises(errors.EpochError, match="made again"):  # an epoch belongs to one life of a partition
            producers[0].put_samples(token, ["s-2"], {"tokens": tokens(["s-2"])})
        with pytest.raises(errors.UnknownPartitionError):
            plane.producer("elsewhere").start(1)

    def test_a_sealed_partition_ends(self, plane: DataPlaneClient, begin: Begin) -> None:
        put(plane, named(1))
        waiting = begin(plane.claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        plane.seal(P)
        claimed = waiting.result(PATIENCE_S)
        assert claimed.sample_ids == ("s-0",)
        plane.ack(claimed)
        with pytest.raises(errors.EndOfStreamError):
            plane.claim_meta(P, "train", ["tokens"], 2)
        with pytest.raises(errors.SealedError):
            put(plane, ["s-1"])

    def test_a_deleted_partition_ends_waiting_claims(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        waiting = begin(join(attach).claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        plane.delete_partition(P)
        with pytest.raises(errors.UnknownPartitionError):
            waiting.result(PATIENCE_S)
        with pytest.raises(errors.UnknownPartitionError):
            put(plane, ["s-1"])

    def test_a_closed_client(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """Its claims are given back, and it refuses every call. Closing it again is fine."""
        done = put(plane, named(1))
        other = join(attach)
        claimed = other.claim_meta(P, "train", ["tokens"], 1)
        waiting = begin(plane.claim_meta, P, "train", ["tokens"], 1, timeout_s=None)
        other.close()
        other.close()
        assert waiting.result(PATIENCE_S).sample_ids == claimed.sample_ids
        for call in (
            other.stats,
            lambda: other.get_data(done),
            lambda: other.ack(claimed),
            lambda: put(other, ["s-1"]),
            lambda: other.claim_meta(P, "train", ["tokens"], 1),
            lambda: other.register_partition("q", ["a"], ["b"]),
        ):
            with pytest.raises(errors.ClosedError):
                call()
        assert plane.stats()[P]["produced"] == 1

    def test_latencies_of_puts_and_claims(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """Each successful call counts once, for every client; waiting is counted separately, too."""

        def count(histogram: dict[str, Any]) -> int:
            assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
            return sum(histogram["counts"])

        other = join(attach)
        for one in named(3):
            put(plane, [one])
        plane.ack(plane.claim_meta(P, "train", ["tokens"], 2))
        for timeout_s in (0, 0.001):
            with pytest.raises(errors.ClaimTimeoutError):
                plane.claim_meta(P, "train", ["tokens"], 9, timeout_s=timeout_s)
        waiting = begin(plane.claim_meta, P, "judge", ["tokens"], 4, timeout_s=None)
        put(plane, named(1, 3))
        waiting.result(PATIENCE_S)
        found = other.stats()[P]
        assert [count(found[name]) for name in ("put_latency", "put_wait")] == [4, 4]
        assert found["put_wait"]["sum"] == 0.0
        assert found["put_latency"]["sum"] > 0.0
        for name, waited in (("train", False), ("judge", True)):
            task = found["tasks"][name]
            assert [count(task[name]) for name in ("claim_latency", "claim_wait")] == [1, 1]
            assert task["claim_wait"]["sum"] <= task["claim_latency"]["sum"]
            assert (task["claim_wait"]["sum"] > 0.0) is waited
