"""A scenario's document before it is checked: ``--set`` changes, and plain data that TOML and the journal can hold."""

from __future__ import annotations

import datetime
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from tunegym.config.problems import Findings, did_you_mean, kind, listed, shown
from tunegym.core.errors import ConfigError, Problem
from tunegym.tuning.model.values import storable

OVERRIDES = "--set"
"""What messages about an override call their file."""

DEEPEST = 40
"""Deeper nesting is refused: it exhausts the stack."""

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


# --set key=value ------------------------------------------------------------------------------------------------------


def override(document: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Change ``document`` in place by ``key=value`` strings, in order; returns the key paths that were set.

    Raises:
        ConfigError: an override is malformed, names no experiment, or leads through what is no table.
    """
    problems: list[Problem] = []
    paths: list[str] = []
    for text in overrides:
        problem = _apply_one(document, text)
        if problem is None:
            paths.append(text.partition("=")[0].strip())
        else:
            problems.append(problem)
    if problems:
        raise ConfigError(OVERRIDES, problems)
    return paths


def value_of(text: str) -> Any:
    """The value of an override: TOML if it is, else the text as it stands.

    Raises:
        ValueError: it begins like a list, a table or a string, and is none.
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text[:1] in ("[", "{", '"', "'"):
            raise ValueError(f"{error}".replace("line 1, ", "")) from error
        return text
    # A line break in the text could smuggle in more keys; then it is no single value.
    return parsed["value"] if len(parsed) == 1 else text


def _apply_one(document: dict[str, Any], text: str) -> Problem | None:
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        return Problem(
            "",
            "this is no key=value",
            shown(text),
            "seed=N, system.KEY=VALUE or experiments.NAME.KEY=VALUE",
            "write for example --set experiments.iperf.agent_steps=20",
        )
    table: Any = document
    if path[0] == "experiments":
        table = _experiment(document, path, text)
        if isinstance(table, Problem):
            return table
        path = path[2:]
    for index, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            where = ".".join(key.split(".")[: len(key.split(".")) - len(path) + index + 1])
            hint = f"set {where} as a whole"
            return Problem(key.strip(), f"{where} is not a table", shown(text), "a key of a table", hint)
    try:
        table[path[-1]] = value_of(value.strip())
    except ValueError as error:
        hint = "close what is opened, and mind the shell's own quotes"
        return Problem(key.strip(), f"the value is no TOML: {error}", shown(text), "a TOML value, or plain text", hint)
    return None


def _experiment(document: dict[str, Any], path: list[str], text: str) -> dict[str, Any] | Problem:
    """The experiment that an override's path names, or what is wrong with it."""
    experiments = document.get("experiments")
    tables = [entry for entry in experiments if isinstance(entry, dict)] if isinstance(experiments, list) else []
    names = [entry["name"] for entry in tables if isinstance(entry.get("name"), str)]
    if len(path) < 3:
        hint = f"write experiments.{names[0] if names else 'NAME'}.KEY=VALUE"
        return Problem(".".join(path), "an experiment's key is missing", shown(text), hint=hint)
    for entry in tables:
        if entry.get("name") == path[1]:
            return entry
    return Problem(
        ".".join(path),
        f"there is no experiment {shown(path[1])}",
        shown(text),
        listed(names),
        did_you_mean(path[1], names, "use the name of an experiment in the scenario"),
    )
