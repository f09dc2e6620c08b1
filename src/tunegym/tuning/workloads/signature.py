"""Signatures of users' callables and ``GymServer`` classes: the arguments that they take by name.

Only an import can tell, and it runs the user's code: so a child process imports the module and answers. It has a
minute. Answers are remembered until the module's file changes.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunegym.core.errors import Problem, UnresolvedReferenceError
from tunegym.core.processes import start_python
from tunegym.core.references import check_unconfused, file_hint, is_reference, locate, refusal, resolve
from tunegym.core.text import closest, did_you_mean
from tunegym.tuning.model.values import spelled

IMPORT_TIMEOUT_S = 60.0

METHODS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "reset": ((), {"seed": None, "options": None}),
    "step": ((None,), {}),
    "close": ((), {}),
}
"""Methods of every ``GymServer`` class, and how they are called. Only an instance is sure to have spaces."""

A_SERVER_HAS = "a server has reset(seed, options), step(action) and close()"

Variables = tuple[tuple[str, str], ...]
"""Environment variables, by name."""


@dataclass(frozen=True)
class Signature:
    """The arguments that a callable, or the constructor of a class, takes by name."""

    reference: str  # module:name
    parameters: tuple[str, ...] = ()  # the names it declares, in order
    required: tuple[str, ...] = ()  # those without a default
    takes_any: bool = False  # it takes **kwargs, or doesn't say what it takes
    source_file: str | None = None  # of the module


@dataclass(frozen=True)
class GymClass(Signature):
    """A class whose instances are ``GymServer``; says whether it has ``apply_env_params``."""

    applies_env_params: bool = False
    action_space: dict[str, Any] | None = None  # described, if the class itself has one: others have it once built


def describe(target: str, paths: tuple[str, ...] = (), *, isolate: bool = True, variables: Variables = ()) -> Signature:
    """The signature of ``module:name``, with modules in ``paths`` before all others.

    A module may need the ``variables`` of a trial when it is imported.

    Raises:
        UnresolvedReferenceError: there is no such callable, or it can't be called by name; says why.
    """
    check_form(target, "function")
    check_unconfused(_module(target), paths)
    return Signature(**_asked("callable", target, paths, variables)) if isolate else inspect_callable(target, paths)


def describe_class(reference: str, paths: Iterable[str] = ()) -> GymClass:
    """The class that ``module:Class`` names, with modules in ``paths`` before all others.

    Raises:
        UnresolvedReferenceError: the form is wrong, there is no such module or name, or it is no ``GymServer`` class.
    """
    folders = tuple(paths)
    check_form(reference, "Class")
    check_unconfused(_module(reference), folders)
    return GymClass(**_asked("class", reference, folders))


def argument_problems(gym_class: GymClass, arguments: Mapping[str, Any], prefix: str = "") -> list[Problem]:
    """Problems with the constructor's arguments; ``where`` is the prefix and the argument's name."""
    name = gym_class.reference.partition(":")[2]
    takes = ", ".join(gym_class.parameters) or "nothing"
    problems = []
    for argument, value in arguments.items():
        if argument not in gym_class.parameters and not gym_class.takes_any:
            hint = did_you_mean(argument, gym_class.parameters, "remove it")
            what = f"{name}() doesn't take this argument"
            problems.append(Problem(f"{prefix}{argument}", what, spelled(value), takes, hint))
    what = f"{name}() needs this argument, and it is missing"
    return problems + [
        Problem(f"{prefix}{argument}", what, allowed=takes, hint=f"add {argument} = ...")
        for argument in gym_class.required
        if argument not in arguments
    ]


def check_form(text: str, what: str) -> None:
    """Refuse a text that is no reference. Raises ``UnresolvedReferenceError``."""
    named = file_hint(text)
    if is_reference(text) and named is None:
        return
    module, _, name = text.rpartition(".")
    hint = f'write "package.module:{what}"; the module may lie beside the scenario'
    if text.isidentifier():
        why = "is a bare name: the module is missing"
    elif named is None and is_reference(f"{module}:{name}"):
        why, hint = f"has no colon between the module and the {what.lower()}", f'write "{module}:{name}"'
    else:
        why = f"is not of the form module:{what}"
    raise UnresolvedReferenceError(f"{text!r} {why}", hint=named or hint)


# in the process that imports --------------------------------------------------------------------------


def inspect_callable(target: str, paths: tuple[str, ...] = ()) -> Signature:
    """As ``describe``, by importing the module into this very process."""
    function = resolve(target, paths)
    if not callable(function):
        raise UnresolvedReferenceError(f"{target} is not callable: it is {function!r:.60}", hint="name a function")
    return Signature(**_taken(target, function))


def inspect_class(reference: str, paths: tuple[str, ...] = ()) -> GymClass:
    """As ``describe_class``, by importing the class into this very process."""
    found = resolve(reference, paths, inspect.isclass)
    if not inspect.isclass(found):
        what = f"{reference} is no class: it is a {type(found).__name__}"
        raise UnresolvedReferenceError(what, hint="name a class; its instances are the servers")
    return described(reference, found)


def described(reference: str, found: type) -> GymClass:
    """The ``GymClass`` of a class. Raises ``UnresolvedReferenceError`` if its instances can't be servers."""
    _check_methods(reference.partition(":")[2], found)
    # A class derived from a protocol, without a constructor, takes nothing, and doesn't say so.
    bare = getattr(found.__init__, "__name__", "") == "_no_init_or_replace_init"
    taken = _taken(reference, (lambda: None) if bare else found)
    return GymClass(**taken, applies_env_params=_has(found, "apply_env_params"), action_space=_declared_actions(found))


