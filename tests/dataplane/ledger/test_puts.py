from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import (
    EndOfStreamError,
    EpochError,
    FieldError,
    SampleError,
    SealedError,
    SpecError,
    TagError,
)
from tunegym.dataplane.ledger import samples
from tunegym.dataplane.ledger.requests import tags_of
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.model import PartitionSpec

KINDS: list[Any] = [1, 0, True, False, 1.0, -0.0, 0.0, "text", "", None]


@pytest.mark.parametrize(
    ("ids", "more", "error"),
    [
        (["b", "b"], {}, SampleError),
        (["b", ""], {}, SampleError),
        (["b", 3], {}, SampleError),
        (["b"], {"tags": []}, TagError),
        (["b"], {"tags": [{"k": [1]}]}, TagError),
        (["b"], {"tags": [{"k": 2**63}]}, TagError),
        (["b", "c"], {"tags": [{"k": 1}, {"k": 2, "l": {}}]}, TagError),
        (["b"], {"lengths": [1, 2]}, SampleError),
        (["b"], {"lengths": [2**31]}, SampleError),
        (["b"], {"lengths": ["long"]}, SampleError),
        (["b"], {"group_ids": ["g"]}, SampleError),
        (["b"], {"group_ids": []}, SampleError),
        (["b"], {"shapes": {"x": ("<i4", 1)}}, FieldError),
        (["b"], {"shapes": {"x": ("<i8", 2)}}, FieldError),
        (["b"], {"shapes": {"x": ("<i8", 1), "z": ("<i8", 1)}}, SpecError),
        (["b"], {"epoch": -1}, EpochError),
        (["a", "gone"], {}, SampleError),
        (["kept", "b"], {}, SampleError),
    ],
)
def test_what_is_refused_leaves_nothing_half_written(desk: Any, ids: Any, more: Any, error: type[Exception]) -> None:
    desk.put(["a", "gone", "kept"], tags=[{"k": 1}] * 3)
    grant = desk.claim(3)
    desk.ack(grant, 1)
    desk.clear(["kept"])
    desk.put(["gone2"])
    desk.clear(["gone2"])
    ids = ["gone2" if one == "gone" else one for one in ids]
    before = snapshot(desk.ledger)
    with pytest.raises(error):
        desk.put(ids, **more)
    assert snapshot(desk.ledger) == before


def test_what_is_cleared_or_was_never_there_can_not_be_read(desk: Any) -> None:
    desk.put(["a", "b"])
    desk.clear(["a"])
    with pytest.raises(SampleError, match="'a' was consumed or cleared"):
        desk.ledger.locate("p", ["a"], ["x"])
    with pytest.raises(SampleError, match="no sample 'z'"):
        desk.ledger.locate("p", ["b", "z"], ["x"])
    with pytest.raises(SampleError, match="never had a sample 'z'"):
        desk.clear(["b", "z"])
    assert desk.clear(["a", "b", "b"]) == 1
    assert desk.stats["gone"] == {"cleared": 2}


def test_the_newest_ids_of_samples_that_are_gone_are_remembered(one_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "REMEMBERED", 3)
    one_task.put(list("abcde"))
    one_task.clear(list("abcd"))
    one_task.ledger = restore(snapshot(one_task.ledger))
    for one in "bcd":
        with pytest.raises(SampleError, match="ids are used once"):
            one_task.put([one])
    one_task.put(["a"])
    assert one_task.claim(2).sample_ids == ["e", "a"]


def test_tags_are_merged_and_come_with_the_claim(desk: Any) -> None:
    desk.put(["a", "b"], tags=[{"v": 1}, {"v": 2, "who": "me"}])
    desk.put(["a"], ["y"], tags=[{"done": True}])
    desk.ledger.write_tags("p", ["b", "a"], [{"v": 5}, {"who": None}], 0.0)
    assert desk.claim(2).each_tags() == [{"v": 1, "who": None, "done": True}, {"v": 5, "who": "me"}]
    with pytest.raises(TagError):
        desk.ledger.write_tags("p", ["a", "b"], [{}], 0.0)
    with pytest.raises(SampleError):
        desk.ledger.write_tags("p", ["a", "a"], [{}, {}], 0.0)
    with pytest.raises(SampleError):
        desk.ledger.write_tags("p", ["z"], [{}], 0.0)


def test_names_of_tags_are_few_at_a_time(one_task: Any) -> None:
    ids = [f"{number}" for number in range(257)]
    one_task.put(
        ids[:256], tags=[{f"at-{one}": 1, "v": 1} if number else {"v": 1} for number, one in enumerate(ids[:256])]
    )
    with pytest.raises(TagError, match="there would be 257 different tags") as caught:
        one_task.put(ids[256:], tags=[{"more": 1}])
    assert "into its value" in str(caught.value)
    with pytest.raises(TagError):
        one_task.ledger.write_tags("p", ids[:1], [{"more": 1}], 0.0)
    assert one_task.stats["produced"] == 256
    one_task.clear(ids[8:9])
    one_task.put(ids[256:], tags=[{"more": 1, "v": 2}])
    grant = one_task.claim(256)
    assert grant.tags is not None
    assert (grant.tags[0], grant.tags[1], grant.tags[-1]) == ({"v": 1}, {"at-1": 1, "v": 1}, {"more": 1, "v": 2})


