from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunegym.dataplane.ledger import ids as module
from tunegym.dataplane.ledger.ids import IdIndex
from tunegym.dataplane.ledger.named import Named, hashes_of
from tunegym.dataplane.ledger.numbering import RETIRED, UNKNOWN, form_of, numbers_of
from tunegym.dataplane.ledger.spans import span_of

names = st.one_of(
    st.from_regex(r"[ab]-[0-9]{2}", fullmatch=True),
    st.from_regex(r"[0-9]{1,3}", fullmatch=True),
    st.text("ab0１²", min_size=1, max_size=4),
    st.integers(0, 5000).map(lambda number: f"rollout-{number:06d}"),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-17", (("a-", 2), 17)),
        ("007", (("", 3), 7)),
        ("a", None),
        ("", None),
        ("a" + "1" * 15, (("a", 15), int("1" * 15))),
        ("a" + "1" * 16, None),
        ("a１", None),
        ("1²", None),
    ],
)
def test_what_a_numbered_id_is(name: str, expected: object) -> None:
    assert form_of(name) == expected


@given(st.lists(names, min_size=1, max_size=60, unique=True))
def test_numbers_are_read_at_once_as_one_by_one(ids: list[str]) -> None:
    each = [form_of(one) for one in ids]
    found = numbers_of(ids)
    if None in each or len({one[0] for one in each if one}) > 1:
        assert found is None
    else:
        assert found is not None
        form, numbers = found
        assert [(form, number) for number in numbers.tolist()] == each


@pytest.mark.parametrize("count", [2, 23, 24, 100])
def test_ids_that_only_look_alike_are_not_numbered(count: int) -> None:
    good = [f"ab-{number:04d}" for number in range(count)]
    assert numbers_of(good) is not None
    for odd in ("ab-00x1", "ac-0001", "ab-001", "ab-00001", "ab-00 1", "ab-00１1", "ab-00/1", "ab-00:1"):
        for place in (0, 1, count // 2, count - 1):
            assert numbers_of([*good[:place], odd, *good[place + 1 :]]) is None
    # As many letters altogether, and split at other places.
    assert numbers_of(["a1", "a12", "1", *["a1"] * count]) is None


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("puuur"), st.lists(names, max_size=90, unique=True)), max_size=12))
def test_an_index_is_a_dict_that_forgets_nothing(steps: list[tuple[str, list[str]]]) -> None:
    index, known, retired = IdIndex(4096), dict[str, int](), set[str]()
    row = 0
    for what, ids in steps:
        if what == "r":
            here = [one for one in ids if one in known]
            index.retire(span_of(np.array([known.pop(one) for one in here], dtype=np.int32)))
            retired.update(here)
        else:
            new = [one for one in ids if one not in known and one not in retired]
            rows = np.arange(row, row + len(new), dtype=np.int32)
            rows = rows[::-1] if what == "p" else rows
            index.put(new, span_of(rows), index.find(new))
            known.update(zip(new, rows.tolist(), strict=True))
            row += len(new)
        asked = [*ids, "never", *list(known)[:20]]
        expected = [known.get(one, RETIRED if one in retired else UNKNOWN) for one in asked]
        assert index.find(asked).rows.tolist() == expected
        if known:
            some = list(known)
            assert index.names(np.array([known[one] for one in some], dtype=np.int32)) == some


@pytest.mark.parametrize("clashes", [1, 7])
def test_ids_whose_hashes_are_equal_are_told_apart(monkeypatch: pytest.MonkeyPatch, clashes: int) -> None:
    def poor(ids: list[str]) -> np.ndarray:
        return np.array([hash(one) % clashes for one in ids], dtype=np.int64)

    monkeypatch.setattr(module, "hashes_of", poor)
    index = IdIndex(1024)
    ids = [f"{number}-x" for number in range(300)]
    for start in range(0, 300, 30):
        some = ids[start : start + 30]
        assert (index.find(some).rows == UNKNOWN).all()
        index.put(some, slice(start, start + 30), index.find(some))
    index.retire(slice(100, 200))
    index.put(["new", *(f"{number}-y" for number in range(20))], slice(100, 121), index.find(["new"] + ["?"] * 20))
    expected = [*range(100), *[RETIRED] * 100, *range(200, 300)]
    assert index.find(ids).rows.tolist() == expected
    assert [int(index.find([one]).rows[0]) for one in ids] == expected
    assert index.find(["new", "19-y", "20-y"]).rows.tolist() == [100, 120, UNKNOWN]


