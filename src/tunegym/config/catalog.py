"""Names in a scenario: of classes that a catalog knows, and of folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tunegym.config.problems import Findings, did_you_mean, listed, shown
from tunegym.core.errors import UnresolvedReferenceError

LONGEST_NAME = 100
_USED = {
    "agents": ("Config", "finite", "refuse", "supports_variable_environment"),
    "workloads": ("reserved", "required", "check"),
    "pruners": ("Config", "judge", "closed"),
}
"""The attributes of a class that the configuration itself uses."""


class Catalog(Protocol):
    """The agents, workloads, runners, rewards, encodings and pruners that a scenario may name.

    The configuration assumes of an agent class: ``Config`` (a frozen dataclass over ``AgentConfig``),
    ``supports_variable_environment``, ``finite`` and the classmethod ``refuse(space) -> Problem | None``; it may
    have ``kinds``, by kind of experiment the reference of the class with a ``Config`` that drives it;
    of a workload class: ``reserved``, ``required`` and the classmethod
    ``check(experiment, scenario_dir) -> list[Problem]``; ``live`` if a server answers instead of jobs; of their
    problems: ``where`` is relative to the experiment; of a pruner class: ``Config`` (a frozen dataclass).
    """

    def at(self, folder: Path) -> Catalog:
        """A catalog that looks for references in ``folder`` (the scenario's) first."""
        ...

    def names(self, kind: str) -> list[str]:
        """The names of one kind: ``agents``, ``workloads``, ``runners``, ``rewards``, ``encodings`` or ``pruners``."""
        ...

    def get(self, kind: str, name: str) -> Any:
        """The class behind a name or a ``package.module:Name`` reference.

        Raises:
            KeyError: there is no such name.
            UnresolvedReferenceError: the reference can't be imported.
        """
        ...


@dataclass(frozen=True)
class Scope:
    """What an experiment takes from its scenario."""

    catalog: Catalog
    scenario_dir: Path
    seed: int


def known(catalog: Catalog, kind: str, name: str, findings: Findings) -> Any:
    """The class that ``name`` means among ``kind`` (``agents``, ...), or None and a problem."""
    allowed = f'{listed(catalog.names(kind))}, or "package.module:Name"'
    try:
        found = catalog.get(kind, name)
        lacks = [attribute for attribute in _USED.get(kind, ()) if not hasattr(found, attribute)]
        if callable(found) and not lacks:
            return found
        what = f"this is no {kind.removesuffix('s')}" + (f": it has no {listed(lacks)}" if lacks else "")
        hint = "name a class that is one; tunegym.testing has a suite that checks it"
    except KeyError:
        what = f"there is no {kind.removesuffix('s')} {shown(name)}"
        hint = did_you_mean(name, catalog.names(kind), f"use one of these, or see: tunegym list {kind}")
    except UnresolvedReferenceError as error:
        what, hint = error.message, error.hint or "check the module's and the class's name"
    findings.add(what, found=name, allowed=allowed, hint=hint)
    return None


def folder_name(name: str | None, findings: Findings, forbidden: str = "/\\") -> str | None:
    """``name`` if a folder can have it, else None and a problem."""
    if name is None:
        findings.add("a name is required", hint='write for example name = "my-name"')
        return None
    what = None
    if not name.strip() or name != name.strip():
        what = "a name can't be empty or begin or end with a space"
    elif len(name) > LONGEST_NAME or len(name.encode()) > 2 * LONGEST_NAME:
        what = f"a name can't be longer than {LONGEST_NAME} characters"
    elif name.startswith((".", "-")) or not name.isprintable() or any(mark in name for mark in forbidden):
        what = "this name can't be a folder's name"
    if what is None:
        return name
    allowed = f"up to {LONGEST_NAME} characters, none of {' '.join(forbidden)}, no leading dot or dash"
    findings.add(what, found=name, allowed=allowed, hint="use letters, digits, - and _")
    return None
