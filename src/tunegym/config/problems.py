"""Problems of a scenario: collected, put into words, and found in the file.

Also here: the names that a scenario uses, of classes that a catalog knows and of folders.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tunegym.core.errors import ConfigError, Problem, UnresolvedReferenceError
from tunegym.core.references import refusal
from tunegym.core.text import did_you_mean
from tunegym.tuning.model.values import spelled

LONGEST = 80
"""A longer value is cut in a message."""

LONGEST_NAME = 100
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_NOTHING = object()
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((datetime.date, datetime.time), "a date or time"),
    (bool, "a boolean"),
    (str, "a string"),
    (int, "an integer"),
    (float, "a float"),
    (list, "a list"),
    (Mapping, "a table"),
)
_USED = {
    "agents": ("run", "close"),
    "workloads": ("reserved", "required", "check"),
    "pruners": ("Config", "judge", "closed"),
}
"""The attributes of a class that the configuration itself uses."""


class Findings:
    """Problems under one key path. Children write into the same list, so the order is that of finding."""

    def __init__(self, where: str = "", problems: list[Problem] | None = None) -> None:
        self.where = where
        self.problems: list[Problem] = [] if problems is None else problems

    def at(self, key: str | int) -> Findings:
        """The findings one level below; a key that TOML would quote is quoted."""
        if isinstance(key, int):
            return Findings(f"{self.where}[{key}]", self.problems)
        return self.under(key if _BARE.match(key) else shown(key))

    def under(self, address: str) -> Findings:
        """The findings at a dotted address below, such as ``server.port``."""
        return Findings(f"{self.where}.{address}" if self.where else address, self.problems)

    def add(self, what: str, *, hint: str, found: object = _NOTHING, allowed: str | None = None) -> None:
        """Add a problem here. ``found`` is spelled as TOML; leave it out when the key is missing."""
        text = None if found is _NOTHING else shown(found)
        self.problems.append(Problem(self.where, what, text, allowed, hint))

    def unknown(self, key: str, value: object, allowed: Iterable[str], hint: str | None = None) -> None:
        """Add that a key here doesn't exist."""
        names = list(allowed)
        hint = hint or did_you_mean(key, names, "remove it")
        self.at(key).add("unknown key", found=value, allowed=listed(names), hint=hint)

    def adopt(self, problems: Iterable[Problem]) -> None:
        """Add problems whose ``where`` is relative to here, with a hint if they have none."""
        for problem in problems:
            where = ".".join(part for part in (self.where, problem.where) if part)
            hint = problem.hint or f"change {where.rpartition('.')[2]}"
            self.problems.append(replace(problem, where=where, hint=hint))

    def broken(self) -> set[str]:
        """The keys directly below that have a problem in or under them."""
        prefix = f"{self.where}." if self.where else ""
        rests = [one.where[len(prefix) :] for one in self.problems if one.where.startswith(prefix)]
        return {rest.partition(".")[0].partition("[")[0] for rest in rests}


# words ----------------------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """``value`` as TOML spells it, cut to a readable length."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    try:
        text = spelled(value)
    except (TypeError, ValueError, RecursionError):  # TOML has no such value: it was built in Python
        text = ascii(type(value).__name__)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def kind(value: object) -> str:
    """The type of a value, in a user's words."""
    return next((words for types, words in _KINDS if isinstance(value, types)), f"a Python {type(value).__name__}")


def listed(names: Iterable[str]) -> str:
    """Names, separated by commas; ``none`` if there are none."""
    return ", ".join(names) or "none"


INSTEAD = {
    "goal": 'write it in the table of a metric: metrics.NAME.goal = "min"',
    "Tests": "write an [[experiments]] for each test, with the keys of its test file in it",
    "test_name": "copy the keys of that test's file to here; an experiment is one table",
    "test_template_name": 'write workload = "command" and the program as cmd_args.command, or workload = "python"',
    "time_limit": 'write timeout_s for each trial, and max_time = "2h" for the whole experiment',
}
"""Hints for keys of other places and other systems."""

REPLACED = {"contextual_bandit": 'contextual_bandit was replaced: write agent = "bayes"'}
"""Hints for names that are not there any more."""


# names ----------------------------------------------------------------------------------------------------------------


class Components(Protocol):
    """The agents, workloads, runners, rewards, encodings and pruners that a scenario may name: ``app.catalog``.

    The classes have the attributes in ``_USED``. An agent may also have those of ``agents.base.trait``, and a workload
    ``live`` if a server answers instead of jobs. ``refuse`` and ``check`` return problems whose ``where`` is relative
    to the experiment.
    """

    def at(self, folder: Path) -> Components:
        """A catalog that looks for references in ``folder`` first."""
        ...

    def names(self, kind: str) -> list[str]:
        """The names of one kind, such as ``agents``."""
        ...

    def get(self, kind: str, name: str) -> Any:
        """The class behind a name or reference. Raises ``KeyError`` or ``UnresolvedReferenceError``."""
        ...


