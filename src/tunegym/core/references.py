"""References: ``"package.module:name"`` in a scenario becomes the Python object it names.

Modules that lie beside a scenario come before all others, and are imported again when their files have changed.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.text import closest, did_you_mean

_FORM = 'write "module:function" or "package.module:Class.method"'


def is_reference(text: str) -> bool:
    """Whether ``text`` has the form ``package.module:name`` (nothing is imported to find out)."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def file_hint(text: str) -> str | None:
    """What to write instead of a reference that names a file, such as ``bench.py:measure``; None for any other."""
    file, _, name = text.partition(":")
    return f'write "{Path(file).stem}:{name or "function"}": the module, not its file' if file.endswith(".py") else None


def refusal(function: Callable[..., Any], *given: Any, **named: Any) -> str | None:
    """Why a function doesn't take these arguments; None if it does, or doesn't say what it takes."""
    try:
        inspect.signature(function).bind(*given, **named)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None


def resolve(reference: str, paths: Sequence[str] = (), wanted: Callable[[Any], bool] | None = None) -> Any:
    """The object that ``reference`` names; modules in ``paths`` come before all others.

    ``wanted`` selects the names that are suggested where there is no such name.

    ``paths`` are put in front of ``sys.path`` and stay there, so that imports inside functions work later. A loaded
    module that has the name of one in ``paths`` is forgotten first if it comes from another folder (two scenarios with
    a ``bench.py`` each don't see each other's) or its file has changed since. Installed modules are never forgotten.

    Raises:
        UnresolvedReferenceError: the form is wrong, the module or the name is missing, importing raised, or a
            module in ``paths`` has the name of an installed one.
    """
    hint = file_hint(reference)
    if hint is not None or not is_reference(reference):
        raise UnresolvedReferenceError(f"{reference!r} is not of the form module:name", hint=hint or _FORM)
    module_name, _, path = reference.partition(":")
    found: Any = _import_from(module_name, [os.path.abspath(path) for path in paths])  # noqa: PTH100
    file = getattr(found, "__file__", None)  # the interpreter's own modules have none
    shown = Path(file).name if file else module_name
    for name in path.split("."):
        if not hasattr(found, name):
            names = [candidate for candidate in dir(found) if not candidate.startswith("_")]
            if wanted is not None:
                names = [candidate for candidate in names if wanted(getattr(found, candidate, None))]
            hint = did_you_mean(name, names, f"it has: {', '.join(names) or 'nothing'}")
            raise UnresolvedReferenceError(f"{shown} has no {name!r}", hint=hint)
        found, shown = getattr(found, name), f"{shown}: {name}"
    return found


