"""What a user's callable or ``GymServer`` class takes by name.

Only an import can tell, and it runs the user's code: so a child process imports the module and answers. It has a
minute. Answers are remembered until the module's file changes.
"""

from __future__ import annotations

import inspect
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunegym.core.errors import Problem, TunegymError, UnresolvedReferenceError
from tunegym.core.processes import milliseconds, start_python
from tunegym.core.references import check_unconfused, is_reference, locate, resolve
from tunegym.core.text import closest

IMPORT_TIMEOUT_S = 60.0

METHODS = ("reset", "step", "close")
"""What every ``GymServer`` class has; spaces may be made by the constructor, so that only an instance shows them."""

_A_SERVER_HAS = "a server has reset(seed, options), step(action) and close()"


class ClassError(TunegymError):
    """A reference that names no ``GymServer`` class: no class at all, or one that lacks something."""


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


@dataclass(frozen=True, slots=True)
class GymClass:
    """A class whose instances are ``GymServer``; its constructor takes what a ``Signature`` says.

    Attributes:
        reference: ``module:Class``.
        applies_env_params: whether it has ``apply_env_params``.
    """

    reference: str
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    takes_any: bool = False
    applies_env_params: bool = False
    source_file: str | None = None


Variables = tuple[tuple[str, str], ...]
"""Environment variables, by name."""


def describe(target: str, paths: tuple[str, ...] = (), *, isolate: bool = True, variables: Variables = ()) -> Signature:
    """The signature of ``module:name``, with modules in ``paths`` before all others.

    A module may need the ``variables`` of a trial when it is imported.

    Raises:
        UnresolvedReferenceError: there is no such callable, or it can't be called by name; says why.
    """
    check_form(target, "function")
    check_unconfused(target.partition(":")[0], paths)
    if not isolate:
        return inspect_callable(target, paths)
    found = _asked("callable", target, paths, _stamp(target, paths), variables)
    return Signature(tuple(found.pop("parameters")), tuple(found.pop("required")), **found)


def describe_class(reference: str, paths: Iterable[str] = ()) -> GymClass:
    """The class that ``module:Class`` names, with modules in ``paths`` before all others.

    Raises:
        UnresolvedReferenceError: the form is wrong, or there is no such module or name.
        ClassError: what it names is no ``GymServer`` class.
    """
    folders = tuple(paths)
    check_form(reference, "Class")
    check_unconfused(reference.partition(":")[0], folders)
    found = _asked("class", reference, folders, _stamp(reference, folders))
    return GymClass(parameters=tuple(found.pop("parameters")), required=tuple(found.pop("required")), **found)


