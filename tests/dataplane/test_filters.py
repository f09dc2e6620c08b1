from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.dataplane.errors import SpecError, TagError
from tunegym.dataplane.filters import All, BaseRolloutFilter, DropCounts, StalenessFilter, TagFilter
from tunegym.dataplane.model import BatchMeta
from tunegym.dataplane.predicate import Tag


def batch(versions: list[Any], groups: list[str] | None = None, **more: Any) -> BatchMeta:
    size = len(versions)
    return BatchMeta(
        "rollouts",
        tuple(f"s{at}" for at in range(size)),
        ("tokens", "reward"),
        "train",
        sequence_lengths=more.pop("lengths", tuple(range(10, 10 + size))),
        tags=tuple({"weight_version": version, "reward": at / 10} for at, version in enumerate(versions)),
        group_ids=groups,  # type: ignore[arg-type]
        leases=tuple(range(size)),
        **more,
    )


def ids(meta: BatchMeta) -> list[str]:
    return list(meta.sample_ids)


versions_and_current = st.integers(0, 20).flatmap(
    lambda current: st.tuples(st.lists(st.integers(0, current), max_size=20), st.just(current))
)


# staleness ------------------------------------------------------------------------------------------------


@given(versions_and_current, st.integers(0, 6))
def test_staleness_is_exact_and_disjoint(drawn: tuple[list[int], int], most: int) -> None:
    versions, current = drawn
    meta = batch(versions)
    keep, drop = StalenessFilter(most).split(meta, current_weight_version=current)
    assert Counter(ids(keep)) + Counter(ids(drop)) == Counter(ids(meta))
    assert ids(keep) == [f"s{at}" for at, one in enumerate(versions) if current - one <= most]
    for part in (keep, drop):
        assert (part.partition_id, part.task_name, part.fields) == ("rollouts", "train", ("tokens", "reward"))
        for at, sample in enumerate(part.sample_ids):
            place = int(sample[1:])
            assert part.tags is not None
            assert part.tags[at] == {"weight_version": versions[place], "reward": place / 10}
            assert part.sequence_lengths is not None
            assert part.sequence_lengths[at] == 10 + place
            assert part.leases is not None
            assert part.leases[at] == place


@given(
    versions_and_current.flatmap(
        lambda drawn: st.tuples(
            st.just(drawn),
            st.lists(st.sampled_from("abcd"), min_size=len(drawn[0]), max_size=len(drawn[0])),
        )
    ),
    st.integers(0, 6),
)
def test_a_group_is_kept_or_dropped_whole(drawn: tuple[tuple[list[int], int], list[str]], most: int) -> None:
    (versions, current), groups = drawn
    keep, drop = StalenessFilter(most).split(batch(versions, groups), current_weight_version=current)
    stale = {group for group, one in zip(groups, versions, strict=True) if current - one > most}
    assert set(keep.group_ids or ()) == set(groups) - stale
    assert set(drop.group_ids or ()) == stale
    assert keep.size + drop.size == len(versions)


@pytest.mark.parametrize("version", [None, 3.0, True, "3", np.float32(3), np.bool_(True), float("nan")])
def test_a_version_that_is_no_integer_is_refused(version: Any) -> None:
    with pytest.raises(TagError, match="s1"):
        StalenessFilter(5).split(batch([1, version]), current_weight_version=3)
    with pytest.raises(TagError):
        StalenessFilter(5).split(batch([1]), current_weight_version=version)


def test_a_version_above_the_current_one_is_refused() -> None:
    with pytest.raises(TagError, match="'s1' has weight_version 4, but the current version is 3"):
        StalenessFilter(5).split(batch([3, 4]), current_weight_version=3)


def test_without_the_current_version_nothing_is_said() -> None:
    with pytest.raises(TagError, match="current_weight_version="):
        StalenessFilter(5).split(batch([1]))


def test_missing_tags_are_refused() -> None:
    bare = BatchMeta("rollouts", ("a", "b"))
    for one in (StalenessFilter(1), TagFilter(Tag("reward") > 0)):
        with pytest.raises(TagError, match="no tags"):
            one.split(bare, current_weight_version=1)
        partly = BatchMeta("rollouts", ("a", "b"), tags=({"weight_version": 1, "reward": 1}, {}))
        with pytest.raises(TagError, match="missing for 'b'"):
            one.split(partly, current_weight_version=1)


def test_another_number_of_tags_is_refused() -> None:
    with pytest.raises(TagError, match="1 tags for 2 samples"):
        BatchMeta("rollouts", ("a", "b"), tags=({"weight_version": 1},))


@pytest.mark.parametrize("most", [-1, 1.0, None, True, "1"])
def test_a_limit_that_makes_no_sense_is_refused(most: Any) -> None:
    with pytest.raises(SpecError, match="max_staleness"):
        StalenessFilter(most)


def test_an_empty_batch_gives_two_empty_ones() -> None:
    for one in (StalenessFilter(1), TagFilter(Tag("reward") > 0), All()):
        for meta in (batch([]), BatchMeta("rollouts", (), ("tokens", "reward"), "train")):
            for part in one.split(meta, current_weight_version=1):
                assert (part.size, part.fields, part.task_name) == (0, ("tokens", "reward"), "train")


