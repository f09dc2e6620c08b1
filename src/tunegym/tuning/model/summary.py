"""What results say of themselves: frozen values that the terminal, ``report.html``, trackers and ``--json`` render.

Both kinds of experiment give the same values, so a renderer needs no branch on the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    title: str  # shown above it; empty for none
    columns: tuple[str, ...]  # the title of each column
    rows: tuple[tuple[str, ...], ...]  # one text per column
    left: tuple[str, ...] = ()  # the columns that are aligned to the left; the others hold numbers


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
    """Where an experiment stands."""

    unit: str  # the thing that is counted: ``trial`` or ``step``. Experiments of one unit share a table.
    facts: Mapping[str, Any]  # plain data, as ``tunegym status --json`` prints it
    row: Mapping[str, str]  # the cells of a table by column title
    notes: tuple[str, ...] = ()  # lines to print below the table


@dataclass(frozen=True)
class Summary:
    """The results of an experiment."""

    facts: dict[str, Any]  # plain data, as ``tunegym report --json`` prints it
    table: Table | None = None  # the best settings, to print at the end of a run; None where there are none
    lines: tuple[str, ...] = ()  # what to print below the table, or instead of it


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    # plain data: ``warnings`` and ``entries``, as ``tunegym compare --json`` prints them, and for the page
    facts: Mapping[str, Any]
    tables: tuple[Table, ...]  # to print, one per kind of experiment


@dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment would do, before anything runs: in words, and as plain data for ``--json``."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a session is."""

    done: int  # trials closed, or steps taken, those of earlier sessions included
    unit: str  # ``step`` where they are counted by the second; empty for trials, which are few
    measured: int  # how many of them have a measurement
    elapsed_s: float  # time spent on them, earlier sessions included
    shown: Mapping[str, str] = field(default_factory=dict)  # further entries of a progress line by label, in this order
