"""A document as plain data: tables, lists and scalars that TOML and the journal give back unchanged."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from tunegym.config.findings import Findings
from tunegym.config.spelling import kind
from tunegym.tuning.model.values import storable

DEEPEST = 40
"""Tables and lists nested deeper than this are refused: nobody means them, and they exhaust the stack."""

_PLAIN = "strings, integers, floats, booleans, lists and tables"


def copied(value: Any, depth: int = 0) -> Any:
    """A copy of ``value`` whose tables are dicts and whose sequences are lists, so that it can be changed."""
    if depth <= DEEPEST and isinstance(value, Mapping):
        return {key: copied(item, depth + 1) for key, item in value.items()}
    if depth <= DEEPEST and isinstance(value, list | tuple):
        return [copied(item, depth + 1) for item in value]
    return value


def plain(value: Any, findings: Findings, depth: int = 0) -> Any:
    """A copy of ``value`` that is plain data; what can't be one is left out and noted.

    Tuples become lists, paths strings, numpy's scalars Python's, and importable functions references.
    """
    if depth > DEEPEST:
        findings.add("nested too deeply", allowed=f"at most {DEEPEST} levels", hint="flatten this table")
        return None
    if isinstance(value, Mapping):
        return _table(value, findings, depth)
    if isinstance(value, list | tuple):
        items = [plain(item, findings.at(index), depth + 1) for index, item in enumerate(value)]
        return [item for item in items if item is not None]
    if isinstance(value, PurePath):
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if callable(value):
        return _reference(value, findings)
    return _scalar(value, findings)


def _table(table: Mapping[Any, Any], findings: Findings, depth: int) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(key, str) or not _writable(key):
            findings.add("a key must be a string", found=key, hint="use a string without control characters")
            continue
        copied = plain(value, findings.at(key), depth + 1)
        if copied is not None:
            copy[str(key)] = copied
    return copy


def _scalar(value: object, findings: Findings) -> Any:
    if isinstance(value, str):
        if _writable(value):
            return str.__str__(value)
        findings.add("a string that can't be passed on", hint="remove its NUL or unpaired surrogate characters")
        return None
    if value is None:
        findings.add("None has no meaning here", allowed=_PLAIN, hint="leave the key out instead")
        return None
    if isinstance(value, datetime.date | datetime.time):
        hint = f'write it in quotes: "{value.isoformat()}"'
        findings.add("a date or time can't be a value", found=value, allowed=_PLAIN, hint=hint)
        return None
    reason = storable(value)
    if reason is None:
        return next(exact(value) for exact in (bool, int, float) if isinstance(value, exact))
    if isinstance(value, int | float):
        hint = "use a finite number" if isinstance(value, float) else "use a smaller integer, or a string"
        findings.add(reason, found=value, allowed="finite numbers, integers of 64 bits", hint=hint)
    else:
        findings.add(f"{kind(value)} can't be a value", allowed=_PLAIN, hint="use plain data")
    return None


def _writable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _reference(function: Any, findings: Findings) -> str | None:
    """``module:qualname`` of a function that another process can import, else None and a problem."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else None
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        findings.add(
            "this function can't be found by name, so no other process could call it",
            allowed="a function at the top level of a module, or a reference",
            hint='move it to the top level of a module and write "module:function"',
        )
        return None
    return f"{module}:{name}"
