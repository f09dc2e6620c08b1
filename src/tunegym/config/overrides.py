"""``--set key=value``: changes to a document before it is checked."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from tunegym.config.spelling import did_you_mean, listed, shown
from tunegym.core.errors import ConfigError, Problem

FILE = "--set"
"""What messages about an override call their file."""


def apply(document: dict[str, Any], overrides: Sequence[str]) -> list[str]:
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
        raise ConfigError(FILE, problems)
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
