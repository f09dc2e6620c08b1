"""The client's side of a call, the same for every backend: refused arguments, and the lengths of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tunegym.dataplane import BatchMeta, DataPlaneClient, Tag, connect, errors, kv_first_write, write_columns
from tunegym.testing.dataplane import P, named, tokens

Refused = list[tuple[type[errors.DataPlaneError], Callable[[], Any]]]
NO_NUMBERS: tuple[Any, ...] = (None, 1.5, math.nan, "2", True, [], 2**80)
NO_NAMES: tuple[Any, ...] = (None, 3, b"p", ["p"], "", "\ud800")
NO_SECONDS: tuple[Any, ...] = (-1, math.nan, "1", True)


@pytest.fixture
def plane() -> Iterator[DataPlaneClient]:
    with connect("memory://client") as client:
        client.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        yield client


def wrong_arguments(
    call: Callable[..., Any], given: Any, wrong: dict[str, list[tuple[Any, tuple[Any, ...]]]]
) -> Refused:
    """The call with one wrong argument at a time, and the error that it raises."""
    return [
        (error, lambda name=name, one=one: call(**{**given, name: one}))
        for name, cases in wrong.items()
        for error, ones in cases
        for one in ones
    ]


def wrong_puts(plane: DataPlaneClient) -> Refused:
    ids, rows = named(2, 2), tokens(named(2, 2))
    given = {"partition_id": P, "sample_ids": ids, "fields": {"tokens": rows}}
    shapes = {"tokens": np.zeros((2, 3))}, {"tokens": np.zeros((2, 3, 3), dtype=np.int64)}
    names = (["s-2", one] for one in ("", 3, None, b"x", "\ud800", "s-2"))
    tags = ({"a": one} for one in ([1], math.nan, math.inf, "\ud800", 2**70))
    wrong: dict[str, Any] = {
        "partition_id": [(errors.SpecError, NO_NAMES), (errors.UnknownPartitionError, ("elsewhere",))],
        "sample_ids": [
            (errors.SampleError, (None, 3, "s2", b"s2", {"s-2": 1, "s-3": 2}, *names)),
            (errors.FieldError, (["s-2"],)),
        ],
        "fields": [
            (errors.FieldError, (None, {}, [rows], {"tokens": None}, {"tokens": 3}, *shapes)),
            (errors.SpecError, ({3: rows}, {"nothing": rows})),
        ],
        "tags": [(errors.TagError, ([{}], 3, "ab", {3: 1}, *tags))],
        "group_ids": [(errors.SampleError, (3, "ab", ["a"], [1, 2], ["a", "b"]))],
        "lengths": [
            (errors.SampleError, (3, [1], [1, 2, 3], [1, -1], [1, 1.5], [1, 2**31])),
            (errors.FieldError, ("ab", "")),
        ],
        "timeout_s": [(errors.SpecError, NO_SECONDS)],
    }
    return wrong_arguments(plane.put_samples, given, wrong)


def wrong_claims(plane: DataPlaneClient) -> Refused:
    given = {"partition_id": P, "task_name": "train", "required_fields": ["tokens"], "batch_size": 2, "timeout_s": 0}
    wrong: dict[str, Any] = {
        "partition_id": [(errors.SpecError, NO_NAMES), (errors.UnknownPartitionError, ("elsewhere",))],
        "task_name": [(errors.SpecError, (*NO_NAMES, "unknown"))],
        "required_fields": [(errors.SpecError, (None, 3, "tokens", [3], ["nothing"]))],
        "batch_size": [(errors.SpecError, (*NO_NUMBERS, 0, -1))],
        "min_batch": [(errors.SpecError, (*NO_NUMBERS[1:], 0, -1, 3))],
        "where": [
            (errors.SpecError, ("version > 3", True, Tag("version"))),
            (errors.TagError, (Tag("version") < "text",)),
        ],
        "order": [(errors.SpecError, (None, 3, "priority", Tag("priority"), Tag("priority") > 1))],
        "timeout_s": [(errors.SpecError, NO_SECONDS)],
    }
    return wrong_arguments(plane.claim_meta, given, wrong)


def wrong_calls(plane: DataPlaneClient, put: BatchMeta, claimed: BatchMeta) -> Refused:
    given: Any = plane  # arguments of other types than are allowed are the point
    by_error: dict[type[errors.DataPlaneError], list[Callable[[], Any]]] = {
        errors.UnknownPartitionError: [
            lambda call=call: call("elsewhere") for call in (plane.delete_partition, plane.seal)
        ],
        errors.SampleError: [lambda one=one: given.clear_samples(P, one) for one in (["s-0", "unknown"], "s-0")],
        errors.FieldError: [lambda: plane.get_samples(put, []), lambda: plane.get_data(put.with_fields([]))],
        errors.TagError: [lambda one=one: given.write_tags(P, ["s-0"], one) for one in (None, [], [{"a": []}])],
        errors.LeaseLostError: [lambda call=call: call(put) for call in (given.ack, given.release, given.extend)],
        errors.SpecError: [
            lambda: given.producer(None),
            lambda: given.producer(P).start(0),
            lambda: given.producer(P).put_samples(0, ["s-2"], {"tokens": [np.arange(2)]}),
            lambda: given.producer("other").put_samples(given.producer(P).start(1), ["s-2"], {}),
            lambda: given.clear_samples(P, ["s-0"], reason=3),
            lambda: given.list_samples(P, where="all"),
            lambda: given.list_samples(P, limit=0),
            lambda: plane.get_samples(put.slice(0, 0), ["nothing"]),
            *(lambda one=one: given.get_samples(put, one) for one in ("tokens", 3)),
            *(lambda one=one: given.check_consumption_status(P, one) for one in ("train", None, ["unknown"])),
            *(lambda one=one: given.register_partition("new", *one) for one in (("ab", ["t"]), (["a"], None))),
            *(lambda one=one: given.ack(claimed, version=one) for one in NO_NUMBERS[1:]),
            *(lambda one=one: given.commit(P, "train", one) for one in NO_NUMBERS),
            *(lambda one=one: given.rewind(P, "train", one) for one in NO_NUMBERS),
            *(lambda call=call: call(None) for call in (given.ack, given.release, given.extend, given.get_data)),
        ],
    }
    return [(error, call) for error, calls in by_error.items() for call in calls]


def test_a_refused_call_changes_nothing(plane: DataPlaneClient) -> None:
    put = plane.put_samples(P, named(2), {"tokens": tokens(named(2))}, tags={"version": 1})
    claimed = plane.claim_meta(P, "judge", ["tokens"], 1)
    before = {name: value for name, value in plane.stats()[P].items() if name not in ("tasks", "leases")}
    for error, call in [*wrong_puts(plane), *wrong_claims(plane), *wrong_calls(plane, put, claimed)]:
        with pytest.raises(error) as told:
            call()
        assert told.value.message
    assert set(plane.stats()) == {P}
    assert {name: value for name, value in plane.stats()[P].items() if name not in ("tasks", "leases")} == before
    assert [one["leased"] for one in plane.stats()[P]["tasks"].values()] == [0, 1]
    plane.ack(claimed)
    plane.clear_samples(P, named(2))
    assert plane.check_consumption_status(P, ["train", "judge"])


def test_numpy_scalars_and_empty_batches_are_fine(plane: DataPlaneClient) -> None:
    given: Any = plane
    given.put_samples(P, np.array(["a", "b"]), {"tokens": tokens(named(2))})
    claimed = given.claim_meta(P, "train", ["tokens"], np.int64(2), min_batch=np.int32(1))
    assert claimed.sample_ids == ("a", "b")
    given.ack(claimed, version=np.int64(3))
    assert given.commit(P, "train", np.int64(3)) == 2
    empty = plane.put_samples(P, [], {"tokens": []})
    assert (empty.size, empty.fields, len(plane.get_data(empty)["tokens"])) == (0, ("tokens",), 0)
    assert plane.clear_samples(P, []) == 0


def test_lengths_are_those_of_the_first_put(plane: DataPlaneClient) -> None:
    """Of its jagged column, unless ``lengths`` are given. A later stage may add rows of other lengths."""
    plane.register_partition("lengths", ["stats", "tokens", "values"], ["train"])

    def lengths() -> dict[str, int]:
        claimed = plane.claim_meta("lengths", "train", ["tokens", "values"], 4, min_batch=1)
        plane.release(claimed)
        return dict(zip(claimed.sample_ids, claimed.sequence_lengths or (), strict=True))

    for name, length in (("a", 3), ("b", 5)):  # one at a time, as together
        kv_first_write(plane, "lengths", [name], {"stats": np.zeros((1, 2)), "tokens": [np.arange(length)]})
    plane.put_samples("lengths", ["c"], {"values": np.zeros(1)[:, None]})  # not its tokens
    written = write_columns(
        plane, BatchMeta("lengths", ("a", "b"), sequence_lengths=(3, 5)), {"values": np.zeros((2, 1))}
    )
    assert written.sequence_lengths == (3, 5)
    assert lengths() == {"a": 3, "b": 5}
    both = {"tokens": [np.arange(2), np.arange(9)], "values": np.zeros((2, 4))}
    plane.put_samples("lengths", ["a", "d"], both)
    assert lengths() == {"a": 3, "b": 5, "d": 9}
    plane.put_samples("lengths", ["a"], {"tokens": [np.arange(2)]}, lengths=[2])
    assert lengths()["a"] == 2


def test_the_lengths_of_a_named_field(plane: DataPlaneClient) -> None:
    """They replace recorded ones, even if all are equal."""
    plane.register_partition("lengths", ["answer", "prompt"], ["train"])
    fields = {"answer": [np.arange(3), np.arange(9)], "prompt": [np.arange(5), np.arange(5)]}
    for name, wanted in (("prompt", (5, 5)), ("answer", (3, 9))):
        put = kv_first_write(plane, "lengths", ["a", "b"], fields, lengths=name)
        claimed = plane.claim_meta("lengths", "train", ["answer"], 2)
        assert put.sequence_lengths == claimed.sequence_lengths == wanted
        plane.release(claimed)
    with pytest.raises(errors.FieldError, match="no lengths"):
        kv_first_write(plane, "lengths", ["c", "d"], fields, lengths="other")
    fields["prompt"] = [np.arange(5), np.arange(4)]
    with pytest.raises(errors.FieldError, match="different lengths: answer, prompt"):
        kv_first_write(plane, "lengths", ["c", "d"], fields)


def test_a_damaged_block_names_its_samples(plane: DataPlaneClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (0, 2):
        plane.put_samples(P, named(2, first), {"tokens": tokens(named(2, first))})
    storage, ids = plane._storage, ("s-3", "s-0", "s-2", "s-1")
    bad = plane._call("locate", partition_id=P, sample_ids=["s-0"], fields=["tokens"])["locations"]

    def read(location: Any, whole: Any = storage.read) -> Any:
        if location in bad:
            raise errors.StorageError("cut short", hint="restore it")
        return whole(location)

    monkeypatch.setattr(storage, "read", read)
    with pytest.raises(errors.StorageError, match="cut short") as told:
        plane.get_samples(BatchMeta(P, ids), ["tokens"])
    assert (told.value.hint, told.value.sample_ids) == ("restore it", ("s-0", "s-1"))
    plane.clear_samples(P, told.value.sample_ids, "damaged")
    assert plane.get_samples(BatchMeta(P, ids).drop(told.value.sample_ids), ["tokens"])["tokens"].lengths == [4, 3]
