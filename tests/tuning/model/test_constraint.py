from __future__ import annotations

from typing import Any

import pytest

from tunegym.tuning.model.expression import ExpressionConstraint, FunctionConstraint, parse
from tunegym.tuning.ports import Constraint


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
