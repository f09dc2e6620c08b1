"""What a user's ``GymServer`` class is and takes, found out without running the user's code in the driver.

A class has its methods from anywhere, so nothing but an import can tell: in a process of its own, which has a minute.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from tunegym.core.errors import Problem, TunegymError, UnresolvedReferenceError
from tunegym.core.modules import check_unconfused
from tunegym.core.references import is_reference, resolve
from tunegym.core.spelling import closest
from tunegym.tuning.workloads.asking import answer, asked, stamp
from tunegym.tuning.workloads.signature import source_file

METHODS = ("reset", "step", "close")
"""What every ``GymServer`` class has; spaces may be made by the constructor, so that only an instance shows them."""

_FORM = 'write "package.module:Class"; the module may lie beside the scenario'
_A_SERVER_HAS = "a server has reset(seed, options), step(action) and close()"


class ClassError(TunegymError):
    """A reference that names no ``GymServer`` class: no class at all, or one that lacks something."""


@dataclass(frozen=True, slots=True)
class GymClass:
    """A class whose instances are ``GymServer``.

    Attributes:
        reference: ``module:Class``.
        parameters: what its constructor takes by name, in order.
        required: those of them without a default.
        takes_any: whether it takes ``**kwargs``.
        applies_env_params: whether it has ``apply_env_params``.
        source_file: of the module; None for one without a source.
    """

    reference: str
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    takes_any: bool = False
    applies_env_params: bool = False
    source_file: str | None = None


def describe_class(reference: str, paths: Iterable[str] = ()) -> GymClass:
    """The class that ``module:Class`` names, with modules in ``paths`` before all others.

    Raises:
        UnresolvedReferenceError: the form is wrong, or there is no such module or name.
        ClassError: what it names is no ``GymServer`` class.
    """
    if not is_reference(reference):
        if reference.isidentifier():
            raise UnresolvedReferenceError(f"{reference!r} is a bare name: the module is missing", hint=_FORM)
        raise UnresolvedReferenceError(f"{reference!r} is not of the form module:Class", hint=_FORM)
    folders = tuple(paths)
    module = reference.partition(":")[0]
    check_unconfused(module, folders)
    file = source_file(module, folders)
    return _by_import(reference, folders, stamp(file))


def argument_problems(gym_class: GymClass, arguments: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the constructor's arguments; ``where`` is the argument's name alone."""
    name = gym_class.reference.partition(":")[2]
    takes = ", ".join(gym_class.parameters) or "nothing"
    problems = []
    for argument in arguments:
        if argument not in gym_class.parameters and not gym_class.takes_any:
            near = closest(argument, gym_class.parameters)
            hint = f"did you mean {near!r}?" if near else "remove it"
            what = f"{name}() doesn't take this argument"
            problems.append(Problem(argument, what, allowed=takes, hint=hint))
    for argument in gym_class.required:
        if argument not in arguments:
            what = f"{name}() needs this argument, and it is missing"
            problems.append(Problem(argument, what, allowed=takes, hint=f"add {argument} = ..."))
    return problems


def inspected(reference: str, paths: tuple[str, ...] = ()) -> GymClass:
    """As ``describe_class``, by importing the class into this very process."""
    found = resolve(reference, paths, inspect.isclass)
    if not inspect.isclass(found):
        kind = f"a {type(found).__name__}"
        raise ClassError(f"{reference} is no class: it is {kind}", hint="name a class; its instances are the servers")
    return described(reference, found)


def described(reference: str, found: type) -> GymClass:
    """What ``found``, whose reference this is, takes. Raises ``ClassError`` if its instances can't be servers."""
    _check_methods(reference, found)
    parameters, takes_any = _constructor(reference, found)
    file = getattr(sys.modules.get(reference.partition(":")[0]), "__file__", None)
    return GymClass(
        reference,
        tuple(p.name for p in parameters),
        tuple(p.name for p in parameters if p.default is p.empty),
        takes_any,
        _has(found, "apply_env_params"),
        file,
    )


def _check_methods(reference: str, found: type) -> None:
    name = reference.partition(":")[2]
    missing = [method for method in METHODS if not _has(found, method)]
    if missing:
        names = [one for one in dir(found) if not one.startswith("_")]
        nears = [f"{method} -> {near}" for method in missing if (near := closest(method, names)) and near != method]
        hint = f"did you mean {', '.join(nears)}?" if nears else _A_SERVER_HAS
        raise ClassError(f"{name} has no {_listed([f'{method}()' for method in missing])}", hint=hint)
    if inspect.isabstract(found):
        lacking = sorted(found.__abstractmethods__)
        raise ClassError(f"{name} is abstract: {', '.join(lacking)}", hint="define what is abstract in it")
    for method, given in (("reset", {"seed": None, "options": None}), ("step", {"action": None})):
        _check_takes(name, found, method, given)


def _check_takes(name: str, found: type, method: str, given: dict[str, Any]) -> None:
    """Refuse a method that can't be called as ``reset(seed=, options=)`` or ``step(action)``."""
    function = getattr(found, method)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # it doesn't say what it takes, so it is trusted to take it
    bound = inspect.getattr_static(found, method)
    itself = () if isinstance(bound, staticmethod | classmethod) else (None,)
    try:
        signature.bind(*itself, **given) if method == "reset" else signature.bind(*itself, *given.values())
    except TypeError as error:
        raise ClassError(f"{name}.{method}() can't be called as tunegym does: {error}", hint=_A_SERVER_HAS) from None


def _has(found: type, method: str) -> bool:
    """Whether it is there and more than the declaration of a protocol that it is derived from."""
    for base in found.__mro__:
        if method in vars(base):
            return callable(getattr(found, method, None)) and not vars(base).get("_is_protocol", False)
    return callable(getattr(found, method, None))


def _constructor(reference: str, found: type) -> tuple[list[inspect.Parameter], bool]:
    if getattr(found.__init__, "__name__", "") == "_no_init_or_replace_init":  # of typing.Protocol: takes nothing
        return [], False
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return [], True  # it doesn't say what it takes, so it is trusted to take it all
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if positional:
        what = f"{reference} takes {', '.join(positional)} by position only, and arguments are given by name"
        raise ClassError(what, hint="remove the / from its __init__")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# the process that imports it --------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _by_import(reference: str, paths: tuple[str, ...], _: tuple[int, int] | None) -> GymClass:
    """The class as a fresh process sees it; remembered until the module's source changes."""
    found = asked(__name__, reference, paths, slow_hint="move slow work from the module's top into the class")
    if "error" in found:
        kind = ClassError if found["is_class_error"] else UnresolvedReferenceError
        raise kind(found["error"], hint=found["hint"])
    parameters, required = tuple(found.pop("parameters")), tuple(found.pop("required"))
    return GymClass(parameters=parameters, required=required, **found)


def report(reference: str, *paths: str) -> None:
    """In the child: say what the class is, or why there is none."""

    def find() -> dict[str, Any]:
        try:
            return asdict(inspected(reference, paths))
        except (ClassError, UnresolvedReferenceError) as error:
            return {"error": error.message, "hint": error.hint, "is_class_error": isinstance(error, ClassError)}

    answer(find)