def test_sixty_four_fields_are_possible(open_desk: Callable[..., Any]) -> None:
    names = tuple(f"f{number}" for number in range(64))
    desk = open_desk(fields=names)
    desk.put(["a"], shapes=dict.fromkeys(names[:63], ("<i8", 1)))
    waiter = desk.wait(1, fields=names)
    desk.put(["a"], shapes={"f63": ("<i8", 1)})
    assert desk.settled() == [waiter]
    assert set(desk.ledger.locate("p", ["a"], names)["fields"]) == set(names)
    desk.ack(waiter.outcome)
    desk.clear(["a"])
    assert desk.freed() == [1, 2]


@pytest.mark.parametrize(
    "ids",
    [
        ["long-" + "x" * 10_000 + str(number) for number in range(200)],
        ["long-" + "x" * 10_000 + f"{number:05d}" for number in range(200)],
        [f"ключ-{number}-\N{GRINNING FACE}" for number in range(200)],
        [f"\N{FULLWIDTH DIGIT ONE}{number:05d}" for number in range(200)],
        [" " * number + "." for number in range(200)],
        ["\0" * number + "." for number in range(200)],
    ],
    ids=["long", "long and numbered", "unicode", "wide digits", "blanks", "zeros"],
)
def test_ids_are_any_texts(one_task: Any, ids: list[str]) -> None:
    one_task.put(ids)
    one_task.ledger = restore(snapshot(one_task.ledger))
    with pytest.raises(SampleError, match="twice"):
        one_task.put([*ids, ids[0]], ["y"])
    one_task.put(ids[::-1], ["y"])
    assert one_task.train(200, 1) == ids
    assert one_task.clear(ids) == 200
    one_task.commit(1)
    one_task.ledger = restore(snapshot(one_task.ledger))
    with pytest.raises(SampleError, match="used once"):
        one_task.put(ids)
    assert one_task.stats["resident"] == 0


def test_each_sample_has_tags_of_its_own() -> None:
    each = tags_of({"v": 1}, 3)
    assert each == [{"v": 1}] * 3
    each[0]["v"] = 2
    assert each == [{"v": 2}, {"v": 1}, {"v": 1}]
    assert tags_of([{"v": 1}, {}], 2) == [{"v": 1}, {}]
    assert tags_of(None, 2) is None


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(KINDS, 2), *zip(KINDS, KINDS, strict=True)])
def test_tags_for_all_are_those_of_each(one_task: Any, one: Any, other: Any) -> None:
    one_task.put(["a", "b"], tags={"v": one})
    one_task.put(["c", "d"], tags=[{"v": other}] * 2)
    one_task.ledger = restore(snapshot(one_task.ledger))
    found = one_task.claim(4).each_tags()
    assert [repr(tags["v"]) for tags in found] == [repr(one)] * 2 + [repr(other)] * 2


# partitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("fields", ("x",)), ("tasks", ("train",)), ("capacity", 5), ("group_size", 2), ("on_full", "raise")],
)
def test_registering_something_else_names_what_differs(desk: Any, name: str, value: Any) -> None:
    other = {"fields": ("x", "y"), "tasks": ("train", "judge"), name: value}
    with pytest.raises(SpecError, match=name):
        desk.ledger.register(PartitionSpec("p", **other))


def test_fields_may_still_be_written_to_a_sealed_partition_and_one_waits_for_them(desk: Any) -> None:
    desk.put(["a"])
    waiter = desk.wait(3, fields=("x", "y"))
    desk.ledger.seal("p", 0.0)
    assert desk.settled() == []
    desk.put(["a"], ["y"])
    assert desk.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["a"]
    with pytest.raises(SealedError):
        desk.put(["b"])
    with pytest.raises(SealedError):
        desk.put(["a", "b"], ["y"])
    assert desk.stats["produced"] == 1


def test_a_sealed_partition_says_what_is_left_and_can_not_be_claimed(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(group_size=3)
    desk.put(["a", "b"], group_ids=["g", "g"])
    desk.ledger.seal("p", 0.0)
    with pytest.raises(EndOfStreamError, match="2 in incomplete groups"):
        desk.claim(3)
    desk = open_desk()
    desk.put(["a", "b"], group_ids=["g", "g"])
    desk.ledger.seal("p", 0.0)
    with pytest.raises(EndOfStreamError, match="2 in groups larger than 1"):
        desk.claim(1)
