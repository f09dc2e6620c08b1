"""Predicates over tags: evaluated as Python would, sent as plain data, refused where they are wrong."""

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

EQUAL = {"==": operator.eq, "!=": operator.ne}
ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SIGNS = {**EQUAL, **ORDER}
LARGE = st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2.0**53, 2.0**60, 2**60 + 1, 2**63 - 1, -(2**63)])
NUMBERS = st.booleans() | st.integers(-3, 3) | st.sampled_from([-1.5, 0.0, 0.5, 2.0]) | LARGE
TEXTS = st.text(max_size=2)
ANY = NUMBERS | st.sampled_from(["", "a", "b"])


def trees(values: st.SearchStrategy[Any], signs: Sequence[str] = tuple(SIGNS)) -> st.SearchStrategy[Any]:
    """Predicates as plain data."""
    single = st.tuples(st.sampled_from(signs), st.sampled_from("xy"), values)
    several = st.tuples(st.just("in"), st.sampled_from("xy"), st.lists(values, max_size=3))
    return st.recursive(
        single | several,
        lambda parts: st.tuples(st.sampled_from(["and", "or"]), parts, parts) | st.tuples(st.just("not"), parts),
        max_leaves=6,
    )


def tags_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.dictionaries(st.sampled_from("xy"), values), max_size=8)


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
    return found in rest[1] and found == found if word == "in" else SIGNS[word](found, rest[1])


def masks(predicate: Predicate, tags: Sequence[Mapping[str, Any]]) -> list[bool]:
    """As the ledger evaluates it: over columns."""
    columns, rows = TagColumns(max(1, len(tags))), np.arange(len(tags))
    columns.put(rows, columns.check(tags))
    return predicate.mask(lambda name: columns.column(name, rows)).tolist()


@given(
    st.one_of(
        st.tuples(trees(ANY, tuple(EQUAL)), tags_of(st.none() | ANY | st.just(math.nan))),
        st.tuples(trees(TEXTS), tags_of(TEXTS)),
        *(
            st.tuples(trees(NUMBERS), tags_of(values))  # a column of one dtype, or of several
            for values in (NUMBERS, st.booleans(), st.integers(-3, 3) | st.just(2**53 + 1), st.floats())
        ),
    )
)
@example(((">=", "x", 2.0**53), [{"x": 2**53 - 1}, {"x": 2**53 + 1}]))
@example((("==", "x", 2.0**53), [{"x": 2**53 + 1}]))
@example((("==", "x", 2**53 + 1), [{"x": 2.0**53}]))
@example((("<", "x", 2**63 - 1), [{"x": 1.0}]))
@example((("not", ("==", "x", 5)), [{"x": 1}, {}, {"x": None}]))
def test_a_predicate_selects_as_python_does(drawn: tuple[Any, list[dict[str, Any]]]) -> None:
    tree, tags = drawn
    assert masks(from_plain(tree), tags) == [evaluated(tree, one) for one in tags]


@given(trees(ANY))
def test_a_predicate_travels_as_plain_data(tree: Any) -> None:
    plain = json.loads(json.dumps(tree))
    assert from_plain(plain).plain() == plain


def test_operators() -> None:
    x, y = Tag("x"), Tag("y")
    predicate = ((x == 1) | (x != 2)) & ~((x < 3) & (x <= 4) & (y > 5)) & ((y >= "a") | y.isin([np.int64(1), "b"]))
    assert str(predicate) == (
        "(((Tag('x') == 1) | (Tag('x') != 2)) & (~(((Tag('x') < 3) & (Tag('x') <= 4)) & (Tag('y') > 5))))"
        " & ((Tag('y') >= 'a') | (Tag('y') in (1, 'b')))"
    )
    assert str(from_plain(predicate.plain())) == str(predicate)


@pytest.mark.parametrize("sign", ORDER)
@pytest.mark.parametrize(("tag", "value"), [(1, "a"), ("a", 1), (True, "a"), (0.5, "a")])
def test_a_text_and_a_number_have_no_order(sign: str, tag: Any, value: Any) -> None:
    predicate = SIGNS[sign](Tag("x"), value)
    for tags in ([{"x": tag}], [{"x": value}, {"x": tag}]):
        with pytest.raises(TagError, match=r"'x'.*can't be compared"):
            masks(predicate, tags)
    assert masks(predicate, [{}, {"x": None}]) == [False, False]


def test_a_predicate_has_no_truth_value() -> None:
    one, other = Tag("x") > 1, Tag("y") > 1
    for wrong in (
        lambda: one and other,
        lambda: not one,
        lambda: 1 < Tag("x") < 3,
        lambda: Tag("x") and one,
        lambda: 1 in [Tag("x"), 2],
    ):
        with pytest.raises(TypeError, match="no truth value"):
            wrong()
    for wrong in (lambda: one & Tag("y"), lambda: one | True):  # type: ignore[operator]
        with pytest.raises(TypeError, match="expected a predicate"):
            wrong()
    for wrong in (lambda: Tag("x") > 1 & Tag("y") < 2, lambda: {Tag("x")}):  # type: ignore[operator]
        with pytest.raises(TypeError):
            wrong()


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


def test_deep_nesting_is_refused() -> None:
    predicate = Tag("x") == 0
    for value in range(1, 51):
        predicate |= Tag("x") == value
    assert masks(from_plain(predicate.plain()), [{"x": 50}]) == [True]
    with pytest.raises(TagError, match="deeper than 50") as told:
        predicate |= Tag("x") == 51
    assert "isin" in str(told.value.hint)
    with pytest.raises(TagError, match="deeper than 50"):
        from_plain(["not", ["not", predicate.plain()]])


ONE = ["==", "x", 1]
NO_PREDICATES = [None, "x", [], {}, ["and"], ["and", ONE], ["not", ONE, ONE], ["or", ONE, "x"], [["=="], "x", 1]]
NO_PREDICATES += [["~", "x", 1], ["==", 1, 1], ["==", "", 1], ["==", "x"], ["in", "x", 1], ["in", "x", "ab"]]


@pytest.mark.parametrize("plain", NO_PREDICATES)
def test_plain_data_that_is_no_predicate_is_refused(plain: Any) -> None:
    with pytest.raises(TagError):
        from_plain(plain)
