"""Tables of settings and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from tunegym.core.escaping import escaped
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import spelled
from tunegym.tuning.reports.best import Best, Setting


def number(value: float) -> str:
    """A number in as many digits as one reads."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e12 and value == int(value) else f"{value:.4g}"


def rate(value: float) -> str:
    """So many in a second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def pairs(values: Mapping[str, Any]) -> str:
    """``threads=4 mode=fast``."""
    return " ".join(f"{escaped(name)}={_bare(value)}" for name, value in values.items())


def _bare(value: Any) -> str:
    """A string without its quotes, unless it would not look like one word then."""
    return value if isinstance(value, str) and value.isprintable() and value.strip() else spelled(value)


def reached(trial: Trial) -> str:
    """``12.5 (threads=4)``, and where the environment varies ``12.5 (threads=4 at load=0.1)``."""
    context = f" at {pairs(trial.context)}" if trial.context else ""
    return f"{number(trial.reward)} ({pairs(trial.action)}{context})"


def best_settings(name: str, best: Best, metrics: list[str], width: int) -> Table | str:
    """The winning settings as a table, or as a list of ``name = value`` where that is wider than ``width``."""
    table = _table(name, best, metrics)
    probe = Console(width=10_000, markup=False, emoji=False)
    if Measurement.get(probe, probe.options, table).maximum <= width:
        return table
    lines = [_title(name, best)]
    rows = _rows(best)
    for label, setting in rows:
        lines += ["", f"  {label}"] if label else [""]
        titles = [escaped(title) for title in (*setting.action, "reward", *metrics, "samples", "trial")]
        cells = _cells(setting, list(setting.action), metrics)
        lines += [f"  {title} = {cell}" for title, cell in zip(titles, cells, strict=True) if cell]
    return "\n".join(lines)


MOST_ROWS = 20
"""Of a Pareto set, so many rows are shown; the rest is in best.toml."""


def _title(name: str, best: Best) -> str:
    name = escaped(name)
    if not best.pareto:
        return f"{name}: best settings"
    more = f", {MOST_ROWS} of them" if len(best.pareto) > MOST_ROWS else ""
    count = len(best.pareto)
    return f"{name}: Pareto set of {count} setting{'' if count == 1 else 's'}{more}; the highest reward first"


def _rows(best: Best) -> list[tuple[str, Setting]]:
    """What is shown, each with its label: the Pareto set, or the best over all and in each context."""
    contexts = [(pairs(setting.context or {}), setting) for setting in best.per_context]
    if best.pareto:
        shown = sorted(best.pareto, key=lambda setting: -setting.reward)[:MOST_ROWS]
        return [("over all" if contexts else "", setting) for setting in shown] + contexts
    overall = [("over all" if contexts else "", best.overall)] if best.overall is not None else []
    return overall + contexts


def _table(name: str, best: Best, metrics: list[str]) -> Table:
    """One row per setting."""
    table = Table(title=_title(name, best), title_justify="left")
    contexts = best.per_context
    if contexts:
        table.add_column("context")
    knobs = list(best.overall.action) if best.overall is not None else []
    for knob in knobs:
        table.add_column(escaped(knob))
    table.add_column("reward", justify="right")
    for metric in metrics:
        table.add_column(escaped(metric), justify="right")
    table.add_column("samples", justify="right")
    table.add_column("trial", justify="right")
    for label, setting in _rows(best):
        table.add_row(*([label] if contexts else []), *_cells(setting, knobs, metrics))
    return table


def _cells(setting: Setting, knobs: list[str], metrics: list[str]) -> list[str]:
    mean, spread = setting.metrics(), setting.spread()
    cells = [spelled(setting.action[knob]) for knob in knobs]
    cells.append(number(setting.reward))
    for metric in metrics:
        if metric not in mean:
            cells.append("")
        elif spread.get(metric, 0.0) > 1e-9 * abs(mean[metric]):  # less is the dust of adding floats
            cells.append(f"{number(mean[metric])} ±{spread[metric]:.2g}")
        else:
            cells.append(number(mean[metric]))
    return [*cells, str(len(setting.samples)), str(setting.first)]
