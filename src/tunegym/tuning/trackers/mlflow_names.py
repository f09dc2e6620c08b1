"""Names and values as MLflow takes them. It refuses odd ones, and what it refuses would be lost."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from tunegym.tuning.model.values import printable, spelled

LONGEST_KEY = 250
LONGEST_PARAM = 6000
LONGEST_TAG = 5000
"""A value of this length passes every store's limit."""

_REFUSED = re.compile(r"[^\w.\- /]")


def key(name: str) -> str:
    """A name that MLflow takes: what it refuses becomes ``_``."""
    name = _REFUSED.sub("_", name)
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        name = name.replace("/", "_")  # it may become a file's path
    if not name.strip(" ."):
        name = "_" * (len(name) or 1)
    if name.startswith(".."):
        name = name.replace(".", "_")
    return name[:LONGEST_KEY]


def keyed(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` under names that MLflow takes; where two become the same, the later one gets a number."""
    found: dict[str, Any] = {}
    taken: set[str] = set()  # some databases don't tell capital letters from small ones
    for name, value in values.items():
        wanted = fresh = key(name)
        count = 1
        while fresh.lower() in taken:
            count += 1
            fresh = f"{wanted[: LONGEST_KEY - 12]}_{count}"
        taken.add(fresh.lower())
        found[fresh] = value
    return found


def text(value: object, longest: int = LONGEST_PARAM) -> str:
    """A value as MLflow shows it: strings bare, anything else as TOML spells it; cut where it is too long."""
    shown = value if isinstance(value, str) else spelled(value)
    shown = printable(shown).replace("\0", "\\0")
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers."""
    return {
        name: float(value) for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)
    }
