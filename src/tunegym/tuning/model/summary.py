"""What results say of themselves: frozen values that the terminal, ``report.html``, trackers and ``--json`` render.

Both kinds of experiment give the same values, so a renderer needs no branch on the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: shown above it; empty for none.
        columns: the title of each column.
        rows: one text per column.
        left: the columns that are aligned to the left; the others hold numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[str, ...] = ()


def table_of(title: str, rows: Sequence[Mapping[str, str]], left: Sequence[str] = ()) -> Table:
    """A table of rows by column title. Columns are those of any row, in order; a missing cell is empty."""
    columns: list[str] = []
    for row in rows:
        for at, name in enumerate(row):
            if name not in columns:
                before = list(row)[at - 1] if at else None
                columns.insert(columns.index(before) + 1 if before is not None else 0, name)
    cells = tuple(tuple(row.get(name, "") for name in columns) for row in rows)
    return Table(title, tuple(columns), cells, tuple(left))


@dataclass(frozen=True)
class Counts:
    """Where an experiment stands.

    Attributes:
        name: the experiment.
        unit: the thing that is counted: ``trial`` or ``step``. Experiments of one unit share a table.
        state: ``not started``, ``running``, ``finished`` or ``interrupted``.
        total: how many there are at most; None if that is open or unknown.
        done: how many are closed.
        facts: plain data, as ``tunegym status --json`` prints it.
        row: the cells of a table by column title.
        notes: lines to print below the table.
    """

    name: str
    unit: str
    state: str
    total: int | None
    done: int
    facts: Mapping[str, Any]
    row: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What an experiment found.

    Attributes:
        name: the experiment.
        facts: plain data, as ``tunegym report --json`` prints it.
        table: the best settings, to print at the end of a run; None where there are none.
        lines: what to print below the table, or instead of it.
    """

    name: str
    facts: dict[str, Any]
    table: Table | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side.

    Attributes:
        facts: plain data: ``warnings`` and ``entries``, as ``tunegym compare --json`` prints them, and for the page.
        tables: to print, one per kind of experiment.
    """

    facts: Mapping[str, Any]
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment would do, before anything runs: in words, and as plain data for ``--json``."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a session is.

    Attributes:
        done: trials closed, or steps taken, those of earlier sessions included.
        unit: ``step`` where they are counted by the second; empty for trials, which are few.
        measured: how many of them have a measurement.
        elapsed_s: time spent on them, earlier sessions included.
        shown: further entries of a progress line by label, in this order.
    """

    done: int
    unit: str
    measured: int
    elapsed_s: float
    shown: Mapping[str, str] = field(default_factory=dict)
