"""Modules that lie beside a scenario: finding them, and importing them as they are now."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.spelling import closest

_ONE_AT_A_TIME = threading.RLock()
"""A module that another thread is importing is in memory and has no stamp yet: it must not be forgotten as changed."""


def import_from(module_name: str, folders: list[str]) -> ModuleType:
    """The module, from the folders before all other places; they stay in front of ``sys.path``.

    A module of another folder that has the name of one in the folders is forgotten first, and so is what lies in
    them and was changed since it was imported. What is installed is never forgotten.

    Raises:
        UnresolvedReferenceError: it is missing, can't be imported, or has the name of an installed one.
    """
    with _ONE_AT_A_TIME:
        _forget_changed(folders)
        _prepare(module_name, folders)
        module = _import(module_name, folders)
        for file in _imported_from(folders).values():
            _STAMPS.setdefault(file, _stamp(file))
        return module


def locate(module_name: str, paths: Sequence[str]) -> str | None:
    """The source file of a dotted module that lies in ``paths``, without importing it; None if none does."""
    relative = Path(*module_name.split("."))
    for folder in paths:
        for candidate in (Path(folder, relative, "__init__.py"), Path(folder, relative).with_suffix(".py")):
            if candidate.is_file():
                return os.path.abspath(candidate)  # noqa: PTH100
    return None


def module_names(paths: Sequence[str]) -> list[str]:
    """The modules and packages that lie directly in ``paths``."""
    names: dict[str, None] = {}
    for folder in paths:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            name = entry.name.removesuffix(".py")
            if not name.isidentifier():
                continue
            if (name != entry.name and entry.is_file()) or (
                name == entry.name and entry.is_dir() and any(Path(entry.path).glob("*.py"))
            ):
                names.setdefault(name)
    return list(names)


def check_unconfused(module_name: str, paths: Sequence[str]) -> None:
    """Refuse a module in ``paths`` that has the name of an installed one, without importing either.

    Raises:
        UnresolvedReferenceError: which of the two is meant can't be told.
    """
    name = module_name.partition(".")[0]
    file = locate(name, paths)
    loaded = sys.modules.get(name)
    if file is not None and not (loaded and _comes_from(loaded, file)) and _installed(name, loaded):
        raise _confused(name, file)


_STAMPS: dict[str, tuple[int, int] | None] = {}
"""Time and size of source files when they were imported."""


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _imported_from(folders: list[str]) -> dict[str, str]:
    """The modules in memory that came from the folders, with their files."""
    found = {}
    for top in module_names(folders):
        if top not in sys.modules:  # then nothing below it is there either; most often nothing is
            continue
        for name in [name for name in list(sys.modules) if name == top or name.startswith(f"{top}.")]:
            module = sys.modules.get(name)
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and _is_ours(file, folders) and not _installed(top, module):
                found[name] = file
    return found


def _forget_changed(folders: list[str]) -> None:
    """If a file changed since it was imported, forget all that came from the folders: any of it may use it.

    What was imported by somebody else, such as a function of the user's, may have changed since.
    """
    ours = _imported_from(folders)
    if any(file not in _STAMPS or _STAMPS[file] != _stamp(file) for file in ours.values()):
        for name, file in ours.items():
            sys.modules.pop(name, None)
            _STAMPS.pop(file, None)


def _prepare(module_name: str, folders: list[str]) -> None:
    """Put the folders in front, and forget modules of the same names that came from elsewhere."""
    top = module_name.partition(".")[0]
    for name in module_names(folders):
        regular = locate(name, folders)
        file = regular or _namespace(name, folders)
        loaded = sys.modules.get(name)
        if loaded is not None and (_comes_from(loaded, file) or not (regular or _is_namespace(loaded))):
            continue  # a folder without __init__.py never comes before a real package, wherever that is
        if _installed(name, loaded):
            if name == top:
                raise _confused(name, file)
        elif loaded is not None:
            for key in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
                del sys.modules[key]
    for folder in reversed(folders):
        while folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # a file written a moment ago must be seen


def _confused(name: str, file: str) -> UnresolvedReferenceError:
    return UnresolvedReferenceError(
        f"{Path(file).name} has the name of the installed module {name!r}",
        hint=f"rename {file}, so that the two can't be confused",
    )


def _installed(name: str, module: ModuleType | None) -> bool:
    import sysconfig

    if name in sys.stdlib_module_names or name in ("tunegym", "__main__"):
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    roots = {sysconfig.get_path(key) for key in ("purelib", "platlib")}
    return any(file.startswith(root + os.sep) for root in roots) or "site-packages" in Path(file).parts


def _namespace(name: str, folders: list[str]) -> str:
    """The folder of a package without an ``__init__.py``."""
    return next(path for folder in folders if Path(path := os.path.join(folder, name)).is_dir())  # noqa: PTH118


def _is_namespace(module: ModuleType) -> bool:
    return getattr(module, "__file__", None) is None


def _comes_from(module: ModuleType, file: str) -> bool:
    loaded = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return loaded is not None and os.path.realpath(loaded) == os.path.realpath(file)


def _import(module_name: str, folders: list[str]) -> ModuleType:
    # Compiled files know their source's time to the second only: what is edited and run at once would be stale.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise _missing_module(missing, folders) from None
        raise _import_failed(module_name, folders, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(module_name, folders, error) from error
    finally:
        sys.dont_write_bytecode = before


def _missing_module(missing: str, folders: list[str]) -> UnresolvedReferenceError:
    parent, _, leaf = missing.rpartition(".")
    beside = [str(Path(folder, *parent.split("."))) if parent else folder for folder in folders]
    near = closest(leaf, module_names(beside))
    where = f" in {' or '.join(folders)} or among the installed packages" if folders else ""
    if near:
        hint = f"did you mean {f'{parent}.{near}' if parent else near!r}?"
    elif parent:
        hint = f"{parent!r} exists and has no module {leaf!r}"
    else:
        hint = f"put {leaf}.py beside the scenario, or install the package that has it"
    return UnresolvedReferenceError(f"there is no module {missing!r}{where}", hint=hint)


def _import_failed(module_name: str, folders: list[str], error: BaseException) -> UnresolvedReferenceError:
    import traceback

    file = locate(module_name, folders)
    shown = Path(file).name if file else module_name
    if isinstance(error, SyntaxError):
        shown = Path(error.filename).name if error.filename else shown
        what = f"{shown} has a syntax error: {error.msg} (line {error.lineno})"
        return UnresolvedReferenceError(what, hint=f"mend {shown}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_ours(frame.filename, folders)]
    line = f" (line {frames[-1].lineno})" if frames else ""
    shown = Path(frames[-1].filename).name if frames else shown
    return UnresolvedReferenceError(
        f"{shown} raised {type(error).__name__}: {error}{line}",
        hint=f"python -c 'import {module_name}' in its folder shows the whole traceback",
    )


def _is_ours(file: str, folders: list[str]) -> bool:
    return any(file.startswith(folder + os.sep) for folder in folders)
