"""Constraints: which parameters may be tried. As an expression, or as a user's function.

Expressions are a small part of Python's, without Python's ``eval``: parsed once into closures. Names are resolved while
parsing, so an evaluation can reach nothing but the parameters' values: there is no attribute access, no subscript, and
no call but a short list.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from tunegym.core.errors import TunegymError
from tunegym.core.text import did_you_mean
from tunegym.tuning.model.values import spelled

MAX_LENGTH = 2000
MAX_DEPTH = 60

Run: TypeAlias = Callable[[Mapping[str, Any]], Any]

_NUMBERS = frozenset({int, float})  # by exact type: bool is an int to Python, and no number to us
_LITERALS = {"true": True, "false": False}
_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv), ast.FloorDiv: ("//", operator.floordiv), ast.Mod: ("%", operator.mod),
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}  # fmt: skip
_SHORTER = 'split it in several constraints, or write a function: "module:function"'
_ALLOWED = "numbers, strings, true, false, parameters, + - * / // %, == <, in [..], and, or, not, if else"


class ExpressionError(TunegymError):
    """Not a valid expression, or it names an unknown parameter."""


@dataclass(frozen=True)
class Constraint:
    """Refuses parameters for which a condition is false, or can't be evaluated."""

    text: str  # the expression, or the reference of a user's function
    holds: Run = field(repr=False, compare=False)  # called with the parameters by address; returns a boolean
    names: tuple[str, ...] = ()  # the parameters whose values a refusal shows

    def refuse(self, parameters: Mapping[str, Any]) -> str | None:
        """Return why the parameters are refused; None if they may run."""
        try:
            answer = self.holds(parameters)
            if hasattr(answer, "item"):  # numpy's own booleans
                answer = answer.item()
            if not isinstance(answer, bool):
                raise TypeError(f"it returned {answer!r}, not True or False")
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            return f'constraint "{self.text}" could not be evaluated: {type(error).__name__}: {error}'
        if answer:
            return None
        values = ", ".join(f"{name} = {spelled(parameters[name])}" for name in self.names)
        return f'constraint "{self.text}" ({values})' if values else f'constraint "{self.text}"'


