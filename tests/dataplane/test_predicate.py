from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunegym.dataplane.errors import TagError
from tunegym.dataplane.ledger.samples import TagColumns
from tunegym.dataplane.predicate import Predicate, Tag, from_plain

SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LARGE = st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2.0**53, 2.0**60, 2**60 + 1, 2**63 - 1, -(2**63)])
NUMBERS = st.booleans() | st.integers(-3, 3) | st.sampled_from([-1.5, 0.0, 0.5, 2.0]) | LARGE
VALUES = NUMBERS | st.sampled_from(["", "a", "b"])
TAGS = st.dictionaries(st.sampled_from("xy"), st.none() | VALUES | st.just(math.nan))


def comparisons(values: st.SearchStrategy[Any], signs: Sequence[str] = tuple(SIGNS)) -> st.SearchStrategy[Any]:
    single = st.tuples(st.sampled_from(signs), st.sampled_from("xy"), values)
    several = st.tuples(st.just("in"), st.sampled_from("xy"), st.lists(values, max_size=3))
    return single | several


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda parts: st.tuples(st.sampled_from(["and", "or"]), parts, parts) | st.tuples(st.just("not"), parts),
        max_leaves=6,
    )


def built(tree: Any) -> Predicate:
    """As a user writes it."""
    word, *rest = tree
    if word == "not":
        return ~built(rest[0])
    if word in ("and", "or"):
        parts = built(rest[0]), built(rest[1])
        return parts[0] & parts[1] if word == "and" else parts[0] | parts[1]
    return Tag(rest[0]).isin(rest[1]) if word == "in" else SIGNS[word](Tag(rest[0]), rest[1])


def evaluated(tree: Any, tags: Mapping[str, Any]) -> bool:
    """As Python would say it."""
    word, *rest = tree
    if word == "not":
        return not evaluated(rest[0], tags)
    if word in ("and", "or"):
        return (all if word == "and" else any)(evaluated(part, tags) for part in rest)
    found = tags.get(rest[0])
    if found is None:
        return False
    if word == "in":
        return found in rest[1] and found == found
    return SIGNS[word](found, rest[1])


def masks(predicate: Predicate, tags: Sequence[Mapping[str, Any]]) -> list[bool]:
    """As the ledger evaluates it: over columns."""
    columns, rows = TagColumns(max(1, len(tags))), np.arange(len(tags))
    columns.put(rows, columns.check(tags))
    return predicate.mask(lambda name: columns.column(name, rows)).tolist()


@given(trees(comparisons(VALUES, ["==", "!="])), st.lists(TAGS, max_size=8))
def test_equality_is_as_in_python(tree: Any, tags: list[dict[str, Any]]) -> None:
    assert masks(built(tree), tags) == [evaluated(tree, one) for one in tags]


@given(
    trees(comparisons(NUMBERS)),
    st.sampled_from([NUMBERS, st.booleans(), st.integers(-3, 3) | st.just(2**53 + 1), st.floats()]).flatmap(
        lambda values: st.lists(st.fixed_dictionaries({"x": values, "y": values}), max_size=8)
    ),
)
@example((">=", "x", 2.0**53), [{"x": 2**53 - 1}, {"x": 2**53 + 1}])
@example(("==", "x", 2.0**53), [{"x": 2**53 + 1}])
@example(("==", "x", 2**53 + 1), [{"x": 2.0**53}])
@example(("<", "x", 2**63 - 1), [{"x": 1.0}])
@example(("==", "x", 2**63 - 1), [{"x": 2**63 - 1}])
def test_order_of_numbers_is_as_in_python(tree: Any, tags: list[dict[str, Any]]) -> None:
    assert masks(built(tree), tags) == [evaluated(tree, one) for one in tags]


@given(trees(comparisons(st.text(max_size=2))), st.lists(st.dictionaries(st.sampled_from("xy"), st.text(max_size=2))))
def test_order_of_texts_is_as_in_python(tree: Any, tags: list[dict[str, Any]]) -> None:
    assert masks(built(tree), tags) == [evaluated(tree, one) for one in tags]


