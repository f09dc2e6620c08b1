from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.expression import ExpressionConstraint, ExpressionError, FunctionConstraint, parse
from tunegym.tuning.ports import Constraint

PARAMETERS: dict[str, Any] = {"a": 3, "b": 2.5, "flag": True, "mode": "fast", "server.threads": 8}


def holds(text: str) -> bool:
    return parse(text, PARAMETERS).evaluate(PARAMETERS)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a <= b", False),
        ("a * b <= 4096", True),
        ("1 < a < 4", True),
        ("1 < a < 3 < 9", False),
        ("a in [1, 2, 3]", True),
        ("mode not in ('fast', \"slow\")", False),
        ("flag and not a == 2", True),
        ("flag == true and flag != false and flag == True", True),
        ("a == 4 or mode == 'fast'", True),
        ("server.threads % 4 == 0", True),
        ("-a < 0", True),
        ("(a if flag else b) == 3", True),
        ("min(a, b, 9) == 2.5 and max(a, b) == 3 and abs(-a) == 3", True),
        ("ceil(b) == 3 and log2(server.threads) == 3", True),
        ("7 // 2 == 3 and 7 / 2 == 3.5", True),
        ("a <=\n  4", True),
        ("  flag ", True),
    ],
)
def test_evaluates(text: str, answer: bool) -> None:
    assert holds(text) is answer


def test_names_are_those_that_are_read() -> None:
    assert parse("server.threads < a + a and true", PARAMETERS).names == ("server.threads", "a")


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
def test_refuses(text: str) -> None:
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
def test_monsters_are_clean(text: str) -> None:
    try:
        parse(text, PARAMETERS).evaluate(PARAMETERS)
    except ExpressionError as error:
        assert len(str(error)) < 500  # noqa: PT017 (some are simply evaluated)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("thread < 3", "there is no parameter 'thread'", "did you mean 'threads'?"),
        ("server.thread < 3", "there is no parameter 'server.thread'", "did you mean 'server.threads'?"),
        ("zzz < 3", "there is no parameter 'zzz'", "there is: server.threads, threads"),
        ("threads = 3", "is not an expression: ", "compare with =="),
        ("threads && 3", "is not an expression: ", "write and, or, not"),
        ("threads ** 2 < 3", "** is not allowed", "allowed: "),
        (
            "sqrt(threads) < 3",
            "calling sqrt is not allowed",
            "functions that may be called: min, max, abs, log2, ceil",
        ),
    ],
)
def test_messages(text: str, message: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, ["threads", "server.threads"])
    assert caught.value.message.startswith(message)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a / 0 < 1", ZeroDivisionError), ("a % 0 < 1", ZeroDivisionError), ("mode * 3 == 1", TypeError),
        ("mode + mode == 1", TypeError), ("flag + 1 == 2", TypeError), ("-flag == 1", TypeError),
        ("mode < 3", TypeError), ("log2(a - 3) < 1", ArithmeticError), ("ceil(1e999) < 1", ArithmeticError),
        ("min(flag, 2) == 1", TypeError),
    ],
)  # fmt: skip
def test_what_has_no_value_raises(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        holds(text)


numbers = st.one_of(st.sampled_from(["a", "b"]), st.integers(0, 50).map(str), st.floats(0, 50).map(repr), st.just("c"))


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda text: f"(-{text})"),
        st.tuples(inner, inner).map(lambda t: f"min({t[0]}, {t[1]})"),
        inner.map(lambda text: f"abs({text})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} < 3 else {t[2]})"),
    )


arithmetic = st.recursive(numbers, combine, max_leaves=8)
comparison = st.tuples(arithmetic, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic).map(
    " ".join
) | st.tuples(arithmetic, st.sampled_from(["in", "not in"]), st.lists(arithmetic, max_size=3)).map(
    lambda t: f"{t[0]} {t[1]} [{', '.join(t[2])}]"
)
conditions = st.recursive(
    comparison,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})")
        | inner.map(lambda text: f"not ({text})")
    ),
    max_leaves=4,
)


@given(conditions, st.integers(-20, 20), st.floats(-20, 20), st.integers(0, 1))
def test_agrees_with_python(text: str, a: int, b: float, c: int) -> None:
    values = {"a": a, "b": b, "c": c}
    try:
        expected: object = bool(eval(text, {"__builtins__": {"min": min, "abs": abs}}, values))
    except ArithmeticError as error:
        expected = type(error)
    try:
        found: object = parse(text, values).evaluate(values)
    except ArithmeticError as error:
        found = type(error)
    assert found == expected


@given(st.text(st.sampled_from("ab().[]{}<>=!+-*/%'\" \\notandrif:;,@~0123456789_#\n"), max_size=40))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        parse(text, ["a", "b"])


# constraints ------------------------------------------------------------------------------------------


def expression(text: str, **values: Any) -> str | None:
    constraint: Constraint = ExpressionConstraint(text, parse(text, values))
    return constraint.refuse(values)


def test_expression() -> None:
    assert expression("a <= b", a=2, b=2) is None
    assert expression("a <= b", a=3, b=2) == 'constraint "a <= b" (a = 3, b = 2)'
    assert expression("m == 'x' and f", m="y", f=True) == 'constraint "m == \'x\' and f" (m = "y", f = true)'
    assert expression("1 > 2") == 'constraint "1 > 2"'


def test_expression_without_a_value() -> None:
    refused = expression("a / b < 1", a=1, b=0)
    assert refused == 'constraint "a / b < 1" could not be evaluated: ZeroDivisionError: division by zero'


@pytest.mark.parametrize(
    ("answer", "refused"),
    [(True, None), (False, 'constraint "m:f"'),
     (None, 'constraint "m:f" could not be evaluated: TypeError: it returned None, not True or False'),
     (1, 'constraint "m:f" could not be evaluated: TypeError: it returned 1, not True or False')],
)  # fmt: skip
def test_function(answer: object, refused: str | None) -> None:
    constraint: Constraint = FunctionConstraint("m:f", lambda _: answer)
    assert constraint.refuse({}) == refused


def test_function_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    assert FunctionConstraint("m:f", lambda p: numpy.float64(p["a"]) < 3).refuse({"a": 1}) is None


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyError("x")])
def test_function_that_raises(error: BaseException) -> None:
    def function(_: object) -> bool:
        raise error

    reason = FunctionConstraint("m:f", function).refuse({})
    assert reason == f'constraint "m:f" could not be evaluated: {type(error).__name__}: {error}'
