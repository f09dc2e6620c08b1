"""Names: of things that a catalog knows, and of things that become folders."""

from __future__ import annotations

from typing import Any

from tunegym.config.catalog import Catalog
from tunegym.config.findings import Findings
from tunegym.config.spelling import did_you_mean, listed, shown
from tunegym.core.errors import UnresolvedReferenceError

LONGEST_NAME = 100
_FACE = {
    "agents": ("Config", "finite", "refuse", "supports_variable_environment"),
    "workloads": ("reserved", "required", "check"),
    "pruners": ("Config", "judge", "closed"),
}
"""What configuration itself uses of a class, which a reference to just anything doesn't have."""


def known(catalog: Catalog, kind: str, name: str, findings: Findings) -> Any:
    """The class that ``name`` stands for among ``kind`` (``agents``, ...), or None and a problem."""
    try:
        found = catalog.get(kind, name)
        lacks = [attribute for attribute in _FACE.get(kind, ()) if not hasattr(found, attribute)]
        if callable(found) and not lacks:
            return found
        what = f"this is no {kind.removesuffix('s')}" + (f": it has no {listed(lacks)}" if lacks else "")
        hint = "name a class that is one; tunegym.testing has a suite that checks it"
        findings.add(what, found=name, allowed=_allowed(catalog, kind), hint=hint)
    except KeyError:
        unknown(catalog, kind, name, findings)
    except UnresolvedReferenceError as error:
        hint = error.hint or "check the module's and the class's name"
        findings.add(error.message, found=name, allowed=_allowed(catalog, kind), hint=hint)
    return None


def unknown(catalog: Catalog, kind: str, name: str, findings: Findings) -> None:
    """Note that no such name exists."""
    names = catalog.names(kind)
    hint = did_you_mean(name, names, f"use one of these, or see: tunegym list {kind}")
    what = f"there is no {kind.removesuffix('s')} {shown(name)}"
    findings.add(what, found=name, allowed=_allowed(catalog, kind), hint=hint)


def _allowed(catalog: Catalog, kind: str) -> str:
    return f'{listed(catalog.names(kind))}, or "package.module:Name"'


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
    marks = " ".join(forbidden)
    allowed = f"up to {LONGEST_NAME} characters, none of {marks}, no leading dot or dash"
    findings.add(what, found=name, allowed=allowed, hint="use letters, digits, - and _")
    return None
