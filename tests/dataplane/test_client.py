"""The client's side of a call, the same for every backend: arguments that are refused, and the lengths of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tunegym.dataplane import BatchMeta, DataPlaneClient, Tag, connect, kv_first_write, write_columns
from tunegym.dataplane.errors import (
    DataPlaneError,
    FieldError,
    LeaseLostError,
    SampleError,
    SpecError,
    TagError,
    UnknownPartitionError,
)
from tunegym.testing.dataplane import P, named, tokens

Refused = tuple[type[DataPlaneError], Callable[[], Any]]
NO_NUMBERS: tuple[Any, ...] = (None, 1.5, math.nan, "2", True, [], 2**80)
NO_NAMES: tuple[Any, ...] = (None, 3, b"p", ["p"], "", "\ud800")


@pytest.fixture
def plane() -> Iterator[DataPlaneClient]:
    with connect("memory://client") as client:
        client.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        yield client


def puts(plane: DataPlaneClient) -> list[Refused]:
    """Puts that are wrong; there are samples already."""
    ids = named(2, 2)
    good = {"tokens": tokens(ids)}

    def put(sample_ids: Any = ids, fields: Any = good, partition_id: Any = P, **more: Any) -> Callable[[], Any]:
        return lambda: plane.put_samples(partition_id, sample_ids, fields, **more)

    refused: list[Refused] = [
        (DataPlaneError, put(fields={"nothing": tokens(ids)})),
        (SampleError, put(["s-2", "s-2"])),
        (FieldError, put(["s-2"])),
        (FieldError, put(fields={"tokens": np.zeros((2, 3))})),
        (FieldError, put(fields={"tokens": np.zeros((2, 3, 3), dtype=np.int64)})),
        (UnknownPartitionError, put(partition_id="elsewhere")),
    ]
    refused += [(SampleError, put(one)) for one in (None, 3, "s2", b"s2", {"s-2": 1, "s-3": 2}, ["s-2", ""])]
    refused += [(SampleError, put(["s-2", one])) for one in (3, None, b"x", "\ud800")]
    refused += [(FieldError, put(fields=one)) for one in (None, {}, [tokens(ids)], {"tokens": None}, {"tokens": 3})]
    refused += [(SpecError, put(fields={3: tokens(ids)})), *((SpecError, put(partition_id=one)) for one in NO_NAMES)]
    wrong_tags: tuple[Any, ...] = (
        [{}],
        3,
        "ab",
        {"a": [1]},
        {"a": math.nan},
        {"a": math.inf},
        {3: 1},
        {"a": "\ud800"},
        {"a": 2**70},
    )
    refused += [(TagError, put(tags=one)) for one in wrong_tags]
    refused += [(SampleError, put(group_ids=one)) for one in (3, "ab", ["a"], [1, 2], ["a", "b"])]
    refused += [(SampleError, put(lengths=one)) for one in (3, [1], [1, 2, 3], [1, -1], [1, 1.5], [1, 2**31], "ab")]
    refused += [(SpecError, put(epoch=one)) for one in (-1, 0.5, "0", True, 2**80)]
    return refused + [(SpecError, put(timeout_s=one)) for one in (-1, math.nan, "1", True)]


def claims(plane: DataPlaneClient) -> list[Refused]:
    """Claims that are wrong."""

    def claim(**more: Any) -> Callable[[], Any]:
        given = {"partition_id": P, "task_name": "train", "required_fields": ["tokens"], "batch_size": 2}
        return lambda: plane.claim_meta(**{**given, "timeout_s": 0, **more})

    refused: list[Refused] = [
        (SpecError, claim(task_name="nobody")),
        (SpecError, claim(required_fields=["nothing"])),
        (SpecError, claim(min_batch=3)),
        (UnknownPartitionError, claim(partition_id="elsewhere")),
        (TagError, claim(where=Tag("version") < "text")),
    ]
    for name, wrong in (
        ("batch_size", (*NO_NUMBERS, 0, -1)),
        ("min_batch", (*NO_NUMBERS[1:], 0, -1)),
        ("timeout_s", (-1, math.nan, "1", True)),
        ("required_fields", (None, 3, "tokens", [3])),
        ("where", ("version > 3", True, Tag("version"))),
        ("task_name", NO_NAMES),
        ("partition_id", NO_NAMES),
    ):
        refused += [(SpecError, claim(**{name: one})) for one in wrong]
    return refused


def others(plane: DataPlaneClient, put: BatchMeta, claimed: BatchMeta) -> list[Refused]:
    """Other calls that are wrong, with a batch that was put, and one that is claimed."""
    given: Any = plane  # arguments of other types than are allowed are the point
    refused: list[Refused] = [
        (UnknownPartitionError, lambda: plane.check_consumption_status("elsewhere", ["train"])),
        (UnknownPartitionError, lambda: plane.delete_partition("elsewhere")),
        (UnknownPartitionError, lambda: plane.seal("elsewhere")),
        (UnknownPartitionError, lambda: plane.epoch("elsewhere")),
        (SpecError, lambda: given.epoch(None)),
        (SampleError, lambda: plane.clear_samples(P, ["s-0", "nobody"])),
        (SampleError, lambda: given.clear_samples(P, "s-0")),
        (SpecError, lambda: given.clear_samples(P, ["s-0"], reason=3)),
        (SpecError, lambda: given.get_samples(put, "tokens")),
        (SpecError, lambda: given.get_samples(put, None)),
        (SpecError, lambda: plane.get_samples(put.slice(0, 0), ["nothing"])),
        (SpecError, lambda: given.check_consumption_status(P, "train")),
        (SpecError, lambda: given.check_consumption_status(P, None)),
        (SpecError, lambda: plane.check_consumption_status(P, ["nobody"])),
        (SpecError, lambda: given.register_partition("new", "ab", ["train"])),
        (SpecError, lambda: given.register_partition("new", ["a"], None)),
        (SpecError, lambda: given.register_partition("new", ["a"], ["train"], on_full="wait")),
    ]
    refused += [(SpecError, lambda one=one: given.ack(claimed, version=one)) for one in NO_NUMBERS[1:]]
    refused += [(SpecError, lambda one=one: given.commit(P, "train", one)) for one in NO_NUMBERS]
    refused += [(SpecError, lambda one=one: given.rewind(P, "train", one)) for one in NO_NUMBERS]
    for wrong in (*NO_NUMBERS[1:], 0, -1):
        refused += [
            (SpecError, lambda wrong=wrong: given.register_partition("new", ["a"], ["train"], capacity=wrong)),
            (SpecError, lambda wrong=wrong: given.register_partition("new", ["a"], ["train"], group_size=wrong)),
        ]
    for call in (given.ack, given.release, given.extend):
        refused.append((LeaseLostError, lambda call=call: call(put)))
    for call in (given.ack, given.release, given.extend, given.write_tags, given.get_data):
        refused.append((SpecError, lambda call=call: call(None)))
    return refused


def test_what_is_refused_leaves_nothing(plane: DataPlaneClient) -> None:
    """What is refused leaves nothing."""
    put = plane.put_samples(P, named(2), {"tokens": tokens(named(2))}, tags={"version": 1})
    claimed = plane.claim_meta(P, "judge", ["tokens"], 1)
    plane.stats()
    before = {name: value for name, value in plane.stats()[P].items() if name != "tasks"}
    for error, call in [*puts(plane), *claims(plane), *others(plane, put, claimed)]:
        with pytest.raises(error) as told:
            call()
        assert told.value.message
    assert set(plane.stats()) == {P}
    after = {name: value for name, value in plane.stats()[P].items() if name != "tasks"}
    assert after == before
    assert [one["leased"] for one in plane.stats()[P]["tasks"].values()] == [0, 1]
    plane.ack(claimed)
    plane.put_samples(P, named(2, 2), {"tokens": tokens(named(2, 2))})
    assert not plane.check_consumption_status(P, ["train"])
    plane.clear_samples(P, named(4))
    assert plane.check_consumption_status(P, ["train", "judge"])


def test_what_numpy_gives_is_fine(plane: DataPlaneClient) -> None:
    """Integers and texts of numpy are integers and texts; an empty batch is one."""
    plane.put_samples(P, np.array(["a", "b"]), {"tokens": tokens(named(2))})  # type: ignore[arg-type]
    claimed = plane.claim_meta(P, "train", ["tokens"], np.int64(2), min_batch=np.int32(1))  # type: ignore[arg-type]
    assert claimed.sample_ids == ("a", "b")
    plane.ack(claimed, version=np.int64(3))  # type: ignore[arg-type]
    assert plane.commit(P, "train", np.int64(3)) == 2  # type: ignore[arg-type]
    empty = plane.put_samples(P, [], {"tokens": []})
    assert (empty.size, empty.fields) == (0, ("tokens",))
    assert len(plane.get_data(empty)["tokens"]) == 0
    assert plane.clear_samples(P, []) == 0


def test_a_write_back_leaves_the_lengths(plane: DataPlaneClient) -> None:
    """What a stage adds has rows of its own; the next stage shards by the lengths of the first put."""
    plane.register_partition("lengths", ["tokens", "values", "score"], ["judge", "train"])
    plane.put_samples("lengths", ["a", "b"], {"tokens": [np.arange(3), np.arange(5)]})
    plane.put_samples("lengths", ["c"], {"score": np.zeros(1)})
    seen = plane.claim_meta("lengths", "judge", ["tokens"], 2)
    written = write_columns(plane, seen, {"values": np.zeros((2, 1))})
    assert written.sequence_lengths == seen.sequence_lengths == (3, 5)
    claimed = plane.claim_meta("lengths", "train", ["tokens", "values"], 2)
    assert claimed.sequence_lengths == (3, 5)
    plane.release(claimed)
    both = {"tokens": [np.arange(2), np.arange(7), np.arange(9)], "values": np.zeros((3, 4))}
    plane.put_samples("lengths", ["a", "c", "d"], both)  # of c none is known yet, and d is new
    claimed = plane.claim_meta("lengths", "train", ["tokens", "values"], 4)
    found = dict(zip(claimed.sample_ids, claimed.sequence_lengths or (), strict=True))
    assert found == {"a": 3, "b": 5, "c": 7, "d": 9}
    plane.release(claimed)
    plane.put_samples("lengths", ["a"], {"tokens": [np.arange(2)]}, lengths=[2])
    assert plane.claim_meta("lengths", "train", ["values"], 1).sequence_lengths == (2,)


def test_rows_put_one_at_a_time_have_the_lengths_that_they_would_have_together(plane: DataPlaneClient) -> None:
    """Rows put one at a time have the lengths that they would have together."""
    plane.register_partition("single", ["stats", "tokens"], ["train"])
    for at, length in enumerate((9, 3)):
        fields = {"stats": np.zeros((1, 2)), "tokens": [np.arange(length)]}
        kv_first_write(plane, "single", [f"s{at}"], fields)
    assert plane.claim_meta("single", "train", ["tokens"], 2).sequence_lengths == (9, 3)


def test_the_lengths_of_a_named_field(plane: DataPlaneClient) -> None:
    """They count also if they are all the same, and whatever was recorded before."""
    plane.register_partition("lengths", ["answer", "prompt"], ["train"])
    fields = {"answer": [np.arange(3), np.arange(9)], "prompt": [np.arange(5), np.arange(5)]}
    for name, wanted in (("prompt", (5, 5)), ("answer", (3, 9))):
        put = kv_first_write(plane, "lengths", ["a", "b"], fields, lengths_of=name)
        claimed = plane.claim_meta("lengths", "train", ["answer"], 2)
        assert put.sequence_lengths == claimed.sequence_lengths == wanted
        plane.release(claimed)
