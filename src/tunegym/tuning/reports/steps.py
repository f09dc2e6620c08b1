"""A live experiment's steps and episodes as tables and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from gymnasium import spaces

from tunegym.tuning.model.scenario import Recording
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.columns import EPISODE_COLUMNS, MEASURED, SIDES, Elements, StepTable
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
        self._env_params, self._metrics = list(results.head.env_params), list(results.head.metrics)
        self._recording = results.head.live or Recording()
        nothing = spaces.Dict({})  # of a server that never answered
        self._table = StepTable(
            results.action_space or nothing, results.observation_space or nothing, self._metrics, self._env_params
        )
        self.names = [*self._table.columns, "reason", "row"]

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
        for kind, elements, found in (
            ("action", self._table.actions, group.actions),
            ("observation", self._table.observations, group.observations),
        ):
            if found is not None and wanted.intersection(elements.names(kind)):
                flat = [column for one in elements.inlined(found) for column in one.reshape(count, -1).T]
                cells |= dict(zip(elements.names(kind), flat, strict=True))
        contexts = group.context_of() if self._env_params else []
        cells |= {f"context.{name}": [one.get(name) for one in contexts] for name in self._env_params}
        for name in self._metrics:
            cells[f"metric.{name}"] = np.array(group.metrics.get(name, [None] * count), dtype=np.float64)
        return cells

    def lost(self, group: Lost) -> dict[str, Any]:
        """Rows for numbers of which nothing is on record, as far as they would have been recorded."""
        numbers = range(0) if self._recording.kind == "episodes" else range(group.first, group.last + 1)
        steps = [number for number in numbers if number % self._recording.every == 0]
        return {"step": steps, "status": "cancelled", "cached": False, "reason": "the session was cut off", "row": -1}


def episode_table(results: LiveResults) -> pd.DataFrame:
    """One row per episode that is over: the columns of ``episodes.csv``."""
    names = list(results.head.env_params)
    rows = [
        (one.number, one.first, one.last, one.length, one.total, one.end, one.lane, *map(one.context.get, names))
        for one in results.stream_episodes()
    ]
    return pd.DataFrame(rows, columns=[*EPISODE_COLUMNS, *(f"context.{one}" for one in names)])


def elements(results: LiveResults, kind: str, space: spaces.Space[Any]) -> np.ndarray:
    """The ``kind`` ("action" or "observation") of every recorded step.

    Raises:
        StoreError: their file is not there, or too short.
    """
    known = Elements(space)
    if not known.inline:
        return known.mapped(results.folder / SIDES[kind], results.journal.sides.get(kind, 0))
    parts = [np.zeros(0, dtype=known.dtype)]
    for group in reader.steps(results.path):
        if isinstance(group, Steps):
            found = group.actions if kind == "action" else group.observations
            assert found is not None
            rows = np.zeros(len(group.numbers), dtype=known.dtype)
            for name, column in zip(known.dtype.names or (), known.inlined(found), strict=True):
                rows[name] = column
            parts.append(rows)
    return np.concatenate(parts)
