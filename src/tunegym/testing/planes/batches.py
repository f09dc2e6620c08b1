"""Batches: tags, fields, columns, filters, shards and clears (P4 to P10)."""

# ruff: noqa: D102 - the name of a test says what it checks

from __future__ import annotations

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tunegym.dataplane import (
    BatchMeta,
    DataPlaneClient,
    StalenessFilter,
    Tag,
    attach,
    read_columns,
    shard_meta_for_dp,
)
from tunegym.dataplane.errors import (
    DataPlaneError,
    FieldError,
    LeaseLostError,
    SampleError,
)
from tunegym.testing.planes import Join, P, PlaneFixtures, named, tokens


class BatchesSuite(PlaneFixtures):
    """P4 to P10."""

    def test_tags_travel(self, plane: DataPlaneClient) -> None:
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

    def test_a_read_names_its_fields(self, plane: DataPlaneClient) -> None:
        put = plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        assert list(plane.get_data(put)) == ["tokens"]
        for call in (lambda: plane.get_samples(put, []), lambda: plane.get_data(put.with_fields([]))):
            with pytest.raises(FieldError, match="no field is named"):
                call()

    def test_filter_shard_and_read_a_claim(self, plane: DataPlaneClient) -> None:
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

    def test_what_is_cleared_or_not_produced_cant_be_read(self, plane: DataPlaneClient) -> None:
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
