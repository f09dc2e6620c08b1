"""What a user's callable takes, found out without running the user's code in the driver.

A plain ``def`` is read from its source. Anything else (decorated, imported, built) is imported in a process
of its own, which has a minute.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.modules import check_unconfused, locate
from tunegym.core.references import is_reference, resolve
from tunegym.tuning.workloads.asking import answer, asked, stamp


@dataclass(frozen=True, slots=True)
class Signature:
    """What a callable takes by name.

    Attributes:
        parameters: the names it declares, in order.
        required: those of them without a default.
        takes_any: whether it takes ``**kwargs``.
        source_file: of the module; None for one without a source.
    """

    parameters: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool = False
    source_file: str | None = None


def describe(target: str, paths: tuple[str, ...] = ()) -> Signature:
    """The signature of ``module:name``, with modules in ``paths`` before all others.

    Raises:
        UnresolvedReferenceError: there is no such callable, or it can't be called by name; says why.
    """
    if not is_reference(target):
        hint = 'write "module:function"; the module may lie beside the scenario'
        raise UnresolvedReferenceError(f"{target!r} is not of the form module:function", hint=hint)
    module, _, name = target.partition(":")
    check_unconfused(module, paths)
    file = source_file(module, paths)
    found = _from_source(file, name) if file is not None else None
    return found if found is not None else _by_import(target, paths, stamp(file))


def source_file(module: str, paths: tuple[str, ...] = ()) -> str | None:
    """The source of a module, without importing it or its packages; None if it has none or isn't there."""
    file = locate(module, paths)
    if file is not None:
        return file
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if rest:
        return locate(rest, list(spec.submodule_search_locations or ()))
    return spec.origin if spec.origin and spec.origin.endswith(".py") else None


def _from_source(file: str, name: str) -> Signature | None:
    """The signature of a plain undecorated function; None where only an import can tell."""
    shown = Path(file).name
    try:
        tree = ast.parse(Path(file).read_bytes(), filename=file)
    except SyntaxError as error:
        what = f"{shown} has a syntax error: {error.msg} (line {error.lineno})"
        raise UnresolvedReferenceError(what, hint=f"mend {shown}") from None
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    bindings = [node for node in ast.walk(tree) if _binds(node, name)]
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(bindings) != 1 or len(definitions) != 1 or definitions[0].decorator_list:
        return None
    return _from_arguments(definitions[0], file)


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a statement may give ``name`` a meaning, at whatever depth (one too many does no harm)."""
    match node:
        case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
            return bound == name
        case ast.Name(id=bound, ctx=ast.Store() | ast.Del()):
            return bound == name
        case ast.alias(name=bound, asname=alias):
            return (alias or bound) in (name, "*")
        case ast.Global(names=bounds):
            return name in bounds
    return False


def _from_arguments(function: ast.FunctionDef, file: str) -> Signature:
    arguments = function.args
    _refuse_positional(function.name, [argument.arg for argument in arguments.posonlyargs])
    plain = [argument.arg for argument in arguments.args]
    keyword = [argument.arg for argument in arguments.kwonlyargs]
    required = plain[: len(plain) - len(arguments.defaults)]
    required += [name for name, default in zip(keyword, arguments.kw_defaults, strict=True) if default is None]
    return Signature((*plain, *keyword), tuple(required), arguments.kwarg is not None, file)


def _refuse_positional(function: str, names: list[str]) -> None:
    if names:
        raise UnresolvedReferenceError(
            f"{function}() takes {', '.join(names)} by position only, and parameters are given by name",
            hint="remove the / from its signature",
        )


@lru_cache(maxsize=64)
def _by_import(target: str, paths: tuple[str, ...], _: tuple[int, int] | None) -> Signature:
    """The signature as a fresh process sees it; remembered until the module's source changes."""
    found = asked(__name__, target, paths, slow_hint="move slow work from the module's top into functions")
    if "error" in found:
        raise UnresolvedReferenceError(found["error"], hint=found["hint"])
    return Signature(tuple(found["parameters"]), tuple(found["required"]), found["takes_any"], found["source_file"])


def report(target: str, *paths: str) -> None:
    """In the child: say what the signature is, or why there is none."""

    def find() -> dict[str, Any]:
        try:
            return asdict(_inspected(target, paths))
        except UnresolvedReferenceError as error:
            return {"error": error.message, "hint": error.hint}

    answer(find)


def _inspected(target: str, paths: tuple[str, ...]) -> Signature:
    import inspect

    function = resolve(target, paths)
    if not callable(function):
        raise UnresolvedReferenceError(f"{target} is not callable: it is {function!r:.60}", hint="name a function")
    module = sys.modules.get(target.partition(":")[0])
    file = getattr(module, "__file__", None)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return Signature((), (), True, file)  # it doesn't say what it takes, so it is trusted to take it all
    _refuse_positional(target, [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY])
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        tuple(p.name for p in named),
        tuple(p.name for p in named if p.default is p.empty),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        file,
    )
