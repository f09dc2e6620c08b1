"""Batches keep what belongs to each sample (P4), through filters (P6) and shards (P7, P9)."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.dataplane import (
    All,
    BaseRolloutFilter,
    BatchMeta,
    DropCounts,
    PartitionSpec,
    Shard,
    StalenessFilter,
    Tag,
    TagFilter,
    shard_meta_for_dp,
)
from tunegym.dataplane.errors import SampleError, SpecError, TagError

PER_SAMPLE = ("sequence_lengths", "tags", "group_ids", "leases")


def batch(numbers: Sequence[int], having: Collection[str] = PER_SAMPLE, **more: Any) -> BatchMeta:
    """Samples of which every value tells the number."""
    values: dict[str, Any] = {
        "sequence_lengths": tuple(numbers),
        "tags": tuple({"number": number} for number in numbers),
        "group_ids": tuple(f"g{number}" for number in numbers),
        "leases": tuple(numbers),
    }
    given = {"fields": ("tokens",), "task_name": "train", **{name: values[name] for name in having}, **more}
    return BatchMeta("rollouts", tuple(f"s{number}" for number in numbers), **given)


@given(st.integers(0, 12), st.frozensets(st.sampled_from(PER_SAMPLE)), st.data())
def test_every_operation_keeps_the_values_of_a_sample_together(size: int, having: Any, data: st.DataObject) -> None:
    def of(numbers: Sequence[int]) -> BatchMeta:
        return batch(numbers, having, epoch=3)

    numbers, meta = range(size), of(range(size))
    places = data.draw(st.permutations(numbers))[: data.draw(st.integers(0, size))]
    start, stop = data.draw(st.tuples(*[st.none() | st.integers(-15, 15)] * 2))
    cut, make = data.draw(st.integers(0, size)), data.draw(st.sampled_from([list, tuple, np.array]))
    mask = np.isin(numbers, places)
    assert meta.subset(make(places)) == of(places)
    assert meta.subset(mask.tolist() if size else mask) == of([one for one in numbers if one in places])
    assert meta.drop(f"s{one}" for one in places) == of([one for one in numbers if one not in places])
    assert meta.slice(start, stop) == of(numbers[start:stop])
    parts = [meta.slice(cut), meta.slice(0, 0), meta.slice(0, cut)]
    assert BatchMeta.concat(parts) == of([*numbers[cut:], *numbers[:cut]])
    assert pickle.loads(pickle.dumps(meta.with_fields(["a"]))) == replace(meta, fields=("a",))
    for stamp in ({"stamp": np.int64(7)}, [{"stamp": 7}] * size):
        stamped = meta.stamp_tags(stamp)
        assert replace(stamped, tags=meta.tags) == meta == of(numbers)
        assert stamped.tags == tuple({**one, "stamp": 7} for one in meta.tags or ({},) * size)
        assert {type(one["stamp"]) for one in stamped.tags} <= {int}
    assert (meta.size, len(meta), f"{size} samples" in repr(meta)) == (size, size, True)


@pytest.mark.parametrize("places", [[0.5], [[0]], ["s0"], [None], 3, [2], [-3], [True], [True, False, True]])
def test_wrong_places_are_refused(places: Any) -> None:
    with pytest.raises(SampleError):
        batch([0, 1]).subset(places)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "no batch"),
        ([batch([0]), batch([0])], "twice"),
        ([batch([0]), BatchMeta("other", ("x",), ("tokens",), "train")], "different partition_ids"),
        ([batch([0]), batch([1], task_name="score")], "different task_names"),
        ([batch([0]), batch([5], fields=("reward",))], "different fields"),
        ([batch([0]), batch([5], ["tags"])], "some don't"),
    ],
)
def test_batches_that_do_not_belong_together_are_refused(parts: list[BatchMeta], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        BatchMeta.concat(parts)


def test_joined_batches_have_the_older_epoch() -> None:
    """A batch that belongs in part to weights that are gone must not pass as a batch of the current ones."""
    assert BatchMeta.concat([batch([1], epoch=4), batch([2], epoch=3)]).epoch == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_id": "a/b"}, "partition_id"),
        ({"fields": ()}, "fields is empty"),
        ({"fields": "tokens"}, "fields is 'tokens'"),
        ({"fields": ("a", "a")}, "twice"),
        ({"fields": tuple(f"f{at}" for at in range(65))}, "65 fields"),
        ({"tasks": ("a\n",)}, "not a name"),
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": True}, "capacity is True"),
        ({"group_size": 1.5}, "group_size is 1.5"),
        ({"group_size": 9, "capacity": 8}, "never fits"),
        ({"on_full": "wait"}, "on_full"),
    ],
)
def test_wrong_specs_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        PartitionSpec(**{"partition_id": "rollouts", "fields": ("tokens",), "tasks": ("train",), **arguments})


# filters ----------------------------------------------------------------------------------------------


def versioned(versions: Sequence[Any], groups: Sequence[str] | None = None, **more: Any) -> BatchMeta:
    """Samples of these versions, with rewards of 0, 0.1, 0.2 and lengths of 0, 1, 2, ..."""
    tags = tuple({"weight_version": version, "reward": at / 10} for at, version in enumerate(versions))
    return batch(range(len(versions)), ["sequence_lengths", "leases"], tags=tags, group_ids=groups, **more)


@st.composite
def versions_and_groups(draw: st.DrawFn) -> tuple[list[int], int, list[str] | None]:
    current = draw(st.integers(0, 20))
    versions = draw(st.lists(st.integers(0, current), max_size=20))
    size = len(versions)
    return versions, current, draw(st.none() | st.lists(st.sampled_from("abcd"), min_size=size, max_size=size))


@given(versions_and_groups(), st.integers(0, 6))
def test_filters_are_exact_and_drop_groups_whole(drawn: tuple[list[int], int, list[str] | None], most: int) -> None:
    """Each sample is in one of two fresh batches; one that is dropped takes its group along."""
    versions, current, groups = drawn
    meta = versioned(versions, groups, extra_info={"step": 1})
    units = groups or [str(at) for at in range(len(versions))]
    stale, tag = StalenessFilter(most), TagFilter(Tag("reward") > most / 10)
    old, poor = {at for at, one in enumerate(versions) if current - one > most}, set(range(most + 1))
    for one, unwanted in ((stale, old), (tag, poor), (All(stale, tag), old | poor), (All(), set())):
        keep, drop = one.split(meta, current_weight_version=current)
        broken = {unit for at, unit in enumerate(units) if at in unwanted}
        assert keep == meta.subset([at for at, unit in enumerate(units) if unit not in broken])
        assert drop == meta.drop(keep.sample_ids)
        for part in (keep, drop):
            part.extra_info["step"] = 2  # type: ignore[index]
            for tags in part.tags or ():
                tags["reward"] = -1  # type: ignore[index]
        assert meta == versioned(versions, groups, extra_info={"step": 1})


@pytest.mark.parametrize("version", [None, 3.0, True, "3", np.float32(3), np.bool_(True), float("nan")])
def test_a_version_that_is_no_integer_is_refused(version: Any) -> None:
    with pytest.raises(TagError, match="s1"):
        StalenessFilter(5).split(versioned([1, version]), current_weight_version=3)
    with pytest.raises(TagError):
        StalenessFilter(5).split(versioned([1]), current_weight_version=version)


def test_filters_never_guess() -> None:
    with pytest.raises(TagError, match="'s1' has weight_version 4, but the current version is 3"):
        StalenessFilter(5).split(versioned([3, 4]), current_weight_version=np.int64(3))
    with pytest.raises(TagError, match="current_weight_version="):
        StalenessFilter(5).split(versioned([1]))
    with pytest.raises(TagError, match="1 tags for 2 samples"):
        batch([0, 1], tags=({"weight_version": 1},))
    partly = batch([0, 1], tags=({"weight_version": 1, "reward": 1}, {}))
    for one in (StalenessFilter(1), TagFilter(Tag("reward") > 0)):
        for meta, message in ((batch([0, 1], []), "no tags"), (partly, "missing for 's1'")):
            with pytest.raises(TagError, match=message):
                one.split(meta, current_weight_version=1)
    for most in (-1, 1.0, None, True, "1"):
        with pytest.raises(SpecError, match="max_staleness"):
            StalenessFilter(most)  # type: ignore[arg-type]


def test_an_empty_batch_gives_two_empty_ones() -> None:
    for one in (StalenessFilter(1), TagFilter(Tag("reward") > 0), All()):
        for meta in (batch([]), batch([], [])):
            assert one.split(meta, current_weight_version=1) == (meta, meta)


def test_a_tag_filter_keeps_matches() -> None:
    keep, drop = TagFilter((Tag("reward") >= 0.1) & ~(Tag("weight_version") == 2)).split(versioned([1, 2, 3]))
    assert (keep.sample_ids, drop.sample_ids) == (("s2",), ("s0", "s1"))
    with pytest.raises(TagError, match="can't be compared"):
        TagFilter(Tag("reward") > "high").split(versioned([1]))
    with pytest.raises(TagError, match="is None"):
        TagFilter(Tag("weight_version") > 1).split(versioned([None]))
    with pytest.raises(SpecError, match="not a predicate"):
        TagFilter(lambda tags: True)  # type: ignore[arg-type]


class Shorter(BaseRolloutFilter):
    """A user's filter, which takes one name of the state."""

    def reasons(self, meta: BatchMeta, *, most: int = 0, **state: Any) -> list[str | None]:
        return ["long" if length > most else None for length in meta.sequence_lengths or ()]


