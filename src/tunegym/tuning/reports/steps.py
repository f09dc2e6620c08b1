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


def step_table(
    results: LiveResults, first: int | None = None, last: int | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """One row per recorded step from number ``first`` to ``last``, of all columns or of those named."""
    layout = _Layout(results)
    unknown = [name for name in columns or () if name not in layout.names]
    if unknown:
        raise KeyError(f"there is no column {', '.join(unknown)}; there are {', '.join(layout.names)}")
    wanted = [name for name in layout.names if columns is None or name in columns]
    low, high = first or 1, last if last is not None else results.steps
    frames: list[pd.DataFrame] = []
    row = 0
    for group in reader.steps(results.path):
        cells = layout.lost(group) if isinstance(group, Lost) else layout.cells(group, row, set(wanted))
        row += 0 if isinstance(group, Lost) else len(group.numbers)
        frame = pd.DataFrame(cells)
        frame = frame.loc[frame["step"].between(low, high), [name for name in wanted if name in cells]]
        if len(frame):
            frames.append(frame)
    return pd.DataFrame(pd.concat(frames, ignore_index=True) if frames else None, columns=wanted)


class _Layout:
    """Which columns there are, and what a group of steps has in each."""

    def __init__(self, results: LiveResults) -> None:
        self._env_params = list(results.head.get("env_params", ()))
        self._metrics = list(results.head.get("metrics", ()))
        self._record = str(results.head.get("live", {}).get("record", "all"))
        found = {"action": results.action_space, "observation": results.observation_space}
        self._leaves = {
            kind: leaves(space) if space is not None and is_inline(space) else [] for kind, space in found.items()
        }
        self._elements = {
            kind: [f"{kind}.{name}" if name else kind for leaf in some for name in leaf.names()]
            for kind, some in self._leaves.items()
        }
        self.names = [
            *("step", "status", "cached", "reward"),
            *self._elements["action"],
            *(f"context.{name}" for name in self._env_params),
            *self._elements["observation"],
            *(f"metric.{name}" for name in self._metrics),
            *("duration_s", "episode", "terminated", "truncated", "reason", "row"),
        ]

    def cells(self, group: Steps, row: int, wanted: set[str]) -> dict[str, Any]:
        """The cells of some steps; ``row`` is the place of the first among all."""
        count = len(group.numbers)
        ended = [group.unmeasured.get(at, (MEASURED, "")) for at in range(count)]
        cells: dict[str, Any] = {
            "step": group.numbers,
            "status": [status for status, _ in ended],
            "cached": False,
            "reward": np.array(group.rewards, dtype=np.float64),
            "duration_s": np.array(group.durations, dtype=np.float64),
            "episode": group.episodes,
            "terminated": np.isin(np.arange(count), group.terminated),
            "truncated": np.isin(np.arange(count), group.truncated),
            "reason": [reason for _, reason in ended],
            "row": np.arange(row, row + count),
        }
        for kind, found in (("action", group.actions), ("observation", group.observations)):
            if wanted.intersection(self._elements[kind]):
                rows = [leaf_values(leaf, one) for leaf, one in zip(self._leaves[kind], found or [], strict=True)]
                flat = [column for one in rows for column in one.reshape(count, -1).T]
                cells |= dict(zip(self._elements[kind], flat, strict=True))
        contexts = group.context_of() if self._env_params else []
        cells |= {f"context.{name}": [one.get(name) for one in contexts] for name in self._env_params}
        for name in self._metrics:
            cells[f"metric.{name}"] = np.array(group.metrics.get(name, [None] * count), dtype=np.float64)
        return cells

    def lost(self, group: Lost) -> dict[str, Any]:
        """Rows for numbers of which nothing is on record, as far as they would have been recorded."""
        every = int(self._record.partition(":")[2] or 1)
        numbers = range(0) if self._record == "episodes" else range(group.first, group.last + 1)
        steps = [number for number in numbers if number % every == 0]
        return {"step": steps, "status": "cancelled", "cached": False, "reason": "the session was cut off", "row": -1}


def episode_table(results: LiveResults) -> pd.DataFrame:
    """One row per episode that is over: the columns of ``episodes.csv``."""
    names = list(results.head.get("env_params", ()))
    rows = [
        (one.number, one.first, one.last, one.length, one.total, one.end, one.lane, *map(one.context.get, names))
        for one in results.stream_episodes()
    ]
    return pd.DataFrame(rows, columns=[*EPISODE_COLUMNS, *(f"context.{one}" for one in names)])


def is_inline(space: spaces.Space[Any]) -> bool:
    """Whether elements of a space are in the journal; others have their own file."""
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
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}", hint="put the file back") from error
    if found < rows:
        what = f"the journal knows of {rows} rows, and it has {found}"
        raise StoreError(f"{path} is too short: {what}", hint="put the whole file back")
    return np.memmap(path, dtype=dtype, mode="r", shape=(rows,))