@given(trees(comparisons(VALUES)))
def test_a_predicate_travels_as_plain_data(tree: Any) -> None:
    predicate = built(tree)
    plain = predicate.plain()
    again = from_plain(json.loads(json.dumps(plain)))
    assert again.plain() == plain
    assert str(again) == str(predicate)


def test_a_sample_without_the_tag_is_not_wanted_unless_by_not() -> None:
    tags = [{"x": 1}, {}, {"x": None}]
    assert masks(Tag("x") != 5, tags) == [True, False, False]
    assert masks(~(Tag("x") == 5), tags) == [True, True, True]
    assert masks(Tag("x").isin([]), tags) == [False] * 3


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_a_text_and_a_number_have_no_order(sign: str) -> None:
    for tag, value in ((1, "a"), ("a", 1), (True, "a"), (0.5, "a")):
        predicate = SIGNS[sign](Tag("x"), value)
        with pytest.raises(TagError, match=r"'x'.*can't be compared"):
            masks(predicate, [{"x": tag}])
        assert masks(predicate, [{}, {"x": None}]) == [False, False]
    with pytest.raises(TagError):
        masks(SIGNS[sign](Tag("x"), 1), [{"x": 1}, {"x": "a"}])


def test_neither_a_predicate_nor_a_tag_is_true_or_false() -> None:
    one, other = Tag("x") > 1, Tag("y") > 1
    for wrong in (
        lambda: one and other,
        lambda: one or other,
        lambda: not one,
        lambda: 1 < Tag("x") < 3,
        lambda: Tag("x") and one,
        lambda: not Tag("x"),
        lambda: 1 in [Tag("x"), 2],
    ):
        with pytest.raises(TypeError, match="no truth value"):
            wrong()


def test_only_predicates_can_be_combined() -> None:
    with pytest.raises(TypeError, match="expected a predicate"):
        (Tag("x") > 1) & Tag("y")  # type: ignore[operator]
    with pytest.raises(TypeError, match="expected a predicate"):
        (Tag("x") > 1) | True  # type: ignore[operator]
    with pytest.raises(TypeError):
        Tag("x") > 1 & Tag("y") < 2  # type: ignore[operator]  # noqa: B015
    with pytest.raises(TypeError):
        {Tag("x")}


@pytest.mark.parametrize(
    "value",
    [None, [1], b"x", 1j, np.zeros(2), "\ud800", math.nan, np.float32("-inf"), 2**63, -(2**63) - 1, 10**400],
)
def test_a_value_that_no_tag_can_have_is_refused(value: Any) -> None:
    for wrong in (
        lambda: Tag("x") == value,
        lambda: Tag("x") < value,
        lambda: Tag("x").isin([1, value]),
        lambda: from_plain(["<", "x", value]),
    ):
        with pytest.raises(TagError, match="tag 'x' can't be compared with") as told:
            wrong()
        assert told.value.hint


def test_what_is_nested_too_deeply_is_refused_where_it_is_written() -> None:
    predicate = Tag("x") == 0
    for value in range(1, 51):
        predicate |= Tag("x") == value
    assert masks(from_plain(predicate.plain()), [{"x": 50}]) == [True]
    with pytest.raises(TagError, match="deeper than 50") as told:
        predicate |= Tag("x") == 51
    assert "isin" in str(told.value.hint)


@pytest.mark.parametrize(
    "plain",
    [
        None,
        "x",
        [],
        {},
        ["and"],
        ["and", ["==", "x", 1]],
        ["not", ["==", "x", 1], ["==", "x", 1]],
        ["~", "x", 1],
        ["==", 1, 1],
        ["==", "", 1],
        ["==", "x"],
        ["==", "x", [1]],
        ["==", "x", None],
        ["==", "x", math.nan],
        ["in", "x", 1],
        ["in", "x", "ab"],
        ["in", "x", [[1]]],
        [["=="], "x", 1],
        [None, "x", 1],
        [3, "x", 1],
        ["or", ["==", "x", 1], "x"],
    ],
)
def test_plain_data_that_is_no_predicate_is_refused(plain: Any) -> None:
    with pytest.raises(TagError):
        from_plain(plain)
