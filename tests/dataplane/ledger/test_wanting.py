"""What claims with a predicate want: the same as if all that is ready were looked at each time."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.dataplane.errors import ClaimTimeoutError, TagError
from tunegym.dataplane.ledger.grouping import GroupQueue
from tunegym.dataplane.ledger.ready import ReadyQueue
from tunegym.dataplane.ledger.spans import array_of, span_of
from tunegym.dataplane.ledger.tagging import TagColumns
from tunegym.dataplane.ledger.wanting import WantedGroups, WantedRows, Wish, key_of
from tunegym.dataplane.predicate import Combined, Comparison, Predicate, Tag

WANTED = Tag("v") == 1
SIZE = 64


def tags_of(rows: int) -> TagColumns:
    tags = TagColumns(rows)
    tags.put(slice(0, rows), [{"v": 0}] * rows)
    return tags


@given(st.integers(0, 2**32), st.booleans())
def test_rows_are_those_that_a_look_at_all_would_find_in_the_same_order(seed: int, eager: bool) -> None:
    chance = random.Random(seed)
    queue, tags = ReadyQueue(0, SIZE), tags_of(SIZE)
    watcher = WantedRows(queue, Wish(WANTED, tags), np.zeros(0, dtype=np.int32))
    queue.watchers["it"] = watcher
    inside: set[int] = set()
    for _ in range(chance.randint(1, 30)):
        what = chance.choice(["join", "join", "first", "leave", "take", "claim"])
        some = np.array(chance.sample(range(SIZE), chance.randint(1, 12)), dtype=np.int32)
        if what in ("join", "first"):
            fresh = np.array([row for row in some.tolist() if row not in inside], dtype=np.int32)
            tags.put(fresh, [{"v": chance.randint(0, 1)} for _ in fresh])
            queue.append(span_of(fresh), first=what == "first")
            inside |= set(fresh.tolist())
        elif what == "leave":
            queue.leave(some)
            inside -= set(some.tolist())
        elif what == "take":
            inside -= set(array_of(queue.take(chance.randint(1, 6))).tolist())
        else:
            least = chance.randint(1, 4)
            expected = [row for row in queue.order().tolist() if tags.value(row, "v") == 1]
            found = watcher.choose(least, 4)
            assert (found is None) == (len(expected) < least)
            if found is not None:
                assert array_of(found).tolist() == expected[:4]
                queue.leave(found)
                inside -= set(array_of(found).tolist())
        if eager:
            assert watcher.count() == sum(tags.value(row, "v") == 1 for row in inside)
    expected = [row for row in queue.order().tolist() if tags.value(row, "v") == 1]
    assert watcher.count() == len(expected)
    found = watcher.choose(1, SIZE)
    assert expected == ([] if found is None else array_of(found).tolist())


@given(st.integers(0, 2**32))
def test_groups_are_those_of_which_everything_is_wanted(seed: int) -> None:
    chance = random.Random(seed)
    queue, tags = GroupQueue(0), tags_of(SIZE)
    groups = {number: array("i", range(4 * number, 4 * number + chance.randint(1, 4))) for number in range(1, 15)}
    watcher = WantedGroups(queue, Wish(WANTED, tags))
    queue.watchers["it"] = watcher
    for _ in range(chance.randint(1, 30)):
        some = {number: groups[number] for number in chance.sample(sorted(groups), chance.randint(1, 5))}
        what = chance.choice(["join", "join", "first", "drop", "tags", "choose"])
        if what in ("join", "first"):
            for rows in some.values():
                queue.drop(some)
                tags.put(np.array(rows), [{"v": int(chance.random() < 0.8)} for _ in rows])
            queue.look_again(list(some), some, first=what == "first")
        elif what == "drop":
            queue.look_again(list(some), {})
        elif what == "tags":
            (number,) = chance.sample(sorted(some), 1)
            tags.put(np.array(groups[number]), [{"v": chance.randint(0, 1)}] * len(groups[number]))
            watcher.joins(queue.of([number]), False)
        elif (found := watcher.choose(2, 6)) is not None:
            rows = array_of(found).tolist()
            assert 2 <= len(rows) <= 6
            assert all(tags.value(row, "v") == 1 for row in rows)
            queue.drop({row // 4 for row in rows})
        if chance.random() < 0.3:
            assert watcher.count() == wanted(queue, tags)
    assert watcher.count() == wanted(queue, tags)


def wanted(queue: GroupQueue, tags: TagColumns) -> int:
    ready = queue.of(queue.order())
    return sum(len(rows) for rows in ready.values() if all(tags.value(row, "v") == 1 for row in rows))


values = st.one_of(st.none(), st.integers(-2, 2), st.floats(-2, 2), st.booleans(), st.sampled_from(["", "a", "b"]))
comparisons = st.builds(
    Comparison,
    st.sampled_from("ab"),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    st.one_of(st.integers(-2, 2), st.floats(-2, 2), st.booleans(), st.sampled_from(["", "a", "b"])),
) | st.builds(
    lambda tag, some: Tag(tag).isin(some),
    st.sampled_from("ab"),
    st.lists(st.sampled_from([0, 1, "a", 1.0]), max_size=3),
)
predicates = st.recursive(
    comparisons,
    lambda inner: (
        st.builds(lambda one: Combined("not", (one,)), inner)
        | st.builds(lambda word, *two: Combined(word, two), st.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=4,
)


@given(predicates, st.lists(st.fixed_dictionaries({}, optional={"a": values, "b": values}), min_size=1, max_size=5))
def test_one_row_is_wanted_as_many_are(where: Predicate, given_tags: list[dict[str, Any]]) -> None:
    tags = TagColumns(8)
    tags.put(slice(0, len(given_tags)), given_tags)
    wish = Wish(where, tags)
    for row in range(len(given_tags)):
        assert told(lambda: wish.one(row)) == told(lambda: bool(wish.of(np.array([row]))[0]))  # noqa: B023 - called at once


def told(ask: Callable[[], bool]) -> bool | str:
    try:
        return ask()
    except TagError as error:
        return str(error)


def test_predicates_that_want_the_same_have_one_key() -> None:
    far = 1e300
    same = [(Tag("v") >= 1) & ~(Tag("w") == "x") for _ in range(2)]
    assert key_of(same[0]) == key_of(same[1])
    others = [Tag("v") == 1, Tag("v") == True, Tag("v") == 1.0, Tag("v") == "1", Tag("v") < far, Tag("v") < -far]  # noqa: E712
    assert len({key_of(one) for one in others}) == len(others)


# in a ledger ------------------------------------------------------------------------------------------


def test_a_claim_that_waits_looks_only_at_what_is_new(one_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one_task.put([f"old-{number}.x" for number in range(2000)], tags=[{"v": 0}] * 2000)
    looked: list[int] = []
    mask, wants = Comparison.mask, Comparison.wants

    def counted(self: Comparison, columns: Any) -> np.ndarray:
        found = mask(self, columns)
        looked.append(len(found))
        return found

    def counted_one(self: Comparison, value: Any) -> bool:
        looked.append(1)
        return wants(self, value)

    monkeypatch.setattr(Comparison, "mask", counted)
    monkeypatch.setattr(Comparison, "wants", counted_one)
    waiters = [one_task.wait(4, 2, where=Tag("v") == 1) for _ in range(8)]
    assert sum(looked) == 2000
    looked.clear()
    for number in range(50):
        one_task.put([f"{number}-x"], tags=[{"v": 0}])
    assert sum(looked) <= 50
    one_task.put(["a", "b", "c"], tags=[{"v": 1}] * 3)
    assert sum(looked) <= 60
    assert one_task.settled() == waiters[:1]
    assert waiters[0].outcome.sample_ids == ["a", "b", "c"]
    looked.clear()
    one_task.release(waiters[0].outcome)
    assert one_task.settled() == waiters[1:2]
    assert sum(looked) <= 10


@pytest.mark.parametrize("how", ["write_tags", "put"])
def test_tags_that_change_are_looked_at_again(one_task: Any, how: str) -> None:
    def retag(ids: list[str], value: int) -> None:
        tags = [{"v": value}] * len(ids)
        if how == "put":
            one_task.put(ids, ["y"], tags=tags)
        else:
            one_task.ledger.write_tags("p", ids, tags, 0.0)

    one_task.put(list("abcdefgh"), tags=[{"v": 0}] * 7 + [{"v": 1}])
    waiter = one_task.wait(3, where=WANTED)
    retag(["b", "f"], 1)
    assert one_task.settled() == [waiter]
    assert sorted(waiter.outcome.sample_ids) == ["b", "f", "h"]
    waiter = one_task.wait(2, where=WANTED)
    retag(["a"], 1)
    retag(["a"], 0)
    retag(["c"], 1)
    assert one_task.settled() == []
    retag(["a"], 1)
    assert one_task.settled() == [waiter]
    assert sorted(waiter.outcome.sample_ids) == ["a", "c"]


def test_what_is_given_back_comes_first_for_who_waits_by_a_predicate(one_task: Any) -> None:
    one_task.put(list("abc"), tags=[{"v": 1}] * 3)
    grant = one_task.claim(2)
    waiter = one_task.wait(3, where=WANTED)
    one_task.put(["d"], tags=[{"v": 0}])
    one_task.release(grant)
    assert one_task.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["a", "b", "c"]
    waiter = one_task.wait(2, where=WANTED)
    one_task.put(["e"], tags=[{"v": 1}])
    one_task.clear(["e", "d"])
    one_task.put(["f", "g"], tags=[{"v": 0}, {"v": 1}])
    one_task.put(["h"], tags=[{"v": 1}])
    assert waiter.outcome.sample_ids == ["g", "h"]


def test_a_predicate_that_can_not_compare_is_told_to_who_claims_not_to_who_puts(one_task: Any) -> None:
    waiters = [one_task.wait(2, where=Tag("v") > 1, timeout_s=9.0) for _ in range(2)]
    one_task.put(["a"], tags=[{"v": 1}])
    other = one_task.wait(2, where=Tag("v") == "x")
    one_task.put(["b"], tags=[{"v": "x"}])
    assert one_task.settled() == waiters
    assert all(isinstance(one.outcome, TagError) for one in waiters)
    late = one_task.wait(5, where=Tag("v") == "y", timeout_s=9.0)
    with pytest.raises(TagError, match="can't be compared"):
        one_task.claim(1, where=Tag("v") > 1)
    one_task.clear(["b"])
    assert one_task.wait(1, where=Tag("v") > 1, timeout_s=9.0)
    one_task.put(["c"], tags=[{"v": 2}])
    assert len(one_task.settled()) == 1
    one_task.pass_time(9.0)
    assert one_task.settled() == [late]
    assert isinstance(late.outcome, ClaimTimeoutError)
    assert not other.settled


def test_a_wait_that_ends_before_its_samples_were_looked_at_says_what_is_wrong(one_task: Any) -> None:
    waiter = one_task.wait(3, where=Tag("v") > 1, timeout_s=1.0)
    one_task.put(["a"], tags=[{"v": "x"}])
    one_task.pass_time(1.0)
    assert one_task.settled() == [waiter]
    assert isinstance(waiter.outcome, TagError)


def test_groups_are_wanted_whole(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(tasks=("train",), group_size=2)
    names = [f"s{number:02d}" for number in range(40)]
    desk.put(names, group_ids=[one[:-1] + str(int(one[-1]) // 2) for one in names], tags=[{"v": 0}] * 40)
    waiter = desk.wait(4, where=WANTED)
    desk.ledger.write_tags("p", ["s00", "s02", "s03"], [{"v": 1}] * 3, 0.0)
    desk.put(["x", "y"], group_ids=["gx", "gx"], tags=[{"v": 1}, {"v": 0}])
    assert desk.settled() == []
    desk.ledger.write_tags("p", ["y"], [{"v": 1}], 0.0)
    assert desk.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["s02", "s03", "x", "y"]
    waiter = desk.wait(4, 3, where=WANTED)
    desk.clear(["s04"])
    desk.ledger.write_tags("p", ["s05"], [{"v": 1}], 0.0)
    assert desk.settled() == []
    desk.ledger.write_tags("p", ["s01"], [{"v": 1}], 0.0)
    assert desk.settled() == [waiter]
    assert sorted(waiter.outcome.sample_ids) == ["s00", "s01", "s05"]


def test_groups_may_begin_while_a_predicate_waits(one_task: Any) -> None:
    waiter = one_task.wait(2, where=WANTED)
    one_task.put(["a", "b", "c"], group_ids=["g", "g", "h"], tags=[{"v": 1}] * 3)
    assert one_task.settled() == [waiter]
    assert waiter.outcome.sample_ids == ["a", "b"]


def test_predicates_that_nobody_waits_by_are_forgotten(one_task: Any) -> None:
    one_task.put(["a"], tags=[{"v": 0}])
    waiters = [one_task.wait(1, where=Tag("v") == 10 + number, timeout_s=1.0) for number in range(20)]
    queue = one_task.ledger._held["p"].partition.queues.of(0, 1)
    assert len(queue.watchers) == 20
    one_task.pass_time(1.0)
    assert len(one_task.settled()) == len(waiters)
    for number in range(20):
        with pytest.raises(ClaimTimeoutError, match=r"0 of at least 1 were ready.*1 are ready, and not wanted"):
            one_task.claim(1, where=Tag("w") == number)
    assert len(queue.watchers) < 8
