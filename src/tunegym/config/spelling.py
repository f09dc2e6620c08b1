"""The words of a message: values as TOML spells them, kinds of values, closest spellings."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping

from tunegym.core.spelling import closest
from tunegym.tuning.model.values import spelled

LONGEST = 80
"""A value longer than this is cut in a message."""

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def shown(value: object) -> str:
    """``value`` as TOML spells it, cut to a readable length."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    try:
        text = spelled(value)
    except (TypeError, ValueError, RecursionError):  # what TOML can't spell: only Python can have built it
        text = ascii(type(value).__name__)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def kind(value: object) -> str:
    """What sort of value it is, in a user's words."""
    if isinstance(value, datetime.date | datetime.time):
        return "a date or time"
    kinds: list[tuple[type, str]] = [
        (bool, "a boolean"),
        (str, "a string"),
        (int, "an integer"),
        (float, "a float"),
        (list, "a list"),
        (Mapping, "a table"),
    ]
    for python_type, words in kinds:
        if isinstance(value, python_type):
            return words
    return f"a Python {type(value).__name__}"


def did_you_mean(name: object, names: Iterable[str], otherwise: str) -> str:
    """A hint with the closest spelling, or ``otherwise``."""
    match = closest(name, names) if isinstance(name, str) else None
    return f"did you mean {shown(match)}?" if match is not None else otherwise


def listed(names: Iterable[str]) -> str:
    """Names one after the other; says so when there are none."""
    return ", ".join(names) or "none"


def step_into(where: str, key: str | int) -> str:
    """The key path one level below ``where``; a key that TOML would quote is quoted."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    part = key if _BARE.match(key) else shown(key)
    return f"{where}.{part}" if where else part
