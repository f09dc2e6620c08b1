"""Problems of a scenario, collected so that a user sees all of them at once, and the words that describe them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tunegym.core.errors import Problem
from tunegym.core.text import closest
from tunegym.tuning.model.values import spelled

LONGEST = 80
"""A longer value is cut in a message."""

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


def did_you_mean(name: object, names: Iterable[str], otherwise: str) -> str:
    """A hint with the closest spelling, or ``otherwise``."""
    match = closest(name, names) if isinstance(name, str) else None
    return f"did you mean {shown(match)}?" if match is not None else otherwise


def listed(names: Iterable[str]) -> str:
    """Names, separated by commas; ``none`` if there are none."""
    return ", ".join(names) or "none"
