"""Tables of texts on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import table as rich
from rich.console import Console
from rich.measure import Measurement

from tunegym.tuning.model.summary import Table, number, pairs, rate
from tunegym.tuning.reports.summary import reached

__all__ = ["number", "pairs", "rate", "reached", "rich_table", "table_or_list"]


def rich_table(table: Table, left: Sequence[str] = ()) -> rich.Table:
    """The table as rich draws it; columns that are not ``left`` are aligned to the right."""
    aligned = {*table.left, *left}
    made = rich.Table(title=table.title or None, title_justify="left")
    for title in table.columns:
        made.add_column(title, justify="left" if title in aligned else "right", overflow="fold")
    for row in table.rows:
        made.add_row(*row)
    return made


def table_or_list(table: Table, width: int) -> rich.Table | str:
    """The table, or a list of ``name = value`` where that is wider than ``width``."""
    made = rich_table(table)
    probe = Console(width=10_000, markup=False, emoji=False)
    if Measurement.get(probe, probe.options, made).maximum <= width:
        return made
    lines = [table.title]
    for row in table.rows:
        lines.append("")
        lines += [f"  {title} = {cell}" for title, cell in zip(table.columns, row, strict=True) if cell]
    return "\n".join(lines)