@given(versions_and_groups(), st.integers(0, 3), st.integers(0, 20))
def test_all_is_one_filter_after_the_other(drawn: tuple[list[int], int, Any], most: int, length: int) -> None:
    meta, counts = versioned(drawn[0]), DropCounts()
    state = {"current_weight_version": drawn[1], "most": length}
    stale, shorter = StalenessFilter(most), Shorter()
    fresh, dropped = stale.split(meta, **state)
    assert All(stale, shorter, counts=counts).split(meta, **state)[0] == shorter.split(fresh, **state)[0]
    assert counts.reasons.get("stale", 0) == dropped.size  # the first reason counts
    with pytest.raises(SpecError, match="not a filter"):
        All(Tag("reward") > 0)  # type: ignore[arg-type]


def test_drops_are_counted_by_reason_age_and_length() -> None:
    counts = DropCounts()
    one = StalenessFilter(1, counts=counts)
    one.split(versioned([5, 4, 3, 1], sequence_lengths=(100, 128, 900, 1000)), current_weight_version=5)
    one.split(versioned([5, 5, 1], ["a", "b", "b"]), current_weight_version=5)
    assert counts.reasons == {"stale": 3, "group": 1}
    assert str(counts).splitlines()[:5] == [
        "         samples  mean age  mean length",
        "kept           3       0.3         76.0",
        "dropped        4       2.5        475.8",
        "  group        1       0.0          1.0",
        "  stale        3       3.3        634.0",
    ]
    stale = counts.plain()["dropped"]["stale"]
    assert (stale["ages"], stale["lengths"]) == ({"2": 1, "4": 2}, {"2": 1, "512": 2})


