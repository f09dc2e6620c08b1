"""Metrics from the output of a job: a regex, a JSON path or a CSV column, over stdout or a file."""

from __future__ import annotations

import csv
import io
import json
import math
import mmap
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunegym.tuning.model.scenario import MetricSpec
from tunegym.tuning.ports import MetricError

STDOUT = "stdout.txt"
MATCH_S = 30.0
"""How long matching a pattern may take: some patterns never end."""

_STEP = re.compile(
    r"""\[\s*(?P<index>-?\d+)\s*\]             # [0]
    |\[\s*"(?P<double>(?:[^"\\]|\\.)*)"\s*\]   # ["x.y"]
    |\[\s*'(?P<single>[^']*)'\s*\]             # ['x.y']
    |(?P<dot>\.)?(?P<key>[^.\[\]"'\s]+)        # a or .a
    """,
    re.VERBOSE,
)


def extract(spec: MetricSpec, folder: str, documents: dict[tuple[str, str], Any] | None = None) -> float:
    """The finite value of one metric of a job that ran in ``folder``.

    A regex is matched over the bytes of the file, with ``^`` and ``$`` at every line. ``documents`` keeps
    parsed files from one metric to the next; give the same dictionary for all metrics of one job.

    Raises:
        MetricError: there is no such file, match, key, column or row, or no finite number there.
    """
    shown = spec.file or STDOUT
    file = Path(folder, shown)
    documents = {} if documents is None else documents
    try:
        if not file.exists():
            raise MetricError(f"{shown} does not exist")
        if not file.is_file():  # opening a FIFO would wait for ever
            raise MetricError(f"{shown} is not a regular file")
        if spec.kind == "regex":
            return finite(_match(spec, file, shown))
        read, find = (_read_json, _walk) if spec.kind == "json" else (_read_csv, _cell)
        key = spec.kind, str(file)
        if key not in documents:
            documents[key] = read(spec, file.read_bytes(), shown)
        return finite(find(spec, documents[key], shown))
    except MetricError as error:
        raise MetricError(f"metric {spec.name}: {error}") from None
    except OSError as error:
        raise MetricError(f"metric {spec.name}: {shown} can't be read: {error.strerror}") from None


def finite(value: Any) -> float:
    """``value`` as a finite float; numbers and their spelling are fine, a boolean is no number.

    Raises ``MetricError``: it is not; says why.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace").strip()
    elif isinstance(value, bool) or not isinstance(value, str | int | float):
        shown = json.dumps(value) if value is None or isinstance(value, bool) else f"a {_kind(value)}"
        raise MetricError(f"{shown} is not a number")
    try:
        if isinstance(value, str) and "_" in value:  # only Python reads 1_000 as a number
            raise ValueError
        number = float(value)
    except OverflowError:
        number = math.inf
    except ValueError:
        raise MetricError(f"{short(value)} is not a number") from None
    if not math.isfinite(number):
        raise MetricError("is NaN" if math.isnan(number) else "is infinite")
    return number


def short(value: object) -> str:
    """A value as Python spells it, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# a regex ----------------------------------------------------------------------------------------------


def compile_regex(pattern: str) -> Any:
    """A metric's pattern over bytes, ``^`` and ``$`` at every line; raises ``ValueError``."""
    import regex  # unlike re, it can be stopped

    try:
        return regex.compile(pattern.encode(), regex.MULTILINE)
    except regex.error as error:
        raise ValueError(error) from None


def _match(spec: MetricSpec, file: Path, shown: str) -> bytes:
    found = None
    try:
        for match in _matches(spec.expression, file):
            found = match[0], match.groups()
            if spec.match == "first":
                break
    except TimeoutError:
        raise MetricError(f"'{spec.expression}' takes more than {MATCH_S:g} s to match in {shown}") from None
    if found is None:
        raise MetricError(f"no match for '{spec.expression}' in {shown}")
    whole, groups = found
    for group in groups or (whole,):  # of alternatives, the one that took part
        if group is not None:
            return group
    raise MetricError(f"the group of '{spec.expression}' matched nothing in {shown}")


