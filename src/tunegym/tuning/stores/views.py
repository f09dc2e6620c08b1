"""The CSV views of a journal. All rows of a trial or step are written from one record, so they can't disagree."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Trial

TRAJECTORY = "trajectory.csv"
ENV = "env.csv"
EPISODES = "episodes.csv"
_SPECIAL = frozenset(',"\r\n')


class TrialViews:
    """Writes ``trajectory.csv`` and ``env.csv`` from their start, in the order of numbers.

    A row waits until every lower number has one; ``close`` writes the rows that still wait. ``flush`` may be called
    from another thread.
    """

    def __init__(self, folder: Path, knobs: Sequence[str], env_params: Sequence[str], metrics: Sequence[str]) -> None:
        self._knobs = tuple(knobs)
        self._env_params = tuple(env_params)
        self._metrics = tuple(metrics)
        self._next = 1
        self._waiting: dict[int, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._rows: list[tuple[str, str]] = []
        self._files = [_empty(folder / name) for name in (TRAJECTORY, ENV)]
        columns = [
            "step",
            "status",
            "cached",
            "reward",
            *(f"action.{name}" for name in knobs),
            *(f"context.{name}" for name in env_params),
            *(f"observation.{name}" for name in metrics),
            "duration_s",
        ]
        self._rows.append((line(columns), line(["step", *env_params])))
        self.flush()

    def add(self, trial: Trial) -> None:
        """Both rows of a closed trial."""
        number = trial.number
        pair = self._pair(trial)
        with self._lock:
            if number != self._next:
                self._waiting[number] = pair
                return
            self._rows.append(pair)
            self._next += 1
            while self._waiting and self._next in self._waiting:
                self._rows.append(self._waiting.pop(self._next))
                self._next += 1

    def flush(self) -> None:
        """Hand the rows so far to the operating system."""
        with self._lock:
            rows, self._rows = self._rows, []
            if not rows or not self._files:
                return
            for column, descriptor in enumerate(self._files):
                _write(descriptor, "".join(pair[column] for pair in rows).encode())

    def close(self) -> None:
        """Write everything, also rows behind a number that never ended. Calling it twice is fine."""
        with self._lock:
            self._rows.extend(self._waiting[number] for number in sorted(self._waiting))
            self._waiting.clear()
        try:
            self.flush()
        finally:
            while self._files:
                os.close(self._files.pop())

    def _pair(self, trial: Trial) -> tuple[str, str]:
        metrics = trial.metrics
        action, context = trial.action, trial.context
        drawn = [context.get(name, "") for name in self._env_params]
        row: list[Any] = [
            trial.number,
            trial.outcome.status,
            trial.cached_from is not None,
            trial.reward,
            *[action.get(name, "") for name in self._knobs],
            *drawn,
            *[metrics.get(name, "") for name in self._metrics],
            round(trial.duration_s, 6),
        ]
        return line(row), line([trial.number, *drawn])


class StepViews:
    """Writes ``trajectory.csv``, ``env.csv`` and ``episodes.csv`` of a live journal from their start."""

    def __init__(self, folder: Path) -> None:
        self._files: list[int] = []
        for name in (TRAJECTORY, ENV, EPISODES):
            self._files.append(_empty(folder / name))

    def append(self, trajectory: str, env: str, episodes: str = "") -> None:
        """Append rows to each file. Raises ``StoreError``."""
        for descriptor, rows in zip(self._files, (trajectory, env, episodes), strict=True):
            if rows:
                _write(descriptor, rows.encode())

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())


def _empty(path: Path) -> int:
    """An empty file to append to. Raises ``StoreError``."""
    try:
        return os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror}") from error


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        raise StoreError(
            f"the CSV views can't be written: {error.strerror}",
            hint="the journal is complete: free some space, then `tunegym resume` writes the views again",
        ) from error


def line(cells: Sequence[Any]) -> str:
    """A row of a CSV, with its end."""
    return ",".join([_cell(cell) for cell in cells]) + "\n"


def _cell(cell: Any) -> str:
    if cell is True:
        return "true"
    if cell is False:
        return "false"
    if isinstance(cell, str):
        if _SPECIAL.isdisjoint(cell) and cell.strip() == cell:
            return cell
        return '"' + cell.replace('"', '""') + '"'
    return repr(cell)
