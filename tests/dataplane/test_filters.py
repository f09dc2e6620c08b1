"""Filters: exact, disjoint and never guessing (P6), and the counts of their drops."""

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


@st.composite
def versions_and_groups(draw: st.DrawFn) -> tuple[list[int], int, list[str] | None]:
    current = draw(st.integers(0, 20))
    versions = draw(st.lists(st.integers(0, current), max_size=20))
    size = len(versions)
    return versions, current, draw(st.none() | st.lists(st.sampled_from("abcd"), min_size=size, max_size=size))


@given(versions_and_groups(), st.integers(0, 6))
def test_staleness_is_exact_and_disjoint(drawn: tuple[list[int], int, list[str] | None], most: int) -> None:
    versions, current, groups = drawn
    meta = batch(versions, groups, extra_info={"step": 1})
    keep, drop = StalenessFilter(most).split(meta, current_weight_version=current)
    units = groups or [str(at) for at in range(len(versions))]
    stale = {unit for unit, one in zip(units, versions, strict=True) if current - one > most}
    places = [at for at, unit in enumerate(units) if unit not in stale]
    assert keep == meta.subset(places)
    assert Counter(ids(keep)) + Counter(ids(drop)) == Counter(ids(meta))
    assert drop == meta.drop(keep.sample_ids)
    for part in (keep, drop):  # both are fresh
        part.extra_info["step"] = 2  # type: ignore[index]
        for tags in part.tags or ():
            tags["reward"] = -1  # type: ignore[index]
    assert meta == batch(versions, groups, extra_info={"step": 1})


@pytest.mark.parametrize("version", [None, 3.0, True, "3", np.float32(3), np.bool_(True), float("nan")])
def test_a_version_that_is_no_integer_is_refused(version: Any) -> None:
    with pytest.raises(TagError, match="s1"):
        StalenessFilter(5).split(batch([1, version]), current_weight_version=3)
    with pytest.raises(TagError):
        StalenessFilter(5).split(batch([1]), current_weight_version=version)


def test_missing_state_and_tags_are_refused() -> None:
    with pytest.raises(TagError, match="'s1' has weight_version 4, but the current version is 3"):
        StalenessFilter(5).split(batch([3, 4]), current_weight_version=np.int64(3))
    with pytest.raises(TagError, match="current_weight_version="):
        StalenessFilter(5).split(batch([1]))
    with pytest.raises(TagError, match="1 tags for 2 samples"):
        BatchMeta("rollouts", ("a", "b"), tags=({"weight_version": 1},))
    bare = BatchMeta("rollouts", ("a", "b"))
    partly = BatchMeta("rollouts", ("a", "b"), tags=({"weight_version": 1, "reward": 1}, {}))
    for one in (StalenessFilter(1), TagFilter(Tag("reward") > 0)):
        for meta, message in ((bare, "no tags"), (partly, "missing for 'b'")):
            with pytest.raises(TagError, match=message):
                one.split(meta, current_weight_version=1)


@pytest.mark.parametrize("most", [-1, 1.0, None, True, "1"])
def test_a_limit_that_makes_no_sense_is_refused(most: Any) -> None:
    with pytest.raises(SpecError, match="max_staleness"):
        StalenessFilter(most)


def test_an_empty_batch_gives_two_empty_ones() -> None:
    for one in (StalenessFilter(1), TagFilter(Tag("reward") > 0), All()):
        for meta in (batch([]), BatchMeta("rollouts", (), ("tokens", "reward"), "train")):
            for part in one.split(meta, current_weight_version=1):
                assert (part.size, part.fields, part.task_name) == (0, ("tokens", "reward"), "train")


def test_a_tag_filter_keeps_matches() -> None:
    keep, drop = TagFilter((Tag("reward") >= 0.1) & ~(Tag("weight_version") == 2)).split(batch([1, 2, 3]))
    assert (ids(keep), ids(drop)) == (["s2"], ["s0", "s1"])
    with pytest.raises(TagError, match="can't be compared"):
        TagFilter(Tag("reward") > "high").split(batch([1]))
    with pytest.raises(TagError, match="is None"):
        TagFilter(Tag("weight_version") > 1).split(batch([None]))
    with pytest.raises(SpecError, match="not a predicate"):
        TagFilter(lambda tags: True)  # type: ignore[arg-type]


class Shorter(BaseRolloutFilter):
    """A user's filter, which takes one name of the state."""

    def reasons(self, meta: BatchMeta, *, most: int = 0, **state: Any) -> list[str | None]:
        return ["long" if length > most else None for length in meta.sequence_lengths or ()]


@given(versions_and_groups(), st.integers(0, 3), st.integers(0, 20))
def test_all_is_one_filter_after_the_other(drawn: tuple[list[int], int, Any], most: int, length: int) -> None:
    versions, current, _ = drawn
    state = {"current_weight_version": current, "most": length}
    counts = DropCounts()
    stale, shorter = StalenessFilter(most), Shorter()
    kept = shorter.split(stale.split(batch(versions), **state)[0], **state)[0]
    assert All(stale, shorter, counts=counts).split(batch(versions), **state)[0] == kept
    assert counts.reasons.get("stale", 0) == stale.split(batch(versions), **state)[1].size  # the first reason counts


def test_all_takes_only_filters() -> None:
    with pytest.raises(SpecError, match="not a filter"):
        All(Tag("reward") > 0)  # type: ignore[arg-type]


def test_drops_are_counted_by_reason_age_and_length() -> None:
    counts = DropCounts()
    one = StalenessFilter(1, counts=counts)
    one.split(batch([5, 4, 3, 1], lengths=(100, 128, 900, 1000)), current_weight_version=5)
    one.split(batch([5, 5, 1], groups=["a", "b", "b"], lengths=(0, 1, 2)), current_weight_version=5)
    assert counts.reasons == {"stale": 3, "group": 1}
    assert str(counts).splitlines() == [
        "         samples  mean age  mean length",
        "kept           3       0.3         76.0",
        "dropped        4       2.5        475.8",
        "  group        1       0.0          1.0",
        "  stale        3       3.3        634.0",
        "",
        "age  kept  dropped",
        "0       2        1",
        "1       1        0",
        "2       0        1",
        "4       0        2",
        "",
        "length from  kept  dropped",
        "0               1        0",
        "1               0        1",
        "2               0        1",
        "64              1        0",
        "128             1        0",
        "512             0        2",
    ]
    assert counts.plain()["dropped"]["group"]["lengths"] == {"1": 1}


ROWS = st.lists(st.tuples(st.sampled_from([None, "stale", "group"]), st.integers(0, 9), st.integers(0, 99)))


@given(ROWS)
def test_merged_counts_are_the_counts_of_all(rows: list[tuple[str | None, int, int]]) -> None:
    whole, first, second = DropCounts(), DropCounts(), DropCounts()
    for counts, part in ((whole, rows), (first, rows[::2]), (second, rows[1::2])):
        counts.add([row[0] for row in part], [row[1] for row in part], [row[2] for row in part])
    assert first + second == whole
    assert (first + second).kept is not first.kept
    assert whole.kept.samples + whole.all_dropped.samples == len(rows)
