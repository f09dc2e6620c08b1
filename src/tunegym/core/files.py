"""Files that we write: replaced as a whole or not at all, and a small TOML writer.

``tomllib`` reads back what ``dump_toml`` was given, by exact type.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunegym.core.text import escaped_toml


def write_atomic(path: Path, content: str | bytes | memoryview) -> None:
    """Replace the content of ``path``.

    A reader, also after a crash of the machine, finds the old or the new content, never a part. A write that fails
    leaves nothing behind. One writer at a time; it needs ``<name>.new`` beside it. Raises ``OSError``.
    """
    data = content.encode() if isinstance(content, str) else content
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:  # also an interrupt
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def append_whole(descriptor: int, data: bytes) -> None:
    """Append to a file that is open for appending, whole or not at all. One writer at a time. Raises ``OSError``."""
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:] if written else data)
    except OSError:
        if written:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LINE = 100
"""Arrays longer than this get a line per element."""
_HEADED_DEPTH = 2
"""Tables down to this depth (``experiments.cmd_args``) get a header. Those below are written inline, in the order of
keys, which has a meaning there: a grid turns its last knob fastest."""


def dump_toml(document: Mapping[str, Any]) -> str:
    """``document`` as TOML: ``tomllib.loads(dump_toml(d)) == d``, where 1, 1.0 and true stay apart.

    A key whose value is None is left out. Tuples are written as arrays. Nothing in it harms a terminal.

    Raises:
        TypeError: a key is no string, or a value is none of str, int, float, bool, list, tuple, mapping.
        ValueError: a string that no UTF-8 file can hold.
    """
    text = "\n".join(_table((), document)).strip("\n")
    return f"{text}\n" if text else ""


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a table: its own keys first, as TOML wants it, then the tables with headers."""
    headed: list[tuple[str, str, Mapping[str, Any]]] = []
    for key, value in table.items():
        is_list = isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value)
        if isinstance(value, Mapping) and len(path) < _HEADED_DEPTH:
            headed.append((key, "[{}]", value))
        elif is_list and not path:
            headed += [(key, "[[{}]]", item) for item in value]
        elif value is not None:
            yield f"{_key(key)} = {_value(value, indent='')}"
    for key, header, value in headed:
        below = (*path, key)
        yield "\n" + header.format(".".join(map(_key, below)))
        yield from _table(below, value)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a TOML key must be a string, not {key!r}")
    return key if _BARE_KEY.fullmatch(key) else _string(key, literal=False)


def _value(value: Any, indent: str | None = None) -> str:
    """A value on the right of ``=``; None as indent keeps it on one line (inside an inline table)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)  # of float itself: numpy's floats spell themselves differently
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {_value(one)}" for key, one in value.items() if one is not None]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    if isinstance(value, list | tuple):
        return _array(value, indent)
    raise TypeError(f"TOML can't hold {type(value).__name__} {value!r}")


def _array(items: list[Any] | tuple[Any, ...], indent: str | None) -> str:
    line = "[" + ", ".join(_value(item) for item in items) + "]"
    if indent is None or len(line) + len(indent) <= _LINE:
        return line
    deeper = indent + "  "
    return "[\n" + "".join(f"{deeper}{_value(item, deeper)},\n" for item in items) + f"{indent}]"


def _string(text: str, literal: bool = True) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} can't be written as UTF-8: {error.reason}") from None
    if literal and "\\" in text and "'" not in text and text.isprintable():
        return f"'{text}'"  # a pattern reads better without doubled backslashes
    return escaped_toml(json.dumps(text, ensure_ascii=False))
