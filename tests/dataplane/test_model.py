"""Batches keep what belongs to each sample (P4); specs and tags are checked."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tunegym.dataplane.errors import SampleError, SpecError, TagError
from tunegym.dataplane.model import BatchMeta, PartitionSpec

PER_SAMPLE = ("sequence_lengths", "tags", "group_ids", "leases")


def numbered(numbers: list[int], having: frozenset[str] = frozenset(PER_SAMPLE), **more: Any) -> BatchMeta:
    """Samples of which everything tells the number."""
    values: dict[str, Any] = {
        "sequence_lengths": tuple(numbers),
        "tags": tuple({"number": number} for number in numbers),
        "group_ids": tuple(f"g{number}" for number in numbers),
        "leases": tuple(numbers),
    }
    chosen = {name: values[name] for name in having}
    return BatchMeta("rollouts", tuple(f"s{number}" for number in numbers), ("tokens",), "train", **chosen, **more)


class Parts(RuleBasedStateMachine):
    """Every operation on a batch keeps the values of each sample together."""

    @initialize(size=st.integers(0, 12), having=st.frozensets(st.sampled_from(PER_SAMPLE)))
    def start(self, size: int, having: frozenset[str]) -> None:
        self.meta = numbered(list(range(size)), having, epoch=3)
        self.numbers = list(range(size))
        self.stamps: dict[int, int] = {}
        self.having = having
        self.fields = ("tokens",)

    @rule(data=st.data())
    def subset(self, data: st.DataObject) -> None:
        places = data.draw(st.permutations(range(len(self.numbers))))
        places = places[: data.draw(st.integers(0, len(places)))]
        self.meta = self.meta.subset(data.draw(st.sampled_from([list, tuple, np.array]))(places))
        self.numbers = [self.numbers[at] for at in places]

    @rule(data=st.data())
    def mask(self, data: st.DataObject) -> None:
        mask = data.draw(st.lists(st.booleans(), min_size=len(self.numbers), max_size=len(self.numbers)))
        self.meta = self.meta.subset(mask or np.zeros(0, dtype=bool))
        self.numbers = [number for number, wanted in zip(self.numbers, mask, strict=True) if wanted]

    @rule(start=st.none() | st.integers(-15, 15), stop=st.none() | st.integers(-15, 15))
    def slice(self, start: int | None, stop: int | None) -> None:
        self.meta = self.meta.slice(start, stop)
        self.numbers = self.numbers[start:stop]

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        gone = data.draw(st.sets(st.sampled_from(self.numbers))) if self.numbers else set()
        self.meta = self.meta.drop(f"s{number}" for number in gone)
        self.numbers = [number for number in self.numbers if number not in gone]

    @rule(data=st.data())
    def concat(self, data: st.DataObject) -> None:
        cut = data.draw(st.integers(0, len(self.numbers)))
        self.meta = BatchMeta.concat([self.meta.slice(cut), self.meta.slice(0, 0), self.meta.slice(0, cut)])
        self.numbers = self.numbers[cut:] + self.numbers[:cut]

    @rule(stamp=st.integers(0, 99), each=st.booleans())
    def stamp_tags(self, stamp: int, each: bool) -> None:
        before = self.meta
        kept = repr(before.tags)
        self.meta = before.stamp_tags([{"stamp": stamp}] * before.size if each else {"stamp": np.int64(stamp)})
        self.stamps |= dict.fromkeys(self.numbers, stamp)
        assert repr(before.tags) == kept

    @rule(fields=st.lists(st.sampled_from("abc"), unique=True))
    def with_fields(self, fields: list[str]) -> None:
        self.meta = pickle.loads(pickle.dumps(self.meta.with_fields(fields)))
        self.fields = tuple(fields)

    @invariant()
    def aligned(self) -> None:
        meta = self.meta
        assert meta.sample_ids == tuple(f"s{number}" for number in self.numbers)
        assert (meta.size, len(meta)) == (len(self.numbers), len(self.numbers))
        assert (meta.fields, meta.task_name, meta.partition_id, meta.epoch) == (self.fields, "train", "rollouts", 3)
        for name, make in (("sequence_lengths", int), ("group_ids", "g{}".format), ("leases", int)):
            expected = tuple(make(number) for number in self.numbers) if name in self.having else None
            assert getattr(meta, name) == expected
        for number, tags in zip(self.numbers, meta.tags or (), strict=False):
            assert tags.get("stamp") == self.stamps.get(number)
            assert tags.get("number") == (number if "tags" in self.having else None)
            assert {type(value) for value in tags.values()} <= {int}  # numpy's become plain
        repr(meta)


TestParts = Parts.TestCase
TestParts.settings = settings(max_examples=40, stateful_step_count=15)


@pytest.mark.parametrize("places", [[0.5], [[0]], ["s0"], [None], 3, [2], [-3], [True], [True, False, True]])
def test_wrong_places_are_refused(places: Any) -> None:
    with pytest.raises(SampleError):
        numbered([0, 1]).subset(places)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "no batch"),
        ([numbered([0]), numbered([0])], "twice"),
        ([numbered([0]), BatchMeta("other", ("x",), ("tokens",), "train")], "different partition_ids"),
        ([numbered([0]), BatchMeta("rollouts", ("x",), ("tokens",), "score")], "different task_names"),
        ([numbered([0]), numbered([5]).with_fields(["reward"])], "different fields"),
        ([numbered([0]), numbered([5], frozenset({"tags"}))], "some don't"),
    ],
)
def test_batches_that_do_not_belong_together_are_refused(parts: list[BatchMeta], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        BatchMeta.concat(parts)


def test_joined_batches_have_the_older_epoch() -> None:
    """A batch that belongs in part to weights that are gone must not pass as a batch of the current ones."""
    assert BatchMeta.concat([numbered([1], epoch=4), numbered([2], epoch=3)]).epoch == 3


def test_a_missing_tag_is_named() -> None:
    assert numbered([1, 2]).tag("number") == [1, 2]
    with pytest.raises(TagError, match="missing for 's1', 's2'"):
        numbered([1, 2]).tag("reward")
    with pytest.raises(TagError, match="no tags"):
        numbered([1], frozenset()).tag("reward")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_id": ""}, "partition_id"),
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