def _matches(pattern: str, file: Path) -> Iterator[Any]:
    """The matches in a file, which is mapped rather than read: a job may have printed gigabytes."""
    with file.open("rb") as opened:
        empty = os.fstat(opened.fileno()).st_size == 0
        content = b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        yield from compile_regex(pattern).finditer(content, timeout=MATCH_S)


# JSON -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def parse_json_path(text: str) -> tuple[str | int, ...]:
    """The keys and indices of a path such as ``a.b[0]["x.y"]``; a leading ``$`` is the document itself.

    Raises:
        ValueError: the path can't be understood; says at which position.
    """
    steps: list[str | int] = []
    position = 1 if text.startswith("$") and text[1:2] in ("", ".", "[") else 0
    if not text:
        raise ValueError("an empty path (position 0)")
    while position < len(text):
        step = _STEP.match(text, position)
        try:
            if step is None or (step["key"] is not None and bool(step["dot"]) == (position == 0)):
                raise ValueError
            index, quoted = step["index"], step["double"]
            name = step["key"] if step["single"] is None else step["single"]
            steps.append(int(index) if index else name if quoted is None else json.loads(f'"{quoted}"'))
        except ValueError:
            raise ValueError(f"can't understand {text[position:]!r} (position {position})") from None
        position = step.end()
    return tuple(steps)


def _read_json(spec: MetricSpec, text: bytes, shown: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        found = _last_object(text) if spec.file is None else None
        if found is None:
            what = "it is empty" if not text.strip() else str(error)
            raise MetricError(f"{shown} is not JSON: {what}") from None
        return found


def _last_object(text: bytes) -> dict[str, Any] | None:
    """The last JSON object of a log: on a line, or indented from a line ``{`` on."""
    end = len(text)
    indented_tried = False
    while end > 0:
        start = text.rfind(b"\n", 0, end) + 1
        line = text[start:end].strip()
        if line == b"{" and not indented_tried:
            line, indented_tried = text[start:].strip(), True
        if line.startswith(b"{") and line.endswith(b"}"):
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                pass
        end = start - 1
    return None


def _walk(spec: MetricSpec, document: Any, shown: str) -> Any:
    at = ""
    value: Any = document
    for step in parse_json_path(spec.expression):
        name, holder = (repr(step), dict) if isinstance(step, str) else (f"[{step}]", list)
        what = f"no {name} in {at or shown}"
        if not isinstance(value, holder):
            raise MetricError(f"{what}, which is a {_kind(value)}")
        try:
            value = value[step]  # type: ignore[call-overload]
        except KeyError:
            raise MetricError(f"{what} (there is: {_listed(value)})") from None
        except IndexError:
            raise MetricError(f"{what} (its length is {len(value)})") from None
        at += name if holder is list else f".{step}" if at else str(step)
    return value


def _kind(value: Any) -> str:
    names = {dict: "table", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


# CSV --------------------------------------------------------------------------------------------------


def _read_csv(_: MetricSpec, content: bytes, shown: str) -> list[list[str]]:
    text = content.decode("utf-8-sig", errors="replace")
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True) if row]
    except csv.Error as error:
        raise MetricError(f"{shown} is not CSV: {error}") from None
    if not rows:
        raise MetricError(f"{shown} is empty")
    return rows


def _cell(spec: MetricSpec, rows: list[list[str]], shown: str) -> str:
    header, *data = rows
    columns = [name.strip() for name in header]
    if spec.expression not in columns:
        raise MetricError(f"no column {spec.expression!r} in {shown} (there is: {_listed(columns)})")
    if not -len(data) <= spec.row < len(data):
        raise MetricError(f"no row {spec.row} in {shown} (it has {len(data)})")
    row, column = data[spec.row], columns.index(spec.expression)
    if column >= len(row):
        raise MetricError(f"row {spec.row} of {shown} has no {spec.expression!r}")
    return row[column]


def _listed(names: dict[str, Any] | list[str]) -> str:
    shown = ", ".join(list(names)[:20]) or "nothing"
    return f"{shown}, ..." if len(names) > 20 else shown