@given(st.lists(st.tuples(st.sampled_from([None, "stale", "group"]), st.integers(0, 9), st.integers(0, 99))))
def test_merged_counts_are_the_counts_of_all(rows: list[tuple[str | None, int, int]]) -> None:
    whole, first, second = DropCounts(), DropCounts(), DropCounts()
    for counts, part in ((whole, rows), (first, rows[::2]), (second, rows[1::2])):
        counts.add([row[0] for row in part], [row[1] for row in part], [row[2] for row in part])
    assert first + second == whole
    assert (first + second).kept is not first.kept
    assert whole.kept.samples + whole.all_dropped.samples == len(rows)


# shards -----------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(0, 300), max_size=60)
BALANCE = st.sampled_from(["tokens", "count"])


def long(lengths: Sequence[int], groups: Sequence[str] | None = None) -> BatchMeta:
    """Samples of these lengths."""
    return batch(range(len(lengths)), ["tags", "leases"], sequence_lengths=lengths, group_ids=groups)


def check(meta: BatchMeta, shards: tuple[Shard, ...], inverse: np.ndarray) -> None:
    """Shards are complete, aligned and reversible."""
    assert Counter(one for shard in shards for one in shard.meta.sample_ids) == Counter(meta.sample_ids)
    assert BatchMeta.concat([shard.meta for shard in shards]).subset(inverse) == meta
    for shard in shards:
        assert BatchMeta.concat(shard.micro_batches) == shard.meta
        assert [f"s{one['number']}" for one in shard.meta.tags or ()] == list(shard.meta.sample_ids)
    assert len({len(shard.micro_batches) for shard in shards}) == 1
    assert {shard.pad_to for shard in shards} == {max(meta.sequence_lengths or (), default=0)}