def argument_problems(gym_class: GymClass, arguments: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the constructor's arguments; ``where`` is the argument's name alone."""
    name = gym_class.reference.partition(":")[2]
    takes = ", ".join(gym_class.parameters) or "nothing"
    problems = []
    for argument in arguments:
        if argument not in gym_class.parameters and not gym_class.takes_any:
            near = closest(argument, gym_class.parameters)
            hint = f"did you mean {near!r}?" if near else "remove it"
            problems.append(Problem(argument, f"{name}() doesn't take this argument", allowed=takes, hint=hint))
    for argument in gym_class.required:
        if argument not in arguments:
            what = f"{name}() needs this argument, and it is missing"
            problems.append(Problem(argument, what, allowed=takes, hint=f"add {argument} = ..."))
    return problems


def check_form(text: str, what: str) -> None:
    """Refuse a text that is no reference. Raises ``UnresolvedReferenceError``."""
    if is_reference(text):
        return
    module, _, name = text.rpartition(".")
    hint = f'write "package.module:{what}"; the module may lie beside the scenario'
    if text.isidentifier():
        why = "is a bare name: the module is missing"
    elif is_reference(f"{module}:{name}"):
        why, hint = f"has no colon between the module and the {what.lower()}", f'write "{module}:{name}"'
    else:
        why = f"is not of the form module:{what}"
    raise UnresolvedReferenceError(f"{text!r} {why}", hint=hint)


# here -------------------------------------------------------------------------------------------------


def inspect_callable(target: str, paths: tuple[str, ...] = ()) -> Signature:
    """As ``describe``, by importing the module into this very process."""
    function = resolve(target, paths)
    if not callable(function):
        raise UnresolvedReferenceError(f"{target} is not callable: it is {function!r:.60}", hint="name a function")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return Signature((), (), True, _file(target))  # it doesn't say what it takes, so it is trusted to take it all
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if positional:
        what = f"{target}() takes {', '.join(positional)} by position only, and parameters are given by name"
        raise UnresolvedReferenceError(what, hint="remove the / from its signature")
    return Signature(*_named(parameters), _file(target))


def inspect_class(reference: str, paths: tuple[str, ...] = ()) -> GymClass:
    """As ``describe_class``, by importing the class into this very process."""
    found = resolve(reference, paths, inspect.isclass)
    if not inspect.isclass(found):
        kind = f"a {type(found).__name__}"
        raise ClassError(f"{reference} is no class: it is {kind}", hint="name a class; its instances are the servers")
    return described(reference, found)


def described(reference: str, found: type) -> GymClass:
    """What ``found``, whose reference this is, takes. Raises ``ClassError`` if its instances can't be servers."""
    _check_methods(reference.partition(":")[2], found)
    names, required, takes_any = _constructor(reference, found)
    return GymClass(reference, names, required, takes_any, _has(found, "apply_env_params"), _file(reference))


def _file(reference: str) -> str | None:
    return getattr(sys.modules.get(reference.partition(":")[0]), "__file__", None)


def _named(parameters: list[inspect.Parameter]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = tuple(p.name for p in named if p.default is p.empty)
    return tuple(p.name for p in named), required, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _check_methods(name: str, found: type) -> None:
    missing = [method for method in METHODS if not _has(found, method)]
    if missing:
        names = [one for one in dir(found) if not one.startswith("_")]
        nears = [f"{method} -> {near}" for method in missing if (near := closest(method, names)) and near != method]
        hint = f"did you mean {', '.join(nears)}?" if nears else _A_SERVER_HAS
        raise ClassError(f"{name} has no {', '.join(f'{method}()' for method in missing)}", hint=hint)
    if inspect.isabstract(found):
        lacking = sorted(found.__abstractmethods__)
        raise ClassError(f"{name} is abstract: {', '.join(lacking)}", hint="define what is abstract in it")
    for method, names, given in (("reset", ("seed", "options"), ()), ("step", (), (None,))):
        _check_takes(name, found, method, given, dict.fromkeys(names))


def _check_takes(name: str, found: type, method: str, given: tuple[None, ...], named: dict[str, None]) -> None:
    """Refuse a method that can't be called as ``reset(seed=, options=)`` or ``step(action)``."""
    try:
        signature = inspect.signature(getattr(found, method))
    except (TypeError, ValueError):
        return  # it doesn't say what it takes, so it is trusted to take it
    bound = inspect.getattr_static(found, method)
    itself = () if isinstance(bound, staticmethod | classmethod) else (None,)
    try:
        signature.bind(*itself, *given, **named)
    except TypeError as error:
        raise ClassError(f"{name}.{method}() can't be called as tunegym does: {error}", hint=_A_SERVER_HAS) from None


def _has(found: type, method: str) -> bool:
    """Whether it is there and more than the declaration of a protocol that it is derived from."""
    for base in found.__mro__:
        if method in vars(base):
            return callable(getattr(found, method, None)) and not vars(base).get("_is_protocol", False)
    return callable(getattr(found, method, None))


def _constructor(reference: str, found: type) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    if getattr(found.__init__, "__name__", "") == "_no_init_or_replace_init":  # of typing.Protocol: takes nothing
        return (), (), False
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return (), (), True  # it doesn't say what it takes, so it is trusted to take it all
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if positional:
        what = f"{reference} takes {', '.join(positional)} by position only, and arguments are given by name"
        raise ClassError(what, hint="remove the / from its __init__")
    return _named(parameters)


# in a child process -----------------------------------------------------------------------------------


def _stamp(reference: str, paths: tuple[str, ...]) -> tuple[int, int] | None:
    """Changes when the module's file does; None for an installed module."""
    file = locate(reference.partition(":")[0], paths)
    if file is None:
        return None
    stat = Path(file).stat()
    return stat.st_mtime_ns, stat.st_size


def _asked(
    kind: str, reference: str, paths: tuple[str, ...], stamp: tuple[int, int] | None, variables: Variables = ()
) -> dict[str, Any]:
    found = json.loads(_answer_of_child(kind, reference, paths, stamp, variables))
    if "error" in found:
        error = ClassError if found["is_class_error"] else UnresolvedReferenceError
        raise error(found["error"], hint=found["hint"])
    return found


@lru_cache(maxsize=64)
def _answer_of_child(
    kind: str, reference: str, paths: tuple[str, ...], _: tuple[int, int] | None, variables: Variables
) -> bytes:
    """What a fresh process answers, as JSON.

    Raises:
        UnresolvedReferenceError: it doesn't answer: importing takes too long, or ends Python.
    """
    module = reference.partition(":")[0]
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as answer, tempfile.TemporaryFile() as output:
        try:
            child = start_python(
                f"{__name__}:answer",
                *(str(writing), kind, reference, *paths),
                marker=f"inspect-{os.getpid()}-{writing}",
                env={**os.environ, **dict(variables)},
                fds=[writing],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.close(writing)
        try:
            poll = select.poll()
            poll.register(reading, select.POLLIN)
            if not poll.poll(milliseconds(IMPORT_TIMEOUT_S)):
                what = f"importing {module} took longer than {IMPORT_TIMEOUT_S:g} s"
                raise UnresolvedReferenceError(what, hint="move slow work from the module's top into functions")
            text = answer.readline()  # what it started may hold the pipe open: no reading to the end
        finally:
            child.wait(1.0)
            ended = child.end(grace_s=0.0)
        if text:
            return text
        output.seek(0)
        last = output.read().decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
    what = f"importing {module} ended Python (exit code {ended.code}): {last[0]}"
    raise UnresolvedReferenceError(what, hint=f"python -c 'import {module}' in its folder shows it")


def answer(control: str, kind: str, reference: str, *paths: str) -> None:
    """In the child: write what was found, or why nothing was, as a line of JSON, and end."""
    find: Callable[..., Signature | GymClass] = inspect_class if kind == "class" else inspect_callable
    try:
        found: dict[str, Any] = asdict(find(reference, paths))
    except (ClassError, UnresolvedReferenceError) as error:
        found = {"error": error.message, "hint": error.hint, "is_class_error": isinstance(error, ClassError)}
    os.write(int(control), json.dumps(found).encode() + b"\n")
    os._exit(0)  # a user's threads and exit handlers have nothing to say
