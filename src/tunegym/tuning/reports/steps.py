"""A live experiment's steps and episodes as tables and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from gymnasium import spaces

from tunegym.core.errors import StoreError
from tunegym.tuning.spaces import leaves
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.columns import EPISODE_COLUMNS, INLINE, MEASURED, SIDES, leaf_values, row_type
from tunegym.tuning.stores.reader import Lost, Steps

if TYPE_CHECKING:
    from tunegym.tuning.reports.live import LiveResults

_AHEAD = ("step", "status", "cached", "reward")
_BEHIND = ("duration_s", "episode", "terminated", "truncated", "reason", "row")


def step_table(
    results: LiveResults, first: int | None = None, last: int | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """One row per recorded step from number ``first`` to ``last``, of all columns or of those named."""
    layout = _Layout(results)
    wanted = [name for name in layout.names if columns is None or name in columns]
    unknown = [name for name in columns or () if name not in layout.names]
    if unknown:
        raise KeyError(f"there is no column {', '.join(unknown)}; there are {', '.join(layout.names)}")
    low, high = first or 1, last if last is not None else results.steps
    parts: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    row = 0
    for group in reader.steps(results.path) if results.path.exists() else ():
        if isinstance(group, Lost):
            cells = layout.lost(group, low, high)
        else:
            keep = _kept(group, low, high)
            cells = layout.cells(group, row, wanted, keep) if keep is not None else {}
            row += len(group.numbers)
        for name in wanted if cells else ():
            parts[name].append(cells[name])
    return pd.DataFrame({name: _joined(found) for name, found in parts.items()}, columns=wanted)


def _kept(group: Steps, low: int, high: int) -> np.ndarray | None:
    numbers = np.array(group.numbers)
    keep = (numbers >= low) & (numbers <= high)
    return keep if keep.any() else None


class _Layout:
    """Which columns there are, and what a group of steps has in each."""

    def __init__(self, results: LiveResults) -> None:
        head = results.journal.head or {}
        self._env_params = list(head.get("env_params", ()))
        self._metrics = list(head.get("metrics", ()))
        record = str(head.get("live", {}).get("record", "all"))
        self._every = int(record.partition(":")[2] or 1)
        self._episodes_only = record == "episodes"
        found = {"action": results.action_space, "observation": results.observation_space}
        self._leaves = {
            kind: leaves(space) if space is not None and is_inline(space) else [] for kind, space in found.items()
        }
        elements = {
            kind: [f"{kind}.{name}" if name else kind for leaf in some for name in leaf.names()]
            for kind, some in self._leaves.items()
        }
        self._elements = elements
        self.names = [
            *_AHEAD,
            *elements["action"],
            *(f"context.{name}" for name in self._env_params),
            *elements["observation"],
            *(f"metric.{name}" for name in self._metrics),
            *_BEHIND,
        ]

    def cells(self, group: Steps, row: int, wanted: Sequence[str], keep: np.ndarray) -> dict[str, np.ndarray]:
        """The cells of the steps to keep; ``row`` is the place of the group's first among all."""
        count = len(group.numbers)
        asked = set(wanted)
        statuses = np.full(count, MEASURED, dtype=object)
        reasons = np.full(count, "", dtype=object)
        for at, (status, reason) in group.unmeasured.items():
            statuses[at], reasons[at] = status, reason
        cells: dict[str, np.ndarray] = {
            "step": np.array(group.numbers),
            "status": statuses,
            "cached": np.zeros(count, dtype=bool),
            "reward": np.array(group.rewards, dtype=np.float64),
            "duration_s": np.array(group.durations, dtype=np.float64),
            "episode": np.array(group.episodes),
            "terminated": _flags(group.terminated, count),
            "truncated": _flags(group.truncated, count),
            "reason": reasons,
            "row": np.arange(row, row + count),
        }
        for kind, found in (("action", group.actions), ("observation", group.observations)):
            if asked.intersection(self._elements[kind]):
                cells |= self._element_cells(kind, found or [])
        if asked.intersection(f"context.{name}" for name in self._env_params):
            contexts = group.context_of()
            cells |= {f"context.{name}": _typed([one.get(name) for one in contexts]) for name in self._env_params}
        for name in self._metrics:
            values = group.metrics.get(name, [None] * count)
            cells[f"metric.{name}"] = np.array(values, dtype=np.float64)
        return {name: cells[name][keep] for name in wanted}

    def _element_cells(self, kind: str, found: Sequence[Any]) -> dict[str, np.ndarray]:
        cells: dict[str, np.ndarray] = {}
        names = iter(self._elements[kind])
        for leaf, values in zip(self._leaves[kind], found, strict=True):
            rows = leaf_values(leaf, values)
            flat = rows.reshape(len(rows), -1)
            cells |= {next(names): flat[:, place] for place in range(flat.shape[1])}
        return cells

    def lost(self, group: Lost, low: int, high: int) -> dict[str, np.ndarray]:
        """Rows for numbers of which nothing is on record, as far as they would have been recorded."""
        if self._episodes_only:
            return {}
        numbers = range(max(group.first, low), min(group.last, high) + 1)
        steps = np.array([number for number in numbers if number % self._every == 0], dtype=np.int64)
        if not len(steps):
            return {}
        nothing = np.full(len(steps), np.nan)
        known = {
            "step": steps,
            "status": np.full(len(steps), "cancelled", dtype=object),
            "cached": np.zeros(len(steps), dtype=bool),
            "terminated": np.full(len(steps), None, dtype=object),
            "truncated": np.full(len(steps), None, dtype=object),
            "reason": np.full(len(steps), "the session was cut off", dtype=object),
            "row": np.full(len(steps), -1),
        }
        return dict.fromkeys(self.names, nothing) | known


