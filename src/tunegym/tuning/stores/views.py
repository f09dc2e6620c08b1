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


class CsvFiles:
    """CSV files of one folder, written from their start. Raises ``StoreError`` if one can't be written."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._files: list[int] = []
        for name in names:
            try:
                flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                self._files.append(os.open(folder / name, flags, 0o644))
            except OSError as error:
                raise StoreError(f"{folder / name} can't be written: {error.strerror}") from error

    def append(self, *rows: str) -> None:
        """Append rows to each file."""
        try:
            for descriptor, text in zip(self._files, rows, strict=False):
                data = text.encode()
                while data:
                    data = data[os.write(descriptor, data) :]
        except OSError as error:
            raise StoreError(
                f"the CSV views can't be written: {error.strerror}",
                hint="the journal is complete: free some space, then `tunegym resume` writes the views again",
            ) from error

    def close(self) -> None:
        """Close the files. Later rows are dropped."""
        while self._files:
            os.close(self._files.pop())


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
        self._files = CsvFiles(folder, (TRAJECTORY, ENV))
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
            if rows:
                self._files.append(*("".join(column) for column in zip(*rows, strict=True)))

    def close(self) -> None:
        """Write everything, also rows behind a number that never ended. Calling it twice is fine."""
        with self._lock:
            self._rows.extend(self._waiting[number] for number in sorted(self._waiting))
            self._waiting.clear()
        try:
            self.flush()
        finally:
            self._files.close()

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
