"""Constraints: which parameters may be tried. As an expression, or as a user's function.

Expressions are a small part of Python's syntax, compiled once. Every name becomes a look-up of a parameter, so an
evaluation can reach nothing but the parameters' values: there is no attribute access, no subscript, and no call but a
short list.
"""

from __future__ import annotations

import ast
import math
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
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
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
    is_expression: bool = False  # pure and quick, so agents ask it before they choose

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
    checker = _Checker(frozenset(names))
    tree = ast.fix_missing_locations(ast.Expression(checker.visit(body)))
    if _is_value(body):
        raise ExpressionError("is a value, not a condition", hint="compare it with something: a + b <= 8")
    code = compile(tree, "constraint", "eval")

    def holds(parameters: Mapping[str, Any]) -> bool:
        return bool(eval(code, _GLOBALS, {_PARAMETERS: parameters}))

    return Constraint(text, holds, tuple(checker.used), is_expression=True)


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


class _Checker(ast.NodeTransformer):
    """Refuses what is no part of our expressions. Names become look-ups, and operands of arithmetic must be numbers."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.used: dict[str, None] = {}
        self._depth = 0

    def visit(self, node: ast.AST) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep()
        found = super().visit(node)
        self._depth -= 1
        return found

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, ast.BoolOp | ast.boolop | ast.IfExp):
            _forbid(_KINDS.get(type(node), type(node).__name__))
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, bool | int | float | str):
            _forbid(_KINDS[ast.Constant])
        return node

    def visit_Name(self, node: ast.Name | ast.Attribute) -> ast.expr:
        address = _dotted(node)
        if address is None:
            _forbid("attribute access")
        if address in _LITERALS:
            return ast.Constant(_LITERALS[address])
        if address not in self.names:
            exists = ", ".join(sorted(self.names)) or "none"
            hint = did_you_mean(address, self.names, f"there is: {exists}")
            raise ExpressionError(f"there is no parameter {address!r}", hint=hint)
        self.used.setdefault(address)
        return ast.Subscript(ast.Name(_PARAMETERS, ast.Load()), ast.Constant(address), ast.Load())

    visit_Attribute = visit_Name  # noqa: N815 - as ``ast`` names it

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if not isinstance(node.op, _OPERATORS):
            _forbid(_KINDS.get(type(node.op), type(node.op).__name__))
        return ast.BinOp(self._number(node.left), node.op, self._number(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Invert):
            _forbid("~")
        checked = self.visit if isinstance(node.op, ast.Not) else self._number
        return ast.UnaryOp(node.op, checked(node.operand))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operands = [self.visit(node.left)]
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.Is | ast.IsNot):
                _forbid("is", "compare with ==")
            if isinstance(op, ast.In | ast.NotIn):
                if not isinstance(right, ast.List | ast.Tuple):
                    _forbid("in without a list on its right", "write: x in [1, 2]")
                operands.append(ast.List([self.visit(item) for item in right.elts], ast.Load()))
            else:
                operands.append(self.visit(right))
        return ast.Compare(operands[0], node.ops, operands[1:])

    def visit_List(self, node: ast.List | ast.Tuple) -> ast.expr:
        _forbid("a list outside of in", "write: x in [1, 2]")

    visit_Tuple = visit_List  # noqa: N815

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            shown = f"calling {ast.unparse(node.func)[:60]}"
            _forbid(shown, f"functions that may be called: {', '.join(_FUNCTIONS)}")
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            _forbid(f"a keyword or starred argument of {name}")
        _, least, most = _FUNCTIONS[name]
        if not least <= len(node.args) <= most:
            wants = "one argument" if most == 1 else "at least two arguments"
            raise ExpressionError(f"{name} takes {wants}, not {len(node.args)}")
        return ast.Call(node.func, [self._number(argument) for argument in node.args], [])

    def _number(self, node: ast.expr) -> ast.expr:
        return ast.Call(ast.Name(_number.__name__, ast.Load()), [self.visit(node)], [])


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
_PARAMETERS = "parameters"
_GLOBALS = {"__builtins__": {}, "_number": _number, **{name: function for name, (function, *_) in _FUNCTIONS.items()}}
_KINDS: dict[type[ast.AST], str] = {
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^",
    ast.MatMult: "@", ast.Subscript: "a subscript", ast.Lambda: "lambda", ast.NamedExpr: ":=",
    ast.JoinedStr: "an f-string", ast.ListComp: "a comprehension", ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension", ast.GeneratorExp: "a comprehension", ast.Set: "a set",
    ast.Dict: "a dictionary", ast.Starred: "*", ast.Constant: "None, ..., bytes or a complex number",
}  # fmt: skip