def _declared_actions(found: type) -> dict[str, Any] | None:
    from tunegym.tuning.spaces import SpaceError
    from tunegym.tuning.spaces import describe as describe_space

    try:
        return describe_space(getattr(found, "action_space", None))
    except SpaceError:
        return None


def _taken(reference: str, found: Callable[..., Any]) -> dict[str, Any]:
    """The fields of a ``Signature``."""
    about = {"reference": reference, "source_file": getattr(sys.modules.get(_module(reference)), "__file__", None)}
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return {**about, "takes_any": True}
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if positional:
        what = f"{reference} takes {', '.join(positional)} by position only, and arguments are given by name"
        raise UnresolvedReferenceError(what, hint="remove the / from its signature")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        **about,
        "parameters": tuple(p.name for p in named),
        "required": tuple(p.name for p in named if p.default is p.empty),
        "takes_any": any(p.kind is p.VAR_KEYWORD for p in parameters),
    }


def _module(reference: str) -> str:
    return reference.partition(":")[0]


def _check_methods(name: str, found: type) -> None:
    missing = [method for method in METHODS if not _has(found, method)]
    if missing:
        names = [one for one in dir(found) if not one.startswith("_")]
        nears = [f"{method} -> {near}" for method in missing if (near := closest(method, names)) and near != method]
        hint = f"did you mean {', '.join(nears)}?" if nears else A_SERVER_HAS
        raise UnresolvedReferenceError(f"{name} has no {', '.join(f'{method}()' for method in missing)}", hint=hint)
    if inspect.isabstract(found):
        what = f"{name} is abstract: {', '.join(sorted(found.__abstractmethods__))}"
        raise UnresolvedReferenceError(what, hint="define what is abstract in it")
    for method, (given, named) in METHODS.items():
        bound = inspect.getattr_static(found, method)
        itself = () if isinstance(bound, staticmethod | classmethod) else (None,)
        reason = refusal(getattr(found, method), *itself, *given, **named)
        if reason is not None:
            what = f"{name}.{method}() can't be called as tunegym does: {reason}"
            raise UnresolvedReferenceError(what, hint=A_SERVER_HAS)


def _has(found: type, method: str) -> bool:
    """Whether it is there and more than the declaration of a protocol that it is derived from."""
    owner = next((base for base in found.__mro__ if method in vars(base)), found)
    return callable(getattr(found, method, None)) and not vars(owner).get("_is_protocol", False)


# in a child process -----------------------------------------------------------------------------------


def _asked(kind: str, reference: str, paths: tuple[str, ...], variables: Variables = ()) -> dict[str, Any]:
    """The fields of a ``Signature``, from a child process; raises the error that it met."""
    file = locate(_module(reference), paths)
    stat = None if file is None else Path(file).stat()
    found = json.loads(_answer_of_child(kind, reference, paths, variables, stat and (stat.st_mtime_ns, stat.st_size)))
    if "error" in found:
        raise UnresolvedReferenceError(found["error"], hint=found["hint"])
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


@lru_cache(maxsize=64)
def _answer_of_child(kind: str, reference: str, paths: tuple[str, ...], variables: Variables, _stamp: Any) -> bytes:
    """The answer of a fresh process, as JSON.

    Raises ``UnresolvedReferenceError``: it doesn't answer: importing takes too long, or ends Python.
    """
    module = _module(reference)
    with tempfile.TemporaryFile() as answered, tempfile.TemporaryFile() as output:
        child = start_python(
            f"{__name__}:answer",
            *(str(answered.fileno()), kind, reference, *paths),
            marker=f"inspect-{os.getpid()}-{answered.fileno()}",
            env={**os.environ, **dict(variables)},
            fds=[answered.fileno()],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            ending = child.wait(IMPORT_TIMEOUT_S)
        finally:
            ended = child.end(grace_s=0.0)
        if ending == "timed_out":
            what = f"importing {module} took longer than {IMPORT_TIMEOUT_S:g} s"
            raise UnresolvedReferenceError(what, hint="move slow work from the module's top into functions")
        answered.seek(0)
        if text := answered.read():
            return text
        output.seek(0)
        last = output.read().decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
    what = f"importing {module} ended Python (exit code {ended.code}): {last[0]}"
    raise UnresolvedReferenceError(what, hint=f"python -c 'import {module}' in its folder shows it")


def answer(control: str, kind: str, reference: str, *paths: str) -> None:
    """In the child: write the signature, or why there is none, as JSON, and end."""
    find: Callable[..., Signature] = inspect_class if kind == "class" else inspect_callable
    try:
        found: dict[str, Any] = asdict(find(reference, paths))
    except UnresolvedReferenceError as error:
        found = {"error": error.message, "hint": error.hint}
    os.write(int(control), json.dumps(found).encode())
    os._exit(0)  # a user's threads and exit handlers have nothing to say
