"""Claims: ready, atomic, leased, waited for and cancelled (P1, P2, P3, P11)."""

# ruff: noqa: D102 - the name of a test says what it checks

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tunegym.dataplane import BatchMeta, DataPlaneClient, Tag, attach, connect, write_columns
from tunegym.dataplane.errors import ClaimTimeoutError, ClosedError, EndOfStreamError, LeaseLostError
from tunegym.testing.planes import PATIENCE_S, Begin, Join, P, PlaneFixtures, named, tokens, until


class ClaimsSuite(PlaneFixtures):
    """P1, P2, P3 and P11, with Ctrl-C and cancelled asyncio tasks."""

    def test_a_sample_is_ready_with_every_required_field_and_not_before(self, plane: DataPlaneClient) -> None:
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        with pytest.raises(ClaimTimeoutError, match=r"0 of at least 4 were ready.* 4 lack 'reward'"):
            plane.claim_meta(P, "train", ["tokens", "reward"], 4, timeout_s=0)
        write_columns(plane, plane.put_samples(P, ["s-1", "s-3"], {"reward": np.zeros(2)}), {"reward": np.ones(2)})
        claimed = plane.claim_meta(P, "train", ["tokens", "reward"], 4, min_batch=1)
        assert claimed.sample_ids == ("s-1", "s-3")
        assert plane.get_data(claimed)["reward"].to_list() == [1.0, 1.0]
        assert plane.claim_meta(P, "judge", ["tokens"], 4).size == 4

    def test_no_two_claimers_of_a_task_get_the_same_sample(self, plane: DataPlaneClient, join: Join) -> None:
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

    def test_what_is_released_comes_back_and_its_lease_is_lost(self, plane: DataPlaneClient, join: Join) -> None:
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        claimed = plane.claim_meta(P, "train", ["tokens"], 4)
        plane.release(claimed.slice(0, 2))
        again = join(attach).claim_meta(P, "train", ["tokens"], 2)
        assert again.sample_ids == claimed.sample_ids[:2]
        for call in (plane.ack, plane.release, plane.extend):
            with pytest.raises(LeaseLostError) as lost:
                call(claimed)
            assert lost.value.sample_ids == claimed.sample_ids[:2]
        plane.ack(claimed.drop(lost.value.sample_ids))
        assert plane.stats()[P]["tasks"]["train"]["acked"] == 2
        with pytest.raises(LeaseLostError, match="not a claim"):
            plane.ack(plane.put_samples(P, ["s-9"], {"tokens": tokens(["s-9"])}))

    def test_who_closes_gives_back(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
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
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))}, tags={"weight_version": 1})
        waiting = begin(plane.claim_meta, P, "train", ["tokens"], 3, timeout_s=None)
        short = join(attach, lease_s=0.3)
        claimed = short.claim_meta(P, "train", ["tokens"], 2, where=Tag("weight_version") == 1)
        plane.put_samples(P, ["s-2"], {"tokens": tokens(["s-2"])})
        assert sorted(waiting.result(PATIENCE_S).sample_ids) == named(3)
        with pytest.raises(LeaseLostError):
            short.ack(claimed)

    def test_a_claim_is_settled_once(self, plane: DataPlaneClient) -> None:
        """Twice, in part, after the other, and after the samples are gone."""
        plane.put_samples(P, named(6), {"tokens": tokens(named(6))})
        first, second = (plane.claim_meta(P, "train", ["tokens"], 3) for _ in range(2))
        whole = BatchMeta.concat([second, first])
        plane.ack(whole.subset([0, 3]))
        for call in (plane.ack, plane.release, plane.extend):
            for part in (whole, whole.subset([0]), first):
                with pytest.raises(LeaseLostError, match="is lost"):
                    call(part)
        plane.extend(whole.subset([1, 4]))
        plane.release(whole.subset([1, 4]))
        with pytest.raises(LeaseLostError):
            plane.ack(whole.subset([1]))
        plane.clear_samples(P, [whole.sample_ids[2]])
        with pytest.raises(LeaseLostError):
            plane.ack(whole.subset([2, 5]))
        plane.ack(whole.subset([5]))
        plane.ack(whole.slice(0, 0))
        found = plane.stats()[P]["tasks"]["train"]
        assert (found["acked"], found["leased"], found["free"]) == (3, 0, 2)

    def test_a_claim_of_elsewhere_is_none_here(self, plane: DataPlaneClient) -> None:
        """A claim of another partition, or of another plane with the same names."""
        plane.register_partition("other", ["tokens"], ["train", "judge"])

        with connect("memory://elsewhere") as elsewhere:
            elsewhere.register_partition(P, ["tokens", "reward"], ["train", "judge"])
            for one, partition_id in ((plane, P), (plane, "other"), (elsewhere, P)):
                one.put_samples(partition_id, named(2), {"tokens": tokens(named(2))})
            claimed = plane.claim_meta(P, "train", ["tokens"], 2)
            foreign = elsewhere.claim_meta(P, "train", ["tokens"], 2)
            other = plane.claim_meta("other", "train", ["tokens"], 2)
        moved = BatchMeta(P, other.sample_ids, other.fields, other.task_name, leases=other.leases)
        for wrong in (foreign, moved):
            for call in (plane.ack, plane.release, plane.extend):
                with pytest.raises(LeaseLostError):
                    call(wrong)
        plane.ack(claimed)

    def test_a_waiting_claim_is_woken_by_the_put_that_completes_it(self, plane: DataPlaneClient, begin: Begin) -> None:
        waiting = begin(plane.claim_meta, P, "train", ["tokens", "reward"], 2, timeout_s=None)
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        plane.put_samples(P, ["s-0"], {"reward": np.zeros(1)})
        assert plane.stats()[P]["waiting"]["claims"] == 1
        assert not waiting.done()
        plane.put_samples(P, ["s-1"], {"reward": np.zeros(1)})
        assert plane.stats()[P]["waiting"]["claims"] == 0, "the put itself ends the wait"
        assert waiting.result(PATIENCE_S).sample_ids == ("s-0", "s-1")

    def test_many_wait_in_one_client_without_blocking_it(self, plane: DataPlaneClient, begin: Begin) -> None:
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
        plane.put_samples(P, named(3), {"tokens": tokens(named(3))}, tags={"weight_version": 1})
        with pytest.raises(ClaimTimeoutError, match=r"0 of at least 1 were ready.* 3 are ready, but"):
            plane.claim_meta(P, "train", ["tokens"], 1, where=Tag("weight_version") > 1, timeout_s=0.05)
        assert plane.stats()[P]["waiting"]["claims"] == 0

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
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        assert plane.claim_meta(P, "train", ["tokens"], 2, timeout_s=0).size == 2

    def test_async_twins(self, plane: DataPlaneClient) -> None:
        """Many wait in one event loop, and none of them is in the way of the put that they wait for."""

        async def both() -> list[BatchMeta]:
            claims = [asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2)) for _ in range(40)]
            while plane.stats()[P]["waiting"]["claims"] < 40:
                await asyncio.sleep(0.005)
            await plane.put_samples_async(P, named(80), {"tokens": tokens(named(80))})
            return await asyncio.gather(*claims)

        claimed = asyncio.run(both())
        assert sorted(one for part in claimed for one in part.sample_ids) == sorted(named(80))

    def test_a_cancelled_claim_keeps_nothing(self, plane: DataPlaneClient, begin: Begin, join: Join) -> None:
        """Cancelled while it waits, or at any moment around the put that completes it: nothing stays leased."""
        other = join(attach)

        async def cancelled_while_it_waits() -> None:
            claim = asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2, timeout_s=None))
            while not plane.stats()[P]["waiting"]["claims"]:
                await asyncio.sleep(0.005)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            assert plane.stats()[P]["waiting"]["claims"] == 0

        async def cancelled_at_any_moment(turns: int) -> None:
            claim = asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2, timeout_s=None))
            for _ in range(turns):
                await asyncio.sleep(0.0003)
            claim.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                plane.release(await claim)
            found = plane.stats()[P]
            assert (found["tasks"]["train"]["leased"], found["waiting"]["claims"]) == (0, 0)

        asyncio.run(cancelled_while_it_waits())
        other.put_samples(P, named(2), {"tokens": tokens(named(2))})
        for turns in range(20):
            asyncio.run(cancelled_at_any_moment(turns))
        waiting = begin(other.claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        assert waiting.result(PATIENCE_S).size == 2

    def test_a_cancelled_put_is_there_or_not(self, plane: DataPlaneClient) -> None:
        """A put that is cancelled while it waits for room is never there; room goes to the next."""
        plane.register_partition("full", ["tokens"], ["train"], capacity=2)
        plane.put_samples("full", named(2), {"tokens": tokens(named(2))})

        async def cancelled() -> None:
            put = asyncio.create_task(plane.put_samples_async("full", named(2, 2), {"tokens": tokens(named(2, 2))}))
            while not plane.stats()["full"]["waiting"]["puts"]:
                await asyncio.sleep(0.005)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put

        asyncio.run(cancelled())
        assert plane.stats()["full"]["waiting"]["puts"] == 0
        plane.clear_samples("full", named(2))
        assert plane.stats()["full"]["alive"] == 0
        plane.put_samples("full", named(2, 2), {"tokens": tokens(named(2, 2))}, timeout_s=0)