@pytest.mark.parametrize("most", [1, 5, 64, 1000])
def test_names_come_and_go_for_long(most: int) -> None:
    """Slots are used again and again, in any order, and the newest retired ids are known, no others."""
    chance = random.Random(most)
    named, known, gone, number = Named(most), dict[str, int](), list[str](), 0
    for _ in range(150):
        free = [row for row in range(256) if row not in known.values()]
        rows = np.array(chance.sample(free, chance.randint(0, min(40, len(free)))), dtype=np.int32)
        fresh = [f"{number + at}-x" for at in range(len(rows))]
        number += len(rows)
        named.put(fresh, hashes_of(fresh), span_of(rows), 256)
        known.update(zip(fresh, rows.tolist(), strict=True))
        leaving = chance.sample(sorted(known), chance.randint(0, len(known)) // 2)
        named.retire(span_of(np.array([known[one] for one in leaving], dtype=np.int32)))
        for one in leaving:
            del known[one]
        gone = (gone + leaving)[-most:]
        assert named.count == len(known)
        assert named.retired() == gone
        assert named.all().tolist() == sorted(known.values())
        asked = [f"{at}-x" for at in range(number + 3)]
        retired = set(gone)
        expected = [known.get(one, RETIRED if one in retired else UNKNOWN) for one in asked]
        assert named.find(asked, hashes_of(asked)).tolist() == expected
    assert len(named._table) <= 4096


def test_numbered_ids_are_remembered_for_good_and_take_no_room() -> None:
    index = IdIndex(1024)
    for start in range(0, 200_000, 1000):
        ids = [f"s{number:07d}" for number in range(start, start + 1000)]
        index.put(ids, slice(0, 1000), index.find(ids))
        index.retire(slice(0, 1000))
    (numbered,) = index._by_place
    assert len(numbered.chunks) == 1
    assert numbered.used_up == [[0, 194]]
    assert index.find(["s0000000", "s0199999", "s0200000"]).rows.tolist() == [RETIRED, RETIRED, UNKNOWN]


def test_chunks_that_are_used_up_in_any_order_make_one_run() -> None:
    index = IdIndex(8192)
    ids = [f"s{number:07d}" for number in range(8 * 1024)]
    index.put(ids, slice(0, 8192), index.find(ids))
    for chunk in (5, 1, 3, 7, 2, 6, 4):
        index.retire(slice(chunk * 1024, (chunk + 1) * 1024))
        assert index.find(ids[chunk * 1024 : chunk * 1024 + 2]).rows.tolist() == [RETIRED, RETIRED]
    assert index._by_place[0].used_up == [[1, 7]]
    assert index.find([ids[5]]).rows.tolist() == [5]


@pytest.mark.parametrize("at_once", [1, 100])
def test_ids_whose_numbers_are_far_apart_are_not_numbered(at_once: int) -> None:
    """A chunk for each of them would take a hundred times the room of their names."""
    index, chance = IdIndex(8192), random.Random(at_once)
    ids = [f"r-{number:012d}" for number in chance.sample(range(10**12), 2000)]
    for start in range(0, 2000, at_once):
        some = ids[start : start + at_once]
        index.put(some, slice(start, start + at_once), index.find(some))
    assert sum(len(one.chunks) for one in index._by_place) < 100
    assert index.names(slice(0, 2000)) == ids
    assert index.find(ids).rows.tolist() == list(range(2000))
    index.retire(slice(0, 1000))
    assert index.find(ids).rows.tolist() == [RETIRED] * 1000 + list(range(1000, 2000))


def test_a_form_may_be_dense_and_then_sparse() -> None:
    index = IdIndex(8192)
    dense = [f"r-{number:012d}" for number in range(4096)]
    sparse = [f"r-{number * 5000:012d}" for number in range(1, 1025)]
    index.put(dense, slice(0, 4096), index.find(dense))
    index.put(sparse, slice(4096, 5120), index.find(sparse))
    more = [f"r-{number:012d}" for number in range(4096, 4196)]
    index.put(more, slice(5120, 5220), index.find(more))
    assert [len(one.chunks) for one in index._by_place] == [5]
    everything = [*dense, *sparse, *more]
    assert index.find(everything).rows.tolist() == list(range(5220))
    assert index.names(slice(0, 5220)) == everything
    index.retire(slice(0, 5220))
    assert (index.find(everything).rows == RETIRED).all()


def test_forms_with_nothing_left_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids, which are retired, are then remembered like others: the newest."""
    for name, value in (("_MOST_IDLE", 2), ("_MOST_PACKED", 3), ("_REMEMBERED", 300)):
        monkeypatch.setattr(module, name, value)
    index = IdIndex(1024)
    batches = [[f"{head}-{number:03d}" for number in range(100)] for head in "abcdefghijkl"]
    for batch in batches:
        index.put(batch, slice(0, 100), index.find(batch))
        assert index.names(slice(0, 100)) == batch
        index.retire(slice(0, 100))
    assert len(index._by_place) <= 7
    assert len(index._forms) == 5
    known = [set(index.find(batch).rows.tolist()) for batch in batches]
    assert known == [{UNKNOWN}] * 4 + [{RETIRED}] * 8


def test_what_was_left_out_of_chunks_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_IDLE", 2)
    index = IdIndex(8192)
    ids = [f"s{number:05d}" for number in range(8000)]
    index.put(ids[::2], slice(0, 4000), index.find(ids[::2]))
    index.retire(slice(0, 4000))
    assert [(len(one.chunks), len(one.packed)) for one in index._by_place] == [(2, 6)]
    assert index.find(ids).rows.tolist() == [RETIRED, UNKNOWN] * 4000
    index.put(ids[1::2], slice(0, 4000), index.find(ids[1::2]))
    assert index.find(ids).rows.tolist() == [one for row in range(4000) for one in (RETIRED, row)]
    index.retire(slice(0, 4000))
    (numbered,) = index._by_place
    assert numbered.used_up == [[0, 6]]
    assert (index.find(ids).rows == RETIRED).all()
    assert not index._spent.packed
    assert numbered.alive == 0


def test_a_form_that_is_not_used_any_more_leaves_its_place_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_MOST_IDLE", 0), ("_MOST_PACKED", 0), ("_MOST_FORMS", 2)):
        monkeypatch.setattr(module, name, value)
    index = IdIndex(1024)
    batches = [[f"{head}-{number:03d}" for number in range(100)] for head in "abcdef"]
    for at, batch in enumerate(batches):
        index.put(batch, slice(100 * at, 100 * at + 100), index.find(batch))
    assert len(index._by_place) == 2
    index.retire(slice(0, 100))
    other = [f"z-{number:03d}" for number in range(100)]
    index.put(other, slice(0, 100), index.find(other))
    assert [one.form[0] for one in index._by_place] == ["z-", "b-"]
    assert index.names(slice(0, 600)) == [*other, *(one for batch in batches[1:] for one in batch)]
    assert (index.find(batches[0]).rows == RETIRED).all()


def test_few_ids_of_many_forms_are_not_numbered() -> None:
    """A chunk for each of them would take far more room than their names."""
    index = IdIndex(8192)
    ids = [f"prompt-{prompt}-{sample}" for prompt in range(1000) for sample in range(8)]
    for start in range(0, 8000, 80):
        some = ids[start : start + 80]
        index.put(some, slice(start, start + 80), index.find(some))
    assert index._by_place == []
    assert index.names(slice(0, 8000)) == ids


def test_ids_that_come_one_by_one_become_numbered() -> None:
    index = IdIndex(1024)
    for number in range(1000):
        index.put([f"s-{number:03d}"], slice(number, number + 1), index.find([f"s-{number:03d}"]))
    assert index._others.count < 100
    assert index.names(slice(0, 1000)) == [f"s-{number:03d}" for number in range(1000)]
    assert index.find([f"s-{number:03d}" for number in range(1000)]).rows.tolist() == list(range(1000))


def test_of_other_ids_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 20)
    index = IdIndex(64)
    ids = [f"{number}x" for number in range(100)]
    for number, one in enumerate(ids):
        index.put([one], slice(number % 64, number % 64 + 1), index.find([one]))
        index.retire(slice(number % 64, number % 64 + 1))
    found = index.find(ids).rows
    assert (found[-10:] == RETIRED).all()
    assert (found[:70] == UNKNOWN).all()