def test_both_parts_are_fresh() -> None:
    meta = batch([1, 2], extra_info={"step": 1})
    for part in StalenessFilter(9).split(meta, current_weight_version=3):
        assert part is not meta
        part.extra_info["step"] = 2  # type: ignore[index]
        for tags in part.tags or ():
            tags["reward"] = -1  # type: ignore[index]
    assert meta == batch([1, 2], extra_info={"step": 1})


# others ---------------------------------------------------------------------------------------------------


def test_tag_filter_keeps_what_the_predicate_wants() -> None:
    keep, drop = TagFilter((Tag("reward") >= 0.1) & ~(Tag("weight_version") == 2)).split(batch([1, 2, 3]))
    assert (ids(keep), ids(drop)) == (["s2"], ["s0", "s1"])


def test_tag_filter_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(TagError, match="can't be compared"):
        TagFilter(Tag("reward") > "high").split(batch([1]))
    with pytest.raises(TagError, match="is None"):
        TagFilter(Tag("weight_version") > 1).split(batch([None]))
    with pytest.raises(SpecError, match="not a predicate"):
        TagFilter(lambda tags: True)  # type: ignore[arg-type]


class Shorter(BaseRolloutFilter):
    """A filter of a user's own, which takes one thing of the state."""

    def reasons(self, meta: BatchMeta, *, most: int = 0, **state: Any) -> list[str | None]:
        return ["long" if length > most else None for length in meta.sequence_lengths or ()]


def test_all_keeps_what_all_keep_and_counts_the_first_reason() -> None:
    counts = DropCounts()
    both = All(StalenessFilter(1), Shorter(), TagFilter(Tag("reward") < 0.3, reason="lucky"), counts=counts)
    keep, drop = both.split(batch([1, 3, 3, 3, 1]), current_weight_version=3, most=12)
    assert (ids(keep), ids(drop)) == (["s1", "s2"], ["s0", "s3", "s4"])
    assert counts.reasons == {"stale": 2, "long": 1}
    with pytest.raises(SpecError, match="not a filter"):
        All(Tag("reward") > 0)  # type: ignore[arg-type]


@given(versions_and_current, st.integers(0, 3), st.integers(0, 20))
def test_all_is_one_filter_after_the_other(drawn: tuple[list[int], int], most: int, length: int) -> None:
    versions, current = drawn
    state = {"current_weight_version": current, "most": length}
    first = StalenessFilter(most).split(batch(versions), **state)[0]
    assert (
        All(StalenessFilter(most), Shorter()).split(batch(versions), **state)[0] == Shorter().split(first, **state)[0]
    )


# counts ---------------------------------------------------------------------------------------------------


def test_drops_are_counted_by_reason_age_and_length() -> None:
    counts = DropCounts()
    one = StalenessFilter(1, counts=counts)
    one.split(batch([5, 4, 3, 1], lengths=(100, 128, 900, 1000)), current_weight_version=5)
    one.split(batch([5, 5, 1], groups=["a", "b", "b"], lengths=(0, 1, 2)), current_weight_version=5)
    assert counts.reasons == {"stale": 3, "group": 1}
    assert counts.kept.ages == {0: 2, 1: 1}
    assert counts.kept.lengths == {64: 1, 128: 1, 0: 1}
    assert counts.dropped["stale"].ages == {2: 1, 4: 2}
    assert counts.dropped["stale"].lengths == {512: 2, 2: 1}
    assert counts.dropped["group"].ages == {0: 1}
    assert counts.kept.mean_length == 76
    assert counts.all_dropped.mean_length == 1903 / 4
    assert counts.dropped["stale"].mean_age == 10 / 3


@given(
    st.lists(st.tuples(st.sampled_from([None, "stale", "group"]), st.integers(0, 9), st.integers(0, 99)), max_size=20)
)
def test_counts_put_together_are_the_counts_of_all(rows: list[tuple[str | None, int, int]]) -> None:
    whole, first, second = DropCounts(), DropCounts(), DropCounts()
    for counts, part in ((whole, rows), (first, rows[::2]), (second, rows[1::2])):
        counts.add([row[0] for row in part], [row[1] for row in part], [row[2] for row in part])
    assert first + second == whole
    assert (first + second).kept is not first.kept
    total = whole.kept.samples + whole.all_dropped.samples
    assert total == len(rows)


def test_counts_print_as_a_table() -> None:
    counts = DropCounts()
    StalenessFilter(1, counts=counts).split(batch([5, 4, 1], lengths=(100, 200, 1000)), current_weight_version=5)
    assert str(counts).splitlines() == [
        "         samples  mean age  mean length",
        "kept           2       0.5        150.0",
        "dropped        1       4.0       1000.0",
        "  stale        1       4.0       1000.0",
        "",
        "age  kept  dropped",
        "0       1        0",
        "1       1        0",
        "4       0        1",
        "",
        "length from  kept  dropped",
        "64              1        0",
        "128             1        0",
        "512             0        1",
    ]
    assert "samples" in str(DropCounts())
