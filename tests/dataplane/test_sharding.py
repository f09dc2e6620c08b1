from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.dataplane.errors import SampleError
from tunegym.dataplane.model import BatchMeta
from tunegym.dataplane.sharding import Shard, shard_meta_for_dp

LENGTHS = st.lists(st.integers(0, 300), max_size=60)


def batch(lengths: list[int] | None, groups: list[str] | None = None, size: int = 0) -> BatchMeta:
    size = size if lengths is None else len(lengths)
    return BatchMeta(
        "rollouts",
        tuple(f"s{at}" for at in range(size)),
        ("tokens",),
        "train",
        sequence_lengths=None if lengths is None else tuple(lengths),
        tags=tuple({"place": at} for at in range(size)),
        group_ids=None if groups is None else tuple(groups),
        leases=tuple(range(100, 100 + size)),
    )


def check(meta: BatchMeta, shards: tuple[Shard, ...], inverse: np.ndarray) -> None:
    """What holds for all shards: complete, aligned, and they lead back."""
    assert Counter(one for shard in shards for one in shard.meta.sample_ids) == Counter(meta.sample_ids)
    assert BatchMeta.concat([shard.meta for shard in shards]).subset(inverse) == meta
    outputs = np.concatenate([[int(one[1:]) for one in shard.meta.sample_ids] for shard in shards])
    assert outputs[inverse].tolist() == list(range(meta.size))
    for shard in shards:
        parts = shard.micro_batches
        assert BatchMeta.concat(parts) == shard.meta
        assert [one["place"] for one in shard.meta.tags or ()] == [int(one[1:]) for one in shard.meta.sample_ids]
    assert len({len(shard.micro_batches) for shard in shards}) == 1
    assert len({shard.pad_to for shard in shards}) == 1


# ranks ----------------------------------------------------------------------------------------------------


@given(LENGTHS, st.integers(1, 9), st.sampled_from(["tokens", "count"]))
def test_every_sample_is_in_one_shard(lengths: list[int], ranks: int, balance: Any) -> None:
    meta = batch(lengths)
    if len(lengths) < ranks:
        with pytest.raises(SampleError, match=f"too few for {ranks} ranks"):
            shard_meta_for_dp(meta, ranks, balance)
    shards, inverse = shard_meta_for_dp(meta, ranks, balance, allow_empty=True)
    assert len(shards) == ranks
    check(meta, shards, inverse)
    again, same = shard_meta_for_dp(meta, ranks, balance, allow_empty=True)
    assert shards == again
    assert inverse.tolist() == same.tolist()
    assert {shard.pad_to for shard in shards} == {max(lengths, default=0)}
    if len(lengths) >= ranks:
        assert all(shard.size for shard in shards)


@given(LENGTHS.filter(bool), st.integers(1, 9))
def test_tokens_are_balanced_within_the_bound(lengths: list[int], ranks: int) -> None:
    shards, _ = shard_meta_for_dp(batch(lengths), ranks, allow_empty=True)
    tokens = [shard.tokens or 0 for shard in shards]
    assert max(tokens) - min(tokens) <= max(lengths)
    least = max(sum(lengths) / ranks, *lengths)
    assert max(tokens) <= 2 * least


@given(LENGTHS.filter(bool), st.integers(1, 9))
def test_counts_are_equal_within_one(lengths: list[int], ranks: int) -> None:
    shards, _ = shard_meta_for_dp(batch(lengths), ranks, "count", allow_empty=True)
    sizes = [shard.size for shard in shards]
    tokens = [shard.tokens or 0 for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert max(tokens) - min(tokens) <= (max(lengths) if len(lengths) % ranks else max(lengths) - min(lengths))


def test_samples_that_are_there_twice_stay_twice() -> None:
    meta = batch([5, 6, 7]).subset([0, 0, 1, 2])
    shards, inverse = shard_meta_for_dp(meta, 2)
    found = [one for shard in shards for one in shard.meta.sample_ids]
    assert [found[at] for at in inverse] == ["s0", "s0", "s1", "s2"]


def test_pad_to_is_the_same_everywhere_and_a_multiple() -> None:
    shards, _ = shard_meta_for_dp(batch([10, 65, 3]), 3, pad_to_multiple=64)
    assert [shard.pad_to for shard in shards] == [128] * 3
    shards, _ = shard_meta_for_dp(batch([10, 65, 3]), 3, pad_to_multiple=np.int64(64))  # type: ignore[arg-type]
    assert {type(shard.pad_to) for shard in shards} == {int}


# groups ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=5), min_size=1, max_size=20),
    st.integers(1, 5),
    st.sampled_from(["tokens", "count"]),
    st.randoms(use_true_random=False),
)
def test_a_group_is_on_one_rank(drawn: list[list[int]], ranks: int, balance: Any, random: Any) -> None:
    rows = [(length, f"g{at}") for at, group in enumerate(drawn) for length in group]
    random.shuffle(rows)
    meta = batch([row[0] for row in rows], [row[1] for row in rows])
    shards, inverse = shard_meta_for_dp(meta, ranks, balance, max_tokens=150, allow_empty=True)
    check(meta, shards, inverse)
    where = [set(shard.meta.group_ids or ()) for shard in shards]
    assert sum(map(len, where)) == len(drawn)
    sizes = [shard.size for shard in shards]
    if balance == "count":
        assert max(sizes) - min(sizes) <= max(map(len, drawn))


