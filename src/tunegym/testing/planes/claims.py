"""Claims: ready, atomic, leased, and waited for."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tunegym.dataplane import (
    DataPlaneClient,
    Tag,
    attach,
    write_columns,
)
from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    ClosedError,
    EndOfStreamError,
    LeaseLostError,
)
from tunegym.testing.planes.fixtures import PATIENCE_S, Begin, Join, P, PlaneFixtures, named, tokens


class ClaimsSuite(PlaneFixtures):
    """P1, P2, P3 and P11."""

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
            with pytest.raises(LeaseLostError) as lost:
                call(claimed)
            assert lost.value.sample_ids == claimed.sample_ids[:2]
        plane.ack(claimed.drop(lost.value.sample_ids))
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
