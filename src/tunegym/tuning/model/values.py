"""Native values: what a knob, a context or a fixed parameter can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from tunegym.core.text import escaped, escaped_toml

Scalar: TypeAlias = str | int | float | bool
"""What an agent chooses or a context holds."""

Action: TypeAlias = Mapping[str, Scalar]
"""One value for every tunable knob, by address (``threads``, ``server.port``, ``extra_env_vars.X``)."""

Context: TypeAlias = Mapping[str, Scalar]
"""One draw of every env_param, by address."""

Metrics: TypeAlias = Mapping[str, float]
"""Named numbers that one measurement gave."""

INT64 = 2**63


def exact_key(*parts: Mapping[str, Any]) -> bytes:
    """A key under which typed values meet only themselves: 1, 1.0 and True differ, key order doesn't matter.

    Scalars must have passed ``storable``; JSON then keeps their types apart.
    """
    # orjson's own bytes keep the kilobyte they were built in; keys are held by the thousand, so copy them.
    return bytes(memoryview(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)))


def printable(text: str) -> str:
    """Text that any file can hold: what is no Unicode (half a surrogate pair from a file's name) is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def native(value: Any) -> Any:
    """A numpy or torch scalar as the Python value that it holds; anything else as it is."""
    if type(value) in (str, int, float, bool) or getattr(value, "shape", None) != ():
        return value
    return value.item()


def storable(value: object) -> str | None:
    """Why ``value`` can't be a scalar of ours, or None if it can.

    The journal must give back exactly what it was given, so what JSON would bend is refused.
    """
    if isinstance(value, bool | str):
        return None
    if isinstance(value, int):
        return None if -INT64 <= value < INT64 else "an integer must fit in 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "a number must be finite"
    return "a value must be a string, an integer, a float or a boolean"


def spelled(value: object) -> str:
    """A value in TOML's spelling, for messages, tables and command lines' booleans. It is always printable."""
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
    """Bare, unless it could not be printed then."""
    return key if isinstance(key, str) and key.isprintable() else spelled(key)


def spelled_pairs(values: Mapping[str, Any]) -> str:
    """``load=0.1 net="wifi"``."""
    return " ".join(f"{escaped(name)}={spelled(value)}" for name, value in values.items())


def labels(values: Sequence[Scalar]) -> list[str]:
    """Each value as one reads it; strings without quotes, unless they could be taken for another value."""
    bare = [value if isinstance(value, str) and value.strip() else spelled(value) for value in values]
    return bare if len(set(bare)) == len(bare) else [spelled(value) for value in values]