def test_consecutive_samples_are_groups_by_their_size() -> None:
    meta = batch([9, 1, 1, 1, 5, 5, 2, 2])
    shards, inverse = shard_meta_for_dp(meta, 2, group_size=2)
    check(meta, shards, inverse)
    for shard in shards:
        places = [int(one[1:]) for one in shard.meta.sample_ids]
        assert {place ^ 1 for place in places} == set(places)
    with pytest.raises(SampleError, match="into groups of 3"):
        shard_meta_for_dp(meta, 2, group_size=3)
    with pytest.raises(SampleError, match="4 groups are too few for 5 ranks"):
        shard_meta_for_dp(meta, 5, group_size=2)


# micro-batches --------------------------------------------------------------------------------------------


@given(
    LENGTHS,
    st.integers(1, 6),
    st.sampled_from(["tokens", "count"]),
    st.sampled_from(["sum", "padded"]),
    st.integers(300, 900),
)
def test_micro_batches_fit_and_are_as_many_on_every_rank(
    lengths: list[int], ranks: int, balance: Any, cost: Any, most: int
) -> None:
    meta = batch(lengths)
    try:
        shards, inverse = shard_meta_for_dp(meta, ranks, balance, most, cost=cost)
    except SampleError as error:
        assert "too few" in str(error)  # noqa: PT017
        shards, inverse = shard_meta_for_dp(meta, ranks, balance, most, allow_empty=True, cost=cost)
    else:
        assert all(part.size for shard in shards for part in shard.micro_batches)
    check(meta, shards, inverse)
    for shard in shards:
        costs = [cost_of(part.sequence_lengths or (), cost) for part in shard.micro_batches]
        assert max(costs, default=0) <= most
        assert costs == sorted(costs, reverse=True)


def test_a_sample_that_is_too_long_is_named() -> None:
    with pytest.raises(SampleError, match="'s1' has 101 tokens, but max_tokens is 100"):
        shard_meta_for_dp(batch([5, 101]), 1, max_tokens=100)
    with pytest.raises(SampleError, match="'s1' has 128 tokens"):
        shard_meta_for_dp(batch([5, 99]), 1, max_tokens=100, cost="padded", pad_to_multiple=64)


def test_a_rank_with_few_long_samples_gets_others() -> None:
    """By tokens one rank has one sample, and the other needs three micro-batches."""
    meta = batch([100, 51, 51])
    with pytest.raises(SampleError, match="3 samples are too few"):
        shard_meta_for_dp(meta, 2, max_tokens=100)
    shards, _ = shard_meta_for_dp(meta, 2, max_tokens=100, allow_empty=True)
    assert sorted(part.size for shard in shards for part in shard.micro_batches) == [0, 1, 1, 1]
    meta = batch([100, 40, 40, 20])
    shards, inverse = shard_meta_for_dp(meta, 2, max_tokens=100, cost="padded")
    check(meta, shards, inverse)
    assert [shard.size for shard in shards] == [2, 2]


def cost_of(lengths: Sequence[int], cost: str) -> int:
    return max(lengths, default=0) * len(lengths) if cost == "padded" else sum(lengths)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(9, 20))
def test_padded_micro_batches_are_the_fewest(lengths: list[int], most: int) -> None:
    """Against all partitions of a small batch."""

    def best(left: list[int], bins: list[list[int]]) -> int:
        if not left:
            return len(bins)
        found = best(left[1:], [*bins, [left[0]]])
        for at, one in enumerate(bins):
            if max(left[0], *one) * (len(one) + 1) <= most:
                found = min(found, best(left[1:], [*bins[:at], [*one, left[0]], *bins[at + 1 :]]))
        return found

    (shard,), _ = shard_meta_for_dp(batch(lengths), 1, max_tokens=most, cost="padded")
    assert len(shard.micro_batches) == best(sorted(lengths, reverse=True), [])
