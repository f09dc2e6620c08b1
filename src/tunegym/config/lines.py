"""On which line of a TOML file does a key stand?

``tomllib`` doesn't tell. This looks for it, well enough for every layout that people write: tables, arrays of
tables, dotted keys. A key inside an inline table is on its parent's line, and what can't be found has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tunegym.core.errors import ConfigError, Problem

_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_NAME = re.compile(r"""\s*name\s*=\s*["']([^"']*)["']""")
_PART = re.compile(r"[^.\[\]]+")
_EXPERIMENTS = "experiments"


@dataclass(frozen=True, slots=True)
class _Place:
    """A key path as its parts, and its line."""

    parts: tuple[str, ...]
    line: int


def with_lines(error: ConfigError, text: str, skip: str) -> ConfigError:
    """The same error with a line for every problem that has one; those that say ``skip`` stand elsewhere."""
    places = _places(text)
    problems = [
        problem if skip in problem.what else replace(problem, line=_line(problem, places)) for problem in error.problems
    ]
    return ConfigError(error.file, problems)


def _line(problem: Problem, places: list[_Place]) -> int | None:
    """The line of the longest known beginning of the problem's key path."""
    parts = tuple(_PART.findall(problem.where))
    # A whole experiment is no place to point at, unless the path is the experiment itself.
    shortest = min(len(parts), 2) if parts[:1] == (_EXPERIMENTS,) else 1
    for length in range(len(parts), shortest - 1, -1):
        for place in places:
            if place.parts == parts[:length]:
                return place.line
    return None


def _places(text: str) -> list[_Place]:
    """Every header and key, under the experiments' names as well as their positions."""
    places: list[_Place] = []
    table: tuple[str, ...] = ()
    names: dict[str, str] = {}
    experiments = -1
    for number, line in _code_lines(text):
        header = _HEADER.match(line)
        if header is not None:
            table = _parts(header[1])
            if line.lstrip().startswith("[[") and table == (_EXPERIMENTS,):
                experiments += 1
            table = (_EXPERIMENTS, str(experiments), *table[1:]) if table[:1] == (_EXPERIMENTS,) else table
            places.append(_Place(table, number))
            continue
        key = _KEY.match(line)
        if key is not None:
            places.append(_Place((*table, *_parts(key[1])), number))
            name = _NAME.match(line)
            if name is not None and table == (_EXPERIMENTS, str(experiments)):
                names[str(experiments)] = name[1]
    return places + [
        _Place((_EXPERIMENTS, names[place.parts[1]], *place.parts[2:]), place.line)
        for place in places
        if len(place.parts) > 1 and place.parts[0] == _EXPERIMENTS and place.parts[1] in names
    ]


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"""[\s.'"]+""", key.strip()) if part)


def _code_lines(text: str) -> list[tuple[int, str]]:
    """The lines that begin outside of a multi-line string, counted from 1."""
    lines: list[tuple[int, str]] = []
    closing: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if closing is None:
            lines.append((number, line))
        at = 0
        while at < len(line):
            if closing is not None:
                found = line.find(closing, at)
                if found < 0:
                    break
                closing, at = None, found + 3
            else:
                found = min((i for i in (line.find('"""', at), line.find("'''", at)) if i >= 0), default=-1)
                if found < 0:
                    break
                closing, at = line[found : found + 3], found + 3
    return lines