@dataclass(frozen=True)
class Scope:
    """The parts of a scenario that its experiments use."""

    catalog: Components
    scenario_dir: Path
    seed: int
    uses_num_nodes: bool = False  # the runner gives jobs so many nodes, so a command need not mention them
    single_sbatch: bool = False  # all trials run in one allocation
    plane: Mapping[str, Any] = field(default_factory=dict)  # ``[plane]``, for agents with a setting of this name


def known(catalog: Components, kind: str, name: str, findings: Findings) -> Any:
    """The class that ``name`` means among ``kind`` (``agents``, ...), or None and a problem."""
    allowed = f'{listed(catalog.names(kind))}, or "package.module:Name"'
    try:
        found = catalog.get(kind, name)
        lacks = [attribute for attribute in _USED.get(kind, ()) if not hasattr(found, attribute)]
        why = f"it has no {listed(lacks)}" if lacks else None if callable(found) else "it is no class"
        hint = "name a class that is one; tunegym.testing has a suite that checks it"
        if kind == "agents":
            why = why or refusal(found, None, None, 0)
            hint = "an agent is a class that is built as Class(env, config, seed) and has run() and close()"
        if why is None:
            return found
        what = f"this is no {kind.removesuffix('s')}: {why}"
    except KeyError:
        what = f"there is no {kind.removesuffix('s')} {shown(name)}"
        nearest = did_you_mean(name, catalog.names(kind), f"use one of these, or see: tunegym list {kind}")
        hint = REPLACED.get(name, nearest)
    except UnresolvedReferenceError as error:
        what, hint = error.message, error.hint or "check the module's and the class's name"
    findings.add(what, found=name, allowed=allowed, hint=hint)
    return None


def folder_name(name: str | None, findings: Findings, forbidden: str = "/\\") -> str | None:
    """``name`` if a folder can have it, else None and a problem."""
    if name is None:
        findings.add("a name is required", hint='write for example name = "my-name"')
        return None
    if not name.strip() or name != name.strip():
        what = "a name can't be empty or begin or end with a space"
    elif len(name) > LONGEST_NAME or len(name.encode()) > 2 * LONGEST_NAME:
        what = f"a name can't be longer than {LONGEST_NAME} characters"
    elif name.startswith((".", "-")) or not name.isprintable() or any(mark in name for mark in forbidden):
        what = "this name can't be a folder's name"
    else:
        return name
    allowed = f"up to {LONGEST_NAME} characters, none of {' '.join(forbidden)}, no leading dot or dash"
    findings.add(what, found=name, allowed=allowed, hint="use letters, digits, - and _")
    return None


# lines ----------------------------------------------------------------------------------------------------------------

_STRING = re.compile(r'"""(?:.*?)"""|' + r"'''(?:.*?)'''", re.DOTALL)
_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_NAME = re.compile(r"""\s*name\s*=\s*["']([^"']*)["']""")
_PART = re.compile(r"""[^\s.'"\[\]]+""")
_EXPERIMENTS = "experiments"


def with_lines(error: ConfigError, text: str, skip: str) -> ConfigError:
    """The same error with a line for every problem that has one; those that say ``skip`` stand elsewhere.

    ``tomllib`` doesn't tell lines. This finds tables, arrays of tables and dotted keys; a key inside an inline table
    is on its parent's line.
    """
    places = dict(reversed(list(_places(text))))
    problems = [one if skip in one.what else replace(one, line=_line(one, places)) for one in error.problems]
    return ConfigError(error.file, problems)


def _line(problem: Problem, places: Mapping[tuple[str, ...], int]) -> int | None:
    """The line of the longest known beginning of the problem's key path."""
    parts = tuple(_PART.findall(problem.where))
    # A whole experiment is no place to point at, unless the path is the experiment itself.
    shortest = min(len(parts), 2) if parts[:1] == (_EXPERIMENTS,) else 1
    beginnings = (parts[:length] for length in range(len(parts), shortest - 1, -1))
    return next((places[beginning] for beginning in beginnings if beginning in places), None)


def _places(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """The path and line of every header and key, under the experiments' names as well as their positions."""
    table: tuple[str, ...] = ()
    names: dict[int, str] = {}
    found: list[tuple[tuple[str, ...], int]] = []
    code = _STRING.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            table = tuple(_PART.findall(header[2]))
            if table == (_EXPERIMENTS,) and header[1] == "[[":
                names[len(names)] = ""
            if table[:1] == (_EXPERIMENTS,):
                table = (_EXPERIMENTS, str(len(names) - 1), *table[1:])
            found.append((table, number))
        elif key is not None:
            found.append(((*table, *_PART.findall(key[1])), number))
            name = _NAME.match(line)
            if name is not None and table == (_EXPERIMENTS, str(len(names) - 1)):
                names[len(names) - 1] = name[1]
    for path, number in found:
        yield path, number
        if len(path) > 1 and path[0] == _EXPERIMENTS and path[1].isdecimal():
            yield (_EXPERIMENTS, names.get(int(path[1]), ""), *path[2:]), number