def callable_by_name(function: Callable[..., Any], names: Collection[str]) -> Callable[[Mapping[str, Any]], Any]:
    """``function`` as one that is given values by name.

    It is called with the values of the parameters it declares, or with all values when it takes ``**kwargs``. When its
    only required parameter is not one of ``names``, it is called with the mapping itself.

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
    if not plain and inspect.Parameter.VAR_POSITIONAL in kinds:
        return function
    if len(required) == 1 and unknown and required[0] is plain[0]:
        by_keyword = required[0].kind is inspect.Parameter.KEYWORD_ONLY
        return (lambda values: function(**{unknown[0]: values})) if by_keyword else function
    if unknown:
        raise _unknown_names(function, unknown, names)
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return lambda values: function(**values)
    first = [p.name for p in plain if p.kind is p.POSITIONAL_ONLY and p.name in names]
    wanted = [p.name for p in plain if p.kind is not p.POSITIONAL_ONLY and p.name in names]
    return lambda values: function(
        *[values[name] for name in first], **{name: values[name] for name in wanted if name in values}
    )


def _unknown_names(function: Callable[..., Any], unknown: list[str], names: Collection[str]) -> Exception:
    guesses = [f"{name} -> {near}" for name in unknown if (near := closest(name, names))]
    wants, exists = ", ".join(map(repr, unknown)), ", ".join(names) or "nothing"
    verb = "does" if len(unknown) == 1 else "do"
    return UnresolvedReferenceError(
        f"{getattr(function, '__name__', repr(function))}() wants {wants}, which {verb} not exist (there is: {exists})",
        hint=f"did you mean {', '.join(guesses)}?" if guesses else "or take one parameter: it gets all by name",
    )


# modules beside a scenario -----------------------------------------------------------------------------

_LOCK = threading.RLock()
"""A module that another thread is importing is in memory and has no stamp yet: it must not be forgotten as changed."""

_STAMPS: dict[str, tuple[str, int, int] | None] = {}
"""Source, time and size of modules beside scenarios when they were imported, by name."""


def locate(module_name: str, paths: Sequence[str]) -> str | None:
    """The source file of a dotted module that lies in ``paths``, without importing it; None if none does."""
    relative = Path(*module_name.split("."))
    for folder in paths:
        for candidate in (Path(folder, relative, "__init__.py"), Path(folder, relative).with_suffix(".py")):
            if candidate.is_file():
                return os.path.abspath(candidate)  # noqa: PTH100
    return None


def check_unconfused(module_name: str, paths: Sequence[str]) -> None:
    """Refuse a module in ``paths`` that has the name of an installed one. Raises ``UnresolvedReferenceError``."""
    name = module_name.partition(".")[0]
    file = locate(name, paths)
    loaded = getattr(sys.modules.get(name), "__file__", None) or ""
    if file is not None and _is_installed(name) and os.path.realpath(loaded) != os.path.realpath(file):
        what = f"{Path(file).name} has the name of the installed module {name!r}"
        raise UnresolvedReferenceError(what, hint=f"rename {file}, so that the two can't be confused")


def _is_installed(name: str) -> bool:
    if name in sys.stdlib_module_names or name in ("tunegym", "__main__"):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _import_from(module_name: str, folders: list[str]) -> ModuleType:
    with _LOCK:
        check_unconfused(module_name, folders)
        beside = {name for name in _module_names(folders) if not _is_elsewhere(name, folders)}
        loaded = [name for name in sys.modules if name.partition(".")[0] in beside]
        if not all(_is_current(name, folders) for name in loaded):
            for name in loaded:  # any of them may use the one that changed
                del sys.modules[name]
        for folder in reversed(folders):
            while folder in sys.path:
                sys.path.remove(folder)
            sys.path.insert(0, folder)
        importlib.invalidate_caches()  # a file written a moment ago must be seen
        before = set(sys.modules)
        module = _import(module_name, folders)
        for name in list(sys.modules):
            if name.partition(".")[0] in beside and (name not in before or name not in _STAMPS):
                _STAMPS[name] = _stamp(name, folders)
        return module


def _module_names(paths: Sequence[str]) -> list[str]:
    """The modules and packages that lie directly in ``paths``."""
    found = [path for folder in paths if Path(folder).is_dir() for path in sorted(Path(folder).iterdir())]
    return [
        path.stem
        for path in found
        if path.stem.isidentifier() and (path.is_file() if path.suffix == ".py" else any(path.glob("*.py")))
    ]


def _is_elsewhere(name: str, folders: list[str]) -> bool:
    """Whether the module is installed, or a loaded package that a mere folder does not replace."""
    is_package = getattr(sys.modules.get(name), "__file__", None) is not None
    return _is_installed(name) or (is_package and locate(name, folders) is None)


def _is_current(name: str, folders: list[str]) -> bool:
    """Whether a loaded module is the one in the folders, unchanged since it was imported.

    One that the program itself has imported has no stamp, and is taken for unchanged.
    """
    stamp = _stamp(name, folders)
    if name in _STAMPS:
        return _STAMPS[name] == stamp
    file = getattr(sys.modules[name], "__file__", None)
    return stamp is not None and file is not None and os.path.realpath(file) == stamp[0]


def _stamp(name: str, folders: list[str]) -> tuple[str, int, int] | None:
    """Changes when the module in the folders does; None for a package without an ``__init__.py``."""
    file = locate(name, folders)
    if file is None:
        return None
    stat = Path(file).stat()
    return os.path.realpath(file), stat.st_mtime_ns, stat.st_size


def _import(module_name: str, folders: list[str]) -> ModuleType:
    # Compiled files know their source's time to the second only: a module that is edited and run would be stale.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, sys.dont_write_bytecode or bool(folders)
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise _missing_module(missing, folders) from None
        raise _import_failed(module_name, folders, error) from error
    finally:
        sys.dont_write_bytecode = before


def _missing_module(missing: str, folders: list[str]) -> UnresolvedReferenceError:
    parent, _, leaf = missing.rpartition(".")
    near = closest(leaf, _module_names([str(Path(folder, *filter(None, parent.split(".")))) for folder in folders]))
    where = f" in {' or '.join(folders)} or among the installed packages" if folders else ""
    if near:
        hint = 'did you mean "{}"?'.format(f"{parent}.{near}" if parent else near)
    elif parent:
        hint = f"{parent!r} exists and has no module {leaf!r}"
    else:
        hint = f"put {leaf}.py beside the scenario, or install the package that has it"
    return UnresolvedReferenceError(f"there is no module {missing!r}{where}", hint=hint)


def raised_at(error: BaseException) -> str | None:
    """Where a user's code raised it, or called what did; None if no such code was involved."""
    ours = str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<"
    frames = reversed(traceback.extract_tb(error.__traceback__))
    theirs = (one for one in frames if not one.filename.startswith(ours) and "-packages" not in one.filename)
    return next((f"{one.filename}, line {one.lineno}, in {one.name}: {one.line}" for one in theirs), None)


def _import_failed(module_name: str, folders: list[str], error: BaseException) -> UnresolvedReferenceError:
    below = tuple(place + os.sep for folder in folders for place in (folder, os.path.realpath(folder)))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(below)]
    file = frames[-1].filename if frames else locate(module_name, folders)
    if isinstance(error, SyntaxError):
        shown = Path(error.filename or file or module_name).name
        what = f"{shown} has a syntax error: {error.msg} (line {error.lineno})"
        return UnresolvedReferenceError(what, hint=f"fix {shown}")
    line = f" (line {frames[-1].lineno})" if frames else ""
    return UnresolvedReferenceError(
        f"{Path(file).name if file else module_name} raised {type(error).__name__}: {error}{line}",
        hint=f"python -c 'import {module_name}' in its folder shows the whole traceback",
    )