@given(LENGTHS, st.integers(1, 9), BALANCE)
def test_every_sample_is_in_one_balanced_shard(lengths: list[int], ranks: int, balance: Any) -> None:
    meta = long(lengths)
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


def test_shards_of_repeated_samples_have_one_padded_length() -> None:
    for multiple in (64, np.int64(64)):
        meta = long([10, 65, 3]).subset([0, 0, 1, 2])
        shards, inverse = shard_meta_for_dp(meta, 2, pad_to_multiple=multiple)  # type: ignore[arg-type]
        found = [one for shard in shards for one in shard.meta.sample_ids]
        assert [found[at] for at in inverse] == ["s0", "s0", "s1", "s2"]
        assert [(shard.pad_to, type(shard.pad_to)) for shard in shards] == [(128, int)] * 2


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=5), min_size=1, max_size=20),
    st.integers(1, 5),
    BALANCE,
    st.randoms(use_true_random=False),
)
def test_a_group_is_on_one_rank(drawn: list[list[int]], ranks: int, balance: Any, random: Any) -> None:
    rows = [(length, f"g{at}") for at, group in enumerate(drawn) for length in group]
    random.shuffle(rows)
    meta = long([row[0] for row in rows], [row[1] for row in rows])
    shards, inverse = shard_meta_for_dp(meta, ranks, balance, max_tokens=150, allow_empty=True)
    check(meta, shards, inverse)
    assert sum(len(set(shard.meta.group_ids or ())) for shard in shards) == len(drawn)
    sizes = [shard.size for shard in shards]
    if balance == "count":
        assert max(sizes) - min(sizes) <= max(map(len, drawn))


def test_consecutive_samples_are_groups_by_their_size() -> None:
    shards, _ = shard_meta_for_dp(long([9, 1, 1, 1, 5, 5, 2, 2]), 2, group_size=2)
    for shard in shards:
        places = {int(one[1:]) for one in shard.meta.sample_ids}
        assert {place ^ 1 for place in places} == places


@given(LENGTHS, st.integers(1, 6), BALANCE, st.sampled_from(["sum", "padded"]), st.integers(300, 900))
def test_micro_batches_fit(lengths: list[int], ranks: int, balance: Any, cost: Any, most: int) -> None:
    meta = long(lengths)
    try:
        shards, inverse = shard_meta_for_dp(meta, ranks, balance, most, cost=cost)
    except SampleError as error:
        assert "too few" in str(error)  # noqa: PT017
        shards, inverse = shard_meta_for_dp(meta, ranks, balance, most, allow_empty=True, cost=cost)
    else:
        assert all(part.size for shard in shards for part in shard.micro_batches)
    check(meta, shards, inverse)
    for shard in shards:
        parts = [part.sequence_lengths or () for part in shard.micro_batches]
        costs = [max(one, default=0) * len(one) if cost == "padded" else sum(one) for one in parts]
        assert max(costs, default=0) <= most
        assert costs == sorted(costs, reverse=True)


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

    (shard,), _ = shard_meta_for_dp(long(lengths), 1, max_tokens=most, cost="padded")
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
def test_wrong_shards_are_refused(lengths: list[int], arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        shard_meta_for_dp(long(lengths), **{"dp_world": 1, **arguments})
