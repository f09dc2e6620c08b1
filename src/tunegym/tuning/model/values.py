"""Native values of knobs, contexts and fixed parameters, and how they are shown to people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

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
_KEYS = msgspec.json.Encoder(order="deterministic")


def exact_key(*parts: Mapping[str, Any]) -> bytes:
    """Return a key that is equal only for equal typed values: 1, 1.0 and True differ, key order doesn't matter.

    Scalars must have passed ``storable``; JSON then keeps their types apart.
    """
    return _KEYS.encode(parts)


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
        return escaped_toml(msgspec.json.encode(value).decode())
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
    return " ".join(f"{escaped(name)}={spelled(rounded(value))}" for name, value in values.items())


def labels(values: Sequence[Scalar]) -> list[str]:
    """Each value as one reads it; strings without quotes, unless they could be taken for another value."""
    bare = [value if isinstance(value, str) and value.strip() else spelled(value) for value in values]
    return bare if len(set(bare)) == len(bare) else [spelled(value) for value in values]


def number(value: float, digits: int = 4) -> str:
    """A number as every table shows it, also in report.html: ``1,234,567``, ``12,341``, ``0.01235``, ``1.235e9``.

    Integers are exact, others have ``digits`` significant digits and at least their whole part.
    """
    size = abs(value)
    if size < 1e9 and value == int(value):
        return f"{value:,.0f}"
    if 1e-4 <= size < 1e9:
        return f"{value:,.{max(digits, len(f'{size:.0f}'))}g}"
    return re.sub(r"e([+-])0*", lambda sign: "e-" if sign[1] == "-" else "e", f"{value:.{digits}g}")


def plus_minus(mean: float, spread: float | None) -> str:
    """``4.748 ±1.3``; the mean alone if the spread is unknown, or only rounding."""
    return f"{number(mean)} ±{number(spread, 2)}" if spread and spread > 1e-9 * abs(mean) else number(mean)


def seconds(value: float) -> str:
    """A duration, as report.html shows it: ``250 ms``, ``1.5 s``, ``2 min 05 s``, ``1 h 30 min``."""
    for below, scale, unit, digits in ((1e-3, 1e6, "µs", 2), (1.0, 1e3, "ms", 3), (60.0, 1.0, "s", 3)):
        if 0 < value < below:
            return f"{number(value * scale, digits)} {unit}"
    minutes, rest = divmod(round(value), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def counted(count: int, unit: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


def with_goal(metric: str, goals: Mapping[str, str]) -> str:
    """``duration_s (min)``: a metric with the direction in which it is better, if that is known."""
    return f"{escaped(metric)} ({goals[metric]})" if metric in goals else escaped(metric)


def pairs(values: Mapping[str, Any]) -> str:
    """``threads=4 mode=fast``: strings without quotes, unless they would not look like one word then."""
    return " ".join(f"{escaped(name)}={bare(value)}" for name, value in values.items())


def bare(value: Any) -> str:
    """A string without its quotes where it can be read without them; any other value as TOML spells it, ``rounded``."""
    return value if isinstance(value, str) and value.isprintable() and value.strip() else spelled(rounded(value))


def rounded(value: Any) -> Any:
    """A float as people read it, with six significant digits and at least its whole part; any other value unchanged."""
    return float(f"{value:.{max(6, len(f'{abs(value):.0f}'))}g}") if isinstance(value, float) else value


# The password as a URL's grammar has it, else as a database's driver does. Rather too much than too little.
_PASSWORD = re.compile(r"(//[^\s/:]*:)(?:[^\s/?#]*|[^\s@]*)@")


def masked(text: str) -> str:
    """``text`` with ``//user:***@`` for every ``//user:password@`` in it: a page is mailed, a folder is not."""
    return _PASSWORD.sub(r"\1***@", text) if "//" in text else text
