"""Constraints: expressions agree with Python, reach nothing else, and say why they refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.expression import Constraint, ExpressionError, parse

PARAMETERS: dict[str, Any] = {"a": 3, "b": 2.5, "flag": True, "mode": "fast", "server.threads": 8}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1 < a < 3 < 9", False),
        ("mode not in ('fast', \"slow\")", False),
        ("flag == true and flag != false and flag == True", True),
        ("a == 4 or mode == 'fast'", True),
        ("max(a, b) == 3 and ceil(b) == 3 and log2(server.threads) == 3", True),
        ("a <=\n  4", True),
        ("  flag ", True),
    ],
)
def test_conditions(text: str, answer: bool) -> None:
    assert parse(text, PARAMETERS).holds(PARAMETERS) is answer


@pytest.mark.parametrize(
    "text",
    [
        "().__class__", "().__class__.__bases__[0].__subclasses__() == 1", "__import__('os').system('true') == 0",
        "a.__class__ == 1", "mode.format(a) == ''", "flag.real == 1", "eval('1') == 1", "open('/etc/passwd') == 1",
        "[x for x in (1,)] == 1", "(lambda: 1)() == 1", "f'{a}' == '3'", "(y := 3) == 3", "a ** 9 > 1", "1 << 9 > 1",
        "a | 1 == 1", "~a == 1", "a[0] == 1", "{1: 2} == 1", "a in {1, 2}", "a in mode", "'f' in mode", "[1] == [1]",
        "min(*[1, 2]) == 1", "min(a, b, key=abs) == 1", "max(1) == 1", "abs(1, 2) == 1", "None == a", "... == a",
        "b'x' == a", "1j == a", "a is a", "exec('1') == 1", "__builtins__ == 1", "min.__self__ == 1", "min == 1",
        "a; b", "import os", "a = 3", "", "   ", "a <", "a && b", "!a", "await a", "yield", "\x00", "a\x00 == 1",
        "print(a) == 1", "(*a,) == 1", "a + b", "-a", "3", "'x'", "max(a, b)", "server == 1", "server.x == 1",
        "a @ b == 1", "lambda: 1", "a == '\\N{nope}'", "\ud800 == 1",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text, PARAMETERS)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000, "not " * 5_000 + "a", "not " * 400 + "a", "-" * 1900 + "a < 1", "(" * 150 + "a" + ")" * 150,
        "(" * 90 + "-a" + ")" * 90, "a + " * 400 + "a < 1", "[" * 1999, "a" * 5000, "a < " * 450 + "a",
        "a if " * 200 + "a" + " else a" * 200, "{" * 1999, "9" * 5000, "9" * 1999 + " < a", "~" * 1999 + "a",
    ],
)  # fmt: skip
def test_huge_expressions(text: str) -> None:
    try:
        parse(text, PARAMETERS).holds(PARAMETERS)
    except ExpressionError as error:
        assert len(str(error)) < 500  # noqa: PT017 (some are simply evaluated)


@given(st.text(st.sampled_from("ab().[]{}<>=!+-*/%'\" \\notandrif:;,@~0123456789_#\n"), max_size=40))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        parse(text, ["a", "b"])


numbers = st.one_of(st.sampled_from(["a", "b"]), st.integers(0, 50).map(str), st.floats(0, 50).map(repr), st.just("c"))


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
        st.builds("(-{})".format, inner),
        st.builds("min({}, {})".format, inner, inner),
        st.builds("abs({})".format, inner),
        st.builds("({} if {} < 3 else {})".format, inner, inner, inner),
    )


arithmetic = st.recursive(numbers, combine, max_leaves=8)
comparison = st.one_of(
    st.builds("{} {} {}".format, arithmetic, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic),
    st.builds("{0} < {1} <= {2}".format, arithmetic, arithmetic, arithmetic),
    st.builds("{} in [{}]".format, arithmetic, st.lists(arithmetic, max_size=3).map(", ".join)),
    st.builds("{} not in ({}, 1)".format, arithmetic, arithmetic),
)
joined = st.sampled_from(["({}) and ({})", "({}) or ({})", "not ({}) or not ({})"])
conditions = st.recursive(comparison, lambda inner: st.builds(str.format, joined, inner, inner), max_leaves=4)


@given(conditions, st.integers(-20, 20), st.floats(-20, 20), st.integers(0, 1))
def test_agrees_with_python(text: str, a: int, b: float, c: int) -> None:
    values = {"a": a, "b": b, "c": c}
    try:
        expected = bool(eval(text, {"__builtins__": {"min": min, "abs": abs}}, values))
    except ArithmeticError as error:
        with pytest.raises(type(error)):
            parse(text, values).holds(values)
    else:
        assert parse(text, values).holds(values) == expected


@pytest.mark.parametrize(
    ("text", "values", "refused"),
    [
        ("b < a + a and true", {"a": 1, "b": 2}, " (b = 2, a = 1)"),
        ("m == 'x' and f", {"m": "y", "f": True}, ' (m = "y", f = true)'),
        ("1 > 2", {}, ""),
        ("a / b < 1", {"a": 1, "b": 0}, " could not be evaluated: ZeroDivisionError: division by zero"),
        ("m * 3 == 1", {"m": "x"}, " could not be evaluated: TypeError: 'x' is not a number"),
        ("f + 1 == 2", {"f": True}, " could not be evaluated: TypeError: True is not a number"),
        ("-f == 1", {"f": True}, " could not be evaluated: TypeError: True is not a number"),
        ("min(f, 2) == 1", {"f": True}, " could not be evaluated: TypeError: True is not a number"),
        ("log2(a - 3) < 1", {"a": 3}, " could not be evaluated: ArithmeticError: log2 of 0"),
        ("ceil(1e999) < 1", {}, " could not be evaluated: OverflowError: cannot convert float infinity to integer"),
    ],
)
def test_refusals_of_an_expression(text: str, values: dict[str, Any], refused: str) -> None:
    assert parse(text, values).refuse(values) == f'constraint "{text}"{refused}'


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (np.bool_(True), None),
        (False, ""),
        (1, " could not be evaluated: TypeError: it returned 1, not True or False"),
        (SystemExit(3), " could not be evaluated: SystemExit: 3"),
    ],
)
def test_refusals_of_a_function(answer: object, refused: str | None) -> None:
    def function(_: object) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert Constraint("m:f", function).refuse({}) == (None if refused is None else f'constraint "m:f"{refused}')