def _flags(places: Sequence[int], count: int) -> np.ndarray:
    flags = np.zeros(count, dtype=bool)
    flags[list(places)] = True
    return flags


def _typed(values: Sequence[Any]) -> np.ndarray:
    """Numbers of one type as such, anything else as objects."""
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and kinds <= {int, float, bool}:
        return np.array(values)
    return np.array(values, dtype=object)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0)


def episode_table(results: LiveResults) -> pd.DataFrame:
    """One row per episode that is over: the columns of ``episodes.csv``."""
    names = list((results.journal.head or {}).get("env_params", ()))
    columns: dict[str, list[Any]] = {name: [] for name in [*EPISODE_COLUMNS, *(f"context.{one}" for one in names)]}
    filled = list(columns.values())
    for one in results.stream_episodes():
        row = [one.number, one.first, one.last, one.length, one.total, one.end, one.lane]
        for cells, value in zip(filled, [*row, *(one.context.get(name) for name in names)], strict=True):
            cells.append(value)
    return pd.DataFrame(columns)


def is_inline(space: spaces.Space[Any]) -> bool:
    """Whether elements of a space are in the journal; others have a file of their own."""
    return sum(leaf.size for leaf in leaves(space)) <= INLINE


def elements(results: LiveResults, kind: str, space: spaces.Space[Any]) -> np.ndarray:
    """The ``kind`` ("action" or "observation") of every recorded step.

    Raises:
        StoreError: their file is not there, or too short.
    """
    if not is_inline(space):
        return _mapped(results, kind, row_type(space))
    parts: list[np.ndarray] = []
    for group in reader.steps(results.path):
        if isinstance(group, Steps):
            found = group.actions if kind == "action" else group.observations
            assert found is not None
            rows = np.zeros(len(group.numbers), dtype=row_type(space))
            for leaf, values in zip(leaves(space), found, strict=True):
                rows[leaf.name or "value"] = leaf_values(leaf, values)
            parts.append(rows)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=row_type(space))


def _mapped(results: LiveResults, kind: str, dtype: np.dtype[Any]) -> np.ndarray:
    rows = results.journal.sides.get(kind, 0)
    path = results.folder / SIDES[kind]
    if not rows:
        return np.zeros(0, dtype=dtype)
    try:
        found = path.stat().st_size // dtype.itemsize
        if found >= rows:
            return np.memmap(path, dtype=dtype, mode="r", shape=(rows,))
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}", hint="put the file back") from error
    raise StoreError(
        f"{path} is too short: the journal knows of {rows} rows, and it has {found}", hint="put the whole file back"
    )
