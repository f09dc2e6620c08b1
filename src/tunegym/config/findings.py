"""What is wrong with a scenario, gathered on the way so that a user sees all of it at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tunegym.config.spelling import listed, shown, step_into
from tunegym.core.errors import Problem

_NOTHING = object()


class Findings:
    """Problems under one key path. Children write into the same list, so order is the order of finding."""

    def __init__(self, where: str = "", problems: list[Problem] | None = None) -> None:
        self.where = where
        self.problems: list[Problem] = [] if problems is None else problems

    def at(self, key: str | int) -> Findings:
        """The findings one level below."""
        return Findings(step_into(self.where, key), self.problems)

    def under(self, address: str) -> Findings:
        """The findings at a dotted address below, such as ``server.port``."""
        return Findings(f"{self.where}.{address}" if self.where else address, self.problems)

    def add(self, what: str, *, hint: str, found: object = _NOTHING, allowed: str | None = None) -> None:
        """Note a problem here. ``found`` is spelled as TOML; leave it out when nothing stands there."""
        text = None if found is _NOTHING else shown(found)
        self.problems.append(Problem(self.where, what, text, allowed, hint))

    def unknown(self, key: str, value: object, allowed: Iterable[str], hint: str) -> None:
        """Note a key here that nobody reads."""
        self.at(key).add("unknown key", found=value, allowed=listed(allowed), hint=hint)

    def adopt(self, problem: Problem) -> None:
        """Note a problem whose ``where`` is relative to here, giving it a hint if it has none."""
        where = ".".join(part for part in (self.where, problem.where) if part)
        hint = problem.hint or f"change {where.rpartition('.')[2]}"
        self.problems.append(replace(problem, where=where, hint=hint))

    def broken(self) -> set[str]:
        """The keys directly below that have a problem in or under them."""
        prefix = f"{self.where}." if self.where else ""
        keys: set[str] = set()
        for problem in self.problems:
            if problem.where.startswith(prefix):
                rest = problem.where[len(prefix) :]
                keys.add(rest.partition(".")[0].partition("[")[0])
        return keys
