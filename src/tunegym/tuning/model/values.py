"""Native values of knobs, contexts and fixed parameters, and how they are shown to people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from tunegym.core.text import escaped, escaped_toml

Scalar: TypeAlias = str | int | float | bool
"""A value that an agent chooses or a context holds."""

Action: TypeAlias = Mapping[str, Scalar]
"""One value for every tunable knob, by address (``threads``, ``server.port``, ``extra_env_vars.X``)."""

Context: TypeAlias = Mapping[str, Scalar]
"""One draw of every env_param, by address."""

Metrics: TypeAlias = Mapping[str, float]
"""Named numbers of one measurement."""

INT64 = 2**63


def exact_key(*parts: Mapping[str, Any]) -> bytes:
    """Return a key that is equal only for equal typed values: 1, 1.0 and True differ, key order doesn't matter.

    Scalars must have passed ``storable``; JSON then keeps their types apart.
    """
    # orjson's own bytes keep the kilobyte they were built in; keys are held by the thousand, so copy them.
    return bytes(memoryview(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)))


def native(value: Any) -> Any:
    """Return a numpy or torch scalar as a Python value; anything else unchanged."""
    if type(value) in (str, int, float, bool) or getattr(value, "shape", None) != ():
        return value
    return value.item()


def storable(value: object) -> str | None:
    """Return why ``value`` can't be stored, or None if it can.

    The journal must give back exactly the same value, so values that JSON would change are refused.
    """
    if isinstance(value, bool | str):
        return None
    if isinstance(value, int):
        return None if -INT64 <= value < INT64 else "an integer must fit in 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "a number must be finite"
    return "a value must be a string, an integer, a float or a boolean"


def spelled(value: object) -> str:
    """Return a value in TOML's spelling, always printable."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return escaped_toml(orjson.dumps(value).decode())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(spelled(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {spelled(item)}" for key, item in value.items()) + "}"
    return escaped(repr(value))


def _key(key: object) -> str:
    """Bare if it is printable."""
    return key if isinstance(key, str) and key.isprintable() else spelled(key)


def spelled_pairs(values: Mapping[str, Any]) -> str:
    """``load=0.1 net="wifi"``."""
    return " ".join(f"{escaped(name)}={spelled(value)}" for name, value in values.items())


def labels(values: Sequence[Scalar]) -> list[str]:
    """Each value as one reads it; strings without quotes, unless they could be taken for another value."""
    bare = [value if isinstance(value, str) and value.strip() else spelled(value) for value in values]
    return bare if len(set(bare)) == len(bare) else [spelled(value) for value in values]


def number(value: float) -> str:
    """A number in as many digits as one reads."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e12 and value == int(value) else f"{value:.4g}"


def rate(value: float) -> str:
    """A number per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration."""
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def counted(count: int, unit: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


def pairs(values: Mapping[str, Any]) -> str:
    """``threads=4 mode=fast``: strings without quotes, unless they would not look like one word then."""
    return " ".join(f"{escaped(name)}={bare(value)}" for name, value in values.items())


def bare(value: Any) -> str:
    """A string without its quotes where it can be read without them; any other value as TOML spells it."""
    return value if isinstance(value, str) and value.isprintable() and value.strip() else spelled(value)


# The password as a URL's grammar has it, else as a database's driver does. Rather too much than too little.
_PASSWORD = re.compile(r"(//[^\s/:]*:)(?:[^\s/?#]*|[^\s@]*)@")


def masked(text: str) -> str:
    """``text`` with ``//user:***@`` for every ``//user:password@`` in it: a page is mailed, a folder is not."""
    return _PASSWORD.sub(r"\1***@", text) if "//" in text else text
