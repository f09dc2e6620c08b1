"""Rows that follow one another are slices, and are treated as if they were not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.dataplane.errors import TagError
from tunegym.dataplane.ledger import ready as module
from tunegym.dataplane.ledger.blocks import Blocks
from tunegym.dataplane.ledger.ready import ReadyQueue
from tunegym.dataplane.ledger.rows import Rows
from tunegym.dataplane.ledger.spans import array_of, cut, join, pick, size_of, span_of

arrays = st.one_of(
    st.lists(st.integers(0, 30), unique=True, max_size=12),
    st.tuples(st.integers(0, 20), st.integers(0, 10)).map(lambda ends: list(range(ends[0], ends[0] + ends[1]))),
)


@given(arrays)
def test_a_span_is_its_rows(rows: list[int]) -> None:
    span = span_of(np.array(rows, dtype=np.int32))
    assert array_of(span).tolist() == rows
    assert size_of(span) == len(rows)
    follow = all(after == before + 1 for before, after in pairwise(rows))
    assert isinstance(span, slice) == follow


@given(arrays, st.integers(0, 14), st.randoms(use_true_random=False))
def test_parts_of_a_span_are_parts_of_its_rows(rows: list[int], count: int, chance: Any) -> None:
    span = span_of(np.array(rows, dtype=np.int32))
    head, rest = cut(span, count)
    assert (array_of(head).tolist(), array_of(rest).tolist()) == (rows[:count], rows[count:])
    mask = [chance.random() < 0.5 for _ in rows]
    kept = [row for row, keep in zip(rows, mask, strict=True) if keep]
    assert array_of(pick(span, np.array(mask, dtype=bool))).tolist() == kept


@given(st.lists(arrays, max_size=5))
def test_joined_spans_are_all_rows_in_order(parts: list[list[int]]) -> None:
    joined = join([span_of(np.array(part, dtype=np.int32)) for part in parts])
    assert array_of(joined).tolist() == [row for part in parts for row in part]


def test_slots_are_used_again_the_one_that_is_unused_for_longest_first() -> None:
    rows = Rows(1, 1, Blocks())
    assert rows.take(1000) == slice(0, 1000)
    rows.give_back(slice(10, 20))
    rows.give_back(slice(20, 30))
    rows.give_back(np.array([5, 2], dtype=np.int32))
    assert rows.take(24) == slice(1000, 1024)
    assert rows.take(20) == slice(10, 30)
    assert array_of(rows.take(3)).tolist() == [5, 2, 1024]
    assert rows.size == 2048


def test_many_little_pieces_are_put_together_in_their_order() -> None:
    rows = Rows(1, 1, Blocks())
    rows.take(1024)
    order = np.random.default_rng(7).permutation(1024).astype(np.int32)
    for row in order.tolist():
        rows.give_back(slice(row, row + 1))
    assert len(rows._unused) < 520
    assert array_of(rows.take(1024)).tolist() == order.tolist()


@st.composite
def queue_steps(draw: st.DrawFn) -> list[tuple[str, list[int]]]:
    rows = st.lists(st.integers(0, 19), unique=True, max_size=8)
    return draw(st.lists(st.tuples(st.sampled_from(["append", "first", "leave", "take", "look"]), rows), max_size=40))


@pytest.mark.parametrize("most_stamps", [5, 2**31 - 1])
@given(steps=queue_steps())
def test_a_queue_is_a_list(most_stamps: int, steps: list[tuple[str, list[int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_STAMPS", most_stamps)
        patch.setattr(module, "_SLACK", 3)
        patch.setattr(module, "_NEAR", 2)
        queue, model = ReadyQueue(0, 20), list[int]()
        for what, rows in steps:
            if what in ("append", "first"):
                new = [row for row in rows if row not in model]
                queue.append(span_of(np.array(new, dtype=np.int32)), first=what == "first")
                model = new + model if what == "first" else model + new
            elif what == "leave":
                queue.leave(span_of(np.array(rows, dtype=np.int32)))
                model = [row for row in model if row not in rows]
            elif what == "take":
                assert array_of(queue.take(len(rows))).tolist() == model[: len(rows)]
                model = model[len(rows) :]
            else:
                found = queue.look(len(rows), lambda some: some % 2 == 0)
                assert found.tolist() == [row for row in model if row % 2 == 0][: len(rows)]
            assert queue.count == len(model)
        assert queue.order().tolist() == model


def test_a_predicate_that_fails_leaves_the_queue_as_it_was() -> None:
    queue = ReadyQueue(0, 5000)
    queue.append(slice(0, 5000))

    def fail(rows: np.ndarray) -> np.ndarray:
        if rows[0]:
            raise TagError("no")
        return rows < 0

    with pytest.raises(TagError):
        queue.look(3, fail)
    assert array_of(queue.take(5000)).tolist() == list(range(5000))


def test_a_new_stamp_is_needed_to_be_ready_again() -> None:
    """An entry that is out of date is not valid again because its row came back later."""
    queue = ReadyQueue(0, 10)
    queue.append(slice(0, 4))
    queue.leave(slice(0, 2))
    queue.append(slice(5, 7))
    queue.append(slice(0, 2))
    assert array_of(queue.take(9)).tolist() == [2, 3, 5, 6, 0, 1]
