"""The contract of a data plane, as tests. Subclass ``DataPlaneSuite``, give its ``url``, and let pytest collect it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.dataplane import DataPlaneClient, attach, kv_first_write, write_columns
from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    ClosedError,
    DataPlaneError,
    EndOfStreamError,
    EpochError,
    FullError,
    NoPlaneError,
    SealedError,
    SpecError,
    UnknownPartitionError,
)
from tunegym.testing.planes import PATIENCE_S, Begin, Join, P, PlaneFixtures, named, tokens, until
from tunegym.testing.planes.batches import BatchesSuite
from tunegym.testing.planes.claims import ClaimsSuite

__all__ = ["PATIENCE_S", "Begin", "DataPlaneSuite", "Join", "P", "named", "tokens", "until"]


class LifeSuite(PlaneFixtures):
    """P12 to P15, the life of a partition, and its stats."""

    def test_a_full_partition_raises_or_blocks(self, plane: DataPlaneClient, begin: Begin) -> None:
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

    def test_attach_only_joins(self, folder: Path, join: Join) -> None:
        with pytest.raises(NoPlaneError):
            attach(self.url(folder))
        first = join()
        first.register_partition(P, ["tokens"], ["train"])
        assert join(attach).stats().keys() == join().stats().keys() == {P}
        assert first.durable is self.durable

    def test_everybody_connects_to_one_plane(self, join: Join) -> None:
        with ThreadPoolExecutor(6) as threads:
            clients = list(threads.map(lambda _: join(), range(6)))
        for at, client in enumerate(clients):
            client.register_partition(f"of-{at}", ["tokens"], ["train"])
        assert all(len(client.stats()) == 6 for client in clients)

    def test_rewind_gives_back_what_no_checkpoint_covers(self, plane: DataPlaneClient, join: Join) -> None:
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

    def test_a_put_that_says_its_epoch(self, plane: DataPlaneClient, join: Join) -> None:
        """What old weights made is refused, whichever thread of a client was refused before."""
        producer = join(attach)
        old = producer.epoch(P)
        plane.rewind(P, "train", 0)
        assert (old, producer.epoch(P), plane.epoch(P)) == (0, 1, 1)
        for one in (producer, producer, plane):  # also at the client that rewound
            with pytest.raises(EpochError):
                one.put_samples(P, ["s-0"], {"tokens": tokens(["s-0"])}, epoch=old)
        with pytest.raises(EpochError):  # those refusals, and the look, said nothing of its other threads
            producer.put_samples(P, ["s-0"], {"tokens": tokens(["s-0"])})
        fresh = producer.epoch(P)
        put = kv_first_write(producer, P, ["s-0"], {"tokens": tokens(["s-0"])}, epoch=fresh)
        assert put.epoch == 1
        with pytest.raises(EpochError):
            write_columns(producer, put, {"reward": np.zeros(1)}, epoch=old)
        write_columns(producer, put, {"reward": np.zeros(1)}, epoch=fresh)

    def test_an_epoch_is_of_one_life_of_a_partition(self, plane: DataPlaneClient, join: Join) -> None:
        """A partition that is deleted and made again takes nothing of the former one's later epochs."""
        plane.rewind(P, "train", 0)
        producer = join(attach)
        producer.put_samples(P, ["s-0"], {"tokens": tokens(["s-0"])})
        plane.delete_partition(P)
        plane.register_partition(P, ["tokens"], ["train"])
        with pytest.raises(EpochError, match="made again"):
            producer.put_samples(P, ["s-0"], {"tokens": tokens(["s-0"])})
        producer.put_samples(P, ["s-0"], {"tokens": tokens(["s-0"])})

    def test_registering_again(self, plane: DataPlaneClient) -> None:
        plane.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        with pytest.raises(SpecError):
            plane.register_partition(P, ["tokens"], ["train", "judge"])

    def test_a_sealed_partition_ends(self, plane: DataPlaneClient, begin: Begin) -> None:
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
        waiting = begin(join(attach).claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        plane.delete_partition(P)
        with pytest.raises(UnknownPartitionError):
            waiting.result(PATIENCE_S)
        with pytest.raises(UnknownPartitionError):
            plane.put_samples(P, ["s-1"], {"tokens": tokens(["s-1"])})

    def test_after_close(self, plane: DataPlaneClient, join: Join) -> None:
        """Every call says that the client is closed; closing again is fine."""
        put = plane.put_samples(P, named(1), {"tokens": tokens(named(1))})
        other = join()
        other.close()
        other.close()
        for call in (
            other.stats,
            lambda: other.get_data(put),
            lambda: other.put_samples(P, ["x"], {"tokens": tokens(named(1))}),
            lambda: other.claim_meta(P, "train", ["tokens"], 1),
            lambda: other.register_partition("q", ["a"], ["b"]),
        ):
            with pytest.raises(ClosedError):
                call()
        assert plane.stats()[P]["produced"] == 1

    def test_how_long_puts_and_claims_take(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """Each that got what it wanted counts once, in what every client sees; waiting is counted apart, too."""
        other = join(attach)
        for first in range(3):
            plane.put_samples(P, [f"s-{first}"], {"tokens": tokens([f"s-{first}"])})
        plane.ack(plane.claim_meta(P, "train", ["tokens"], 2))
        for timeout_s in (0, 0.001):
            with pytest.raises(ClaimTimeoutError):
                plane.claim_meta(P, "train", ["tokens"], 9, timeout_s=timeout_s)
        waiting = begin(plane.claim_meta, P, "judge", ["tokens"], 4, timeout_s=None)
        plane.put_samples(P, named(1, 3), {"tokens": tokens(named(1, 3))})
        waiting.result(PATIENCE_S)
        found = other.stats()[P]
        assert [count_of(found[name]) for name in ("put_latency", "put_wait")] == [4, 4]
        assert found["put_wait"]["sum"] == 0.0
        assert found["put_latency"]["sum"] > 0.0
        train, judge = found["tasks"]["train"], found["tasks"]["judge"]
        for task in (train, judge):
            assert [count_of(task[name]) for name in ("claim_latency", "claim_wait")] == [1, 1]
            assert task["claim_wait"]["sum"] <= task["claim_latency"]["sum"]
        assert train["claim_wait"]["sum"] == 0.0
        assert judge["claim_wait"]["sum"] > 0.0


class DataPlaneSuite(ClaimsSuite, BatchesSuite, LifeSuite):
    """P1 to P15, through the client only. ``url`` is the URL of the plane.

    Attributes:
        durable: whether the plane reports that it outlives its processes.
    """


def count_of(histogram: dict[str, Any]) -> int:
    """The number of values in a histogram."""
    assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
    return sum(histogram["counts"])
