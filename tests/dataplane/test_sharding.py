"""Sharding: every sample once, balanced, in micro-batches that fit (P7, P9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.dataplane.errors import SampleError, SpecError
from tunegym.dataplane.model import BatchMeta
from tunegym.dataplane.sharding import Shard, shard_meta_for_dp

LENGTHS = st.lists(st.integers(0, 300), max_size=60)
BALANCE = st.sampled_from(["tokens", "count"])


def batch(lengths: Sequence[int], groups: Sequence[str] | None = None) -> BatchMeta:
    size = len(lengths)
    return BatchMeta(
        "rollouts",
        tuple(f"s{at}" for at in range(size)),
        ("tokens",),
        "train",
        sequence_lengths=tuple(lengths),
        tags=tuple({"place": at} for at in range(size)),
        group_ids=None if groups is None else tuple(groups),
        leases=tuple(range(100, 100 + size)),
    )


def check(meta: BatchMeta, shards: tuple[Shard, ...], inverse: np.ndarray) -> None:
    """Shards are complete, aligned and reversible."""
    assert Counter(one for shard in shards for one in shard.meta.sample_ids) == Counter(meta.sample_ids)
    assert BatchMeta.concat([shard.meta for shard in shards]).subset(inverse) == meta
    for shard in shards:
        assert BatchMeta.concat(shard.micro_batches) == shard.meta
        assert [one["place"] for one in shard.meta.tags or ()] == [int(one[1:]) for one in shard.meta.sample_ids]
    assert len({len(shard.micro_batches) for shard in shards}) == 1
    assert {shard.pad_to for shard in shards} == {max(meta.sequence_lengths or (), default=0)}


@given(LENGTHS, st.integers(1, 9), BALANCE)
def test_every_sample_is_in_one_balanced_shard(lengths: list[int], ranks: int, balance: Any) -> None:
    meta = batch(lengths)
    if len(lengths) < ranks:
        with pytest.raises(SampleError, match=f"too few for {ranks} ranks"):
            shard_meta_for_dp(meta, ranks, balance)
    shards, inverse = shard_meta_for_dp(meta, ranks, balance, allow_empty=True)
    assert len(shards) == ranks
    check(meta, shards, inverse)
    assert shards == shard_meta_for_dp(meta, ranks, balance, allow_empty=True)[0]
    assert len(lengths) < ranks or all(shard.size for shard in shards)
    sizes, tokens = [shard.size for shard in shards], [shard.tokens or 0 for shard in shards]
    longest = max(lengths, default=0)
    assert max(tokens) - min(tokens) <= longest
    if balance == "count":
        assert max(sizes) - min(sizes) <= 1
    elif lengths:
        assert max(tokens) <= 2 * max(sum(lengths) / ranks, longest)


def test_repeated_samples_stay_repeated() -> None:
    meta = batch([5, 6, 7]).subset([0, 0, 1, 2])
    shards, inverse = shard_meta_for_dp(meta, 2)
    found = [one for shard in shards for one in shard.meta.sample_ids]
    assert [found[at] for at in inverse] == ["s0", "s0", "s1", "s2"]


def test_pad_to_is_a_common_multiple() -> None:
    for multiple in (64, np.int64(64)):
        shards, _ = shard_meta_for_dp(batch([10, 65, 3]), 3, pad_to_multiple=multiple)  # type: ignore[arg-type]
        assert [shard.pad_to for shard in shards] == [128] * 3
        assert {type(shard.pad_to) for shard in shards} == {int}


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=5), min_size=1, max_size=20),
    st.integers(1, 5),
    BALANCE,
    st.randoms(use_true_random=False),
)
def test_a_group_is_on_one_rank(drawn: list[list[int]], ranks: int, balance: Any, random: Any) -> None:
    rows = [(length, f"g{at}") for at, group in enumerate(drawn) for length in group]
    random.shuffle(rows)
    meta = batch([row[0] for row in rows], [row[1] for row in rows])
    shards, inverse = shard_meta_for_dp(meta, ranks, balance, max_tokens=150, allow_empty=True)
    check(meta, shards, inverse)
    assert sum(len(set(shard.meta.group_ids or ())) for shard in shards) == len(drawn)
    sizes = [shard.size for shard in shards]
    if balance == "count":
        assert max(sizes) - min(sizes) <= max(map(len, drawn))


def test_consecutive_samples_are_groups_by_their_size() -> None:
    meta = batch([9, 1, 1, 1, 5, 5, 2, 2])
    shards, inverse = shard_meta_for_dp(meta, 2, group_size=2)
    check(meta, shards, inverse)
    for shard in shards:
        places = {int(one[1:]) for one in shard.meta.sample_ids}
        assert {place ^ 1 for place in places} == places


def cost_of(lengths: Sequence[int], cost: str) -> int:
    return max(lengths, default=0) * len(lengths) if cost == "padded" else sum(lengths)


@given(LENGTHS, st.integers(1, 6), BALANCE, st.sampled_from(["sum", "padded"]), st.integers(300, 900))
def test_micro_batches_fit(lengths: list[int], ranks: int, balance: Any, cost: Any, most: int) -> None:
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


def test_a_rank_with_few_long_samples_gets_others() -> None:
    """By tokens one rank has one sample, and the other needs three micro-batches."""
    shards, _ = shard_meta_for_dp(batch([100, 51, 51]), 2, max_tokens=100, allow_empty=True)
    assert sorted(part.size for shard in shards for part in shard.micro_batches) == [0, 1, 1, 1]
    shards, _ = shard_meta_for_dp(batch([100, 40, 40, 20]), 2, max_tokens=100, cost="padded")
    assert [shard.size for shard in shards] == [2, 2]


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


@pytest.mark.parametrize(
    ("lengths", "arguments", "error", "message"),
    [
        ([1] * 8, {"dp_world": 2, "group_size": 3}, SampleError, "into groups of 3"),
        ([1] * 8, {"dp_world": 5, "group_size": 2}, SampleError, "4 groups are too few for 5 ranks"),
        ([5, 101], {"max_tokens": 100}, SampleError, "'s1' has 101 tokens, but max_tokens is 100"),
        ([5, 99], {"max_tokens": 100, "cost": "padded", "pad_to_multiple": 64}, SampleError, "'s1' has 128 tokens"),
        ([100, 51, 51], {"dp_world": 2, "max_tokens": 100}, SampleError, "3 samples are too few"),
        ([1], {"dp_world": 0}, SpecError, "dp_world is 0"),
        ([1], {"balance": "words"}, SpecError, "balance is 'words'"),
    ],
)
def test_refused(lengths: list[int], arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        shard_meta_for_dp(batch(lengths), **{"dp_world": 1, **arguments})