def parse(text: str, names: Collection[str]) -> Constraint:
    """Parse ``text`` as a condition over the parameters ``names`` (addresses such as ``server.threads``).

    Raises:
        ExpressionError: it is no expression, too long, too deep, names an unknown parameter, holds something
            that is not allowed, or is a number or a string where a condition is wanted.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"is too long ({len(text)} characters, at most {MAX_LENGTH})", hint=_SHORTER)
    body = _syntax(text)
    compiler = _Compiler(frozenset(names))
    run = compiler.compile(body, 0)
    if _is_value(body):
        raise ExpressionError("is a value, not a condition", hint="compare it with something: a + b <= 8")
    return Constraint(text, lambda parameters: bool(run(parameters)), tuple(compiler.used))


def _is_value(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return not isinstance(node.op, ast.Not)
    if isinstance(node, ast.Constant):
        return type(node.value) is not bool
    return isinstance(node, ast.BinOp | ast.Call)


def _syntax(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a string is no concern of the driver's log
            return ast.parse(text.replace("\n", " ").strip(), mode="eval").body
    except (MemoryError, RecursionError):
        raise _too_deep() from None
    except SyntaxError as error:
        at = f" (column {error.offset})" if error.offset else ""
        raise ExpressionError(f"is not an expression: {error.msg}{at}", hint=_syntax_hint(text)) from None
    except ValueError as error:
        raise ExpressionError(f"is not an expression: {error}", hint=f"allowed: {_ALLOWED}") from None


def _syntax_hint(text: str) -> str:
    if "&&" in text or "||" in text or "!" in text.replace("!=", ""):
        return "write and, or, not"
    if "=>" in text or "=<" in text:
        return "write >= or <="
    bare = text
    for comparison in ("==", "<=", ">=", "!="):
        bare = bare.replace(comparison, "")
    return "compare with ==" if "=" in bare else f"allowed: {_ALLOWED}"


def _too_deep() -> ExpressionError:
    return ExpressionError(f"is nested too deep (at most {MAX_DEPTH} levels)", hint=_SHORTER)


def _forbid(what: str, hint: str = f"allowed: {_ALLOWED}") -> NoReturn:
    raise ExpressionError(f"{what} is not allowed", hint=hint)


class _Compiler:
    """Turns a syntax tree into closures and notes the parameters it meets."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.used: dict[str, None] = {}

    def compile(self, node: ast.expr, depth: int) -> Run:
        if depth > MAX_DEPTH:
            raise _too_deep()
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return lambda _: value
            case ast.Name() | ast.Attribute():
                return self._name(node)
            case ast.BinOp(left, op, right):
                return self._arithmetic(op, self.compile(left, depth + 1), self.compile(right, depth + 1))
            case ast.UnaryOp(op, operand):
                return self._unary(op, self.compile(operand, depth + 1))
            case ast.BoolOp(op, values):
                return _junction(op, [self.compile(value, depth + 1) for value in values])
            case ast.Compare():
                return self._comparison(node, depth)
            case ast.IfExp(test, then, otherwise):
                check, yes, no = (self.compile(part, depth + 1) for part in (test, then, otherwise))
                return lambda parameters: yes(parameters) if check(parameters) else no(parameters)
            case ast.Call():
                return self._call(node, depth)
            case ast.List() | ast.Tuple():
                _forbid("a list outside of in", "write: x in [1, 2]")
        _forbid(_KINDS.get(type(node), type(node).__name__))

    def _name(self, node: ast.Name | ast.Attribute) -> Run:
        address = _dotted(node)
        if address is None:
            _forbid("attribute access")
        if address in _LITERALS:
            value = _LITERALS[address]
            return lambda _: value
        if address not in self.names:
            exists = ", ".join(sorted(self.names)) or "none"
            hint = did_you_mean(address, self.names, f"there is: {exists}")
            raise ExpressionError(f"there is no parameter {address!r}", hint=hint)
        self.used.setdefault(address)
        return operator.itemgetter(address)

    def _arithmetic(self, op: ast.operator, left: Run, right: Run) -> Run:
        if type(op) not in _ARITHMETIC:
            _forbid(_KINDS.get(type(op), type(op).__name__))
        sign, apply = _ARITHMETIC[type(op)]

        def run(parameters: Mapping[str, Any]) -> Any:
            x, y = left(parameters), right(parameters)
            if type(x) in _NUMBERS and type(y) in _NUMBERS:
                return apply(x, y)
            raise TypeError(f"{x!r} {sign} {y!r}: arithmetic is for numbers")

        return run

    def _unary(self, op: ast.unaryop, operand: Run) -> Run:
        if isinstance(op, ast.Not):
            return lambda parameters: not operand(parameters)
        if isinstance(op, ast.USub):
            return lambda parameters: -_number(operand(parameters))
        if isinstance(op, ast.UAdd):
            return lambda parameters: _number(operand(parameters))
        _forbid("~")

    def _comparison(self, node: ast.Compare, depth: int) -> Run:
        runs = [self.compile(node.left, depth + 1)]
        compares: list[Callable[[Any, Any], bool]] = []
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                if not isinstance(right, ast.List | ast.Tuple):
                    _forbid("in without a list on its right", "write: x in [1, 2]")
                items = [self.compile(item, depth + 1) for item in right.elts]
                runs.append(lambda parameters, items=items: [item(parameters) for item in items])
            else:
                runs.append(self.compile(right, depth + 1))
            if type(op) not in _COMPARISONS:
                _forbid("is", "compare with ==")
            compares.append(_COMPARISONS[type(op)])
        return _compared(runs, compares)

    def _call(self, node: ast.Call, depth: int) -> Run:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            shown = f"calling {ast.unparse(node.func)[:60]}"
            _forbid(shown, f"functions that may be called: {', '.join(_FUNCTIONS)}")
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            _forbid(f"a keyword or starred argument of {name}")
        function, least, most = _FUNCTIONS[name]
        if not least <= len(node.args) <= most:
            wants = "one argument" if most == 1 else "at least two arguments"
            raise ExpressionError(f"{name} takes {wants}, not {len(node.args)}")
        arguments = [self.compile(argument, depth + 1) for argument in node.args]
        return lambda parameters: function(*[_number(argument(parameters)) for argument in arguments])


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _number(value: Any) -> Any:
    if type(value) in _NUMBERS:
        return value
    raise TypeError(f"{value!r} is not a number")


def _junction(op: ast.boolop, runs: list[Run]) -> Run:
    """``and`` or ``or``, with Python's short circuit and Python's value."""
    stops_at = isinstance(op, ast.Or)
    *first, last = runs

    def run(parameters: Mapping[str, Any]) -> Any:
        for operand in first:
            value = operand(parameters)
            if bool(value) is stops_at:
                return value
        return last(parameters)

    return run


def _compared(runs: list[Run], compares: list[Callable[[Any, Any], bool]]) -> Run:
    first, pairs = runs[0], list(zip(compares, runs[1:], strict=True))

    def run(parameters: Mapping[str, Any]) -> bool:
        left = first(parameters)
        for compare, operand in pairs:
            right = operand(parameters)
            if not compare(left, right):
                return False
            left = right
        return True

    return run


def _log2(value: float) -> float:
    if value <= 0:
        raise ArithmeticError(f"log2 of {value!r}")
    return math.log2(value)


_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "min": (min, 2, MAX_LENGTH),
    "max": (max, 2, MAX_LENGTH),
    "abs": (abs, 1, 1),
    "log2": (_log2, 1, 1),
    "ceil": (math.ceil, 1, 1),
}
_KINDS: dict[type[ast.AST], str] = {
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^",
    ast.MatMult: "@", ast.Subscript: "a subscript", ast.Lambda: "lambda", ast.NamedExpr: ":=",
    ast.JoinedStr: "an f-string", ast.ListComp: "a comprehension", ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension", ast.GeneratorExp: "a comprehension", ast.Set: "a set",
    ast.Dict: "a dictionary", ast.Starred: "*", ast.Constant: "None, ..., bytes or a complex number",
}  # fmt: skip
