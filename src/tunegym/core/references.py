"""References: ``"package.module:name"`` in a scenario becomes the Python object it names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.modules import import_from
from tunegym.core.spelling import closest

_FORM = 'write "module:function" or "package.module:Class.method"'


def is_reference(text: str) -> bool:
    """Whether ``text`` has the form ``package.module:name`` (nothing is imported to find out)."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def resolve(reference: str, paths: Sequence[str] = (), wanted: Callable[[Any], bool] | None = None) -> Any:
    """The object that ``reference`` names; modules in ``paths`` come before all others.

    ``wanted`` says what may be suggested where there is no such name; it is not asked of what is found.

    ``paths`` are put in front of ``sys.path`` and stay there, so that imports inside functions work later. A
    module of another folder that has the name of one in ``paths`` is forgotten first: two scenarios with a
    ``bench.py`` each don't see each other's. So is what lies in ``paths`` and was changed since it was imported: what
    runs is what the file says. What is installed is never forgotten.

    Raises:
        UnresolvedReferenceError: the form is wrong, the module or the name is missing, importing raised, or a
            module in ``paths`` has the name of an installed one.
    """
    if not is_reference(reference):
        raise UnresolvedReferenceError(f"{reference!r} is not of the form module:name", hint=_FORM)
    module_name, _, attribute = reference.partition(":")
    folders = [os.path.abspath(path) for path in paths]  # noqa: PTH100 (sys.path wants strings)
    module = import_from(module_name, folders)
    return _attribute(module, module_name, attribute, wanted)


def _attribute(module: ModuleType, module_name: str, path: str, wanted: Callable[[Any], bool] | None = None) -> Any:
    found: Any = module
    file = getattr(module, "__file__", None)  # the interpreter's own modules have none
    shown = Path(file).name if file else module_name
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            names = [candidate for candidate in dir(found) if not candidate.startswith("_")]
            if wanted is not None:
                names = [candidate for candidate in names if wanted(getattr(found, candidate, None))]
            near = closest(name, names)
            hint = f"did you mean {near!r}?" if near else f"it has: {', '.join(names) or 'nothing'}"
            raise UnresolvedReferenceError(f"{shown} has no {name!r}", hint=hint) from None
        shown = f"{shown}: {name}"
    return found


def callable_by_name(function: Callable[..., Any], names: Collection[str]) -> Callable[[Mapping[str, Any]], Any]:
    """``function`` as one that is given values by name.

    When every required parameter is one of ``names``, it is called with keywords: the values of the
    parameters it declares, or all values when it takes ``**kwargs``. When its only required parameter is not
    one of ``names``, it is called with the mapping itself. A default stands for a value that isn't there.

    Raises:
        UnresolvedReferenceError: it requires values that don't exist; lists them and what exists.
    """
    import inspect

    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return function
    kinds = {parameter.kind for parameter in parameters}
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p for p in plain if p.default is p.empty]
    unknown = [p.name for p in required if p.name not in names]
    if (len(required) == 1 and unknown and required[0] is plain[0]) or (
        not plain and inspect.Parameter.VAR_POSITIONAL in kinds
    ):
        keyword = required[0].name if required and required[0].kind is inspect.Parameter.KEYWORD_ONLY else None
        return function if keyword is None else lambda values: function(**{keyword: values})
    if unknown:
        raise _unknown_names(function, unknown, names)
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return lambda values: function(**values)
    first = tuple(p.name for p in plain if p.kind is p.POSITIONAL_ONLY and p.name in names)
    wanted = tuple(p.name for p in plain if p.kind is not p.POSITIONAL_ONLY and p.name in names)
    if first:
        return lambda values: function(
            *[values[name] for name in first], **{name: values[name] for name in wanted if name in values}
        )
    return lambda values: function(**{name: values[name] for name in wanted if name in values})


def _unknown_names(
    function: Callable[..., Any], unknown: list[str], names: Collection[str]
) -> UnresolvedReferenceError:
    shown = getattr(function, "__name__", repr(function))
    exists = ", ".join(names) or "nothing"
    nears = {name: closest(name, names) for name in unknown}
    guesses = [f"{name} -> {near}" for name, near in nears.items() if near]
    wants = ", ".join(repr(name) for name in unknown)
    verb = "does" if len(unknown) == 1 else "do"
    return UnresolvedReferenceError(
        f"{shown}() wants {wants}, which {verb} not exist (there is: {exists})",
        hint=f"did you mean {', '.join(guesses)}?" if guesses else "or take one parameter: it gets all by name",
    )
