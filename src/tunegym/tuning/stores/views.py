"""The CSV views of a journal. All rows of a trial or step are written from one record, so they can't disagree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Trial

TRAJECTORY = "trajectory.csv"
ENV = "env.csv"
EPISODES = "episodes.csv"
_SPECIAL = frozenset(',"\r\n')


class CsvFiles:
    """CSV files of one folder, written beside those of an earlier session until ``publish``. Raises ``StoreError``."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._files: list[int] = []
        self._paths = {folder / f"{name}.new": folder / name for name in names}
        for fresh in self._paths:
            try:
                flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                self._files.append(os.open(fresh, flags, 0o644))
            except OSError as error:
                self.close()
                raise StoreError(f"{fresh} can't be written: {error.strerror}") from error

    def publish(self) -> None:
        """Replace the files of an earlier session. Calling it twice is fine."""
        while self._paths:
            fresh, path = self._paths.popitem()
            try:
                fresh.replace(path)
            except OSError as error:
                raise StoreError(f"{path} can't be written: {error.strerror}") from error

    def append(self, *rows: str) -> None:
        """Append rows to each file, or to none."""
        sizes = [os.fstat(descriptor).st_size for descriptor in self._files]
        try:
            for descriptor, text in zip(self._files, rows, strict=False):
                data = text.encode()
                while data:
                    data = data[os.write(descriptor, data) :]
        except OSError as error:
            for descriptor, size in zip(self._files, sizes, strict=True):
                os.ftruncate(descriptor, size)
            raise StoreError(
                f"the CSV views can't be written: {error.strerror}",
                hint="the journal is complete: free some space, then `tunegym resume` writes the views again",
            ) from error

    def close(self) -> None:
        """Close the files. Later rows are dropped, and files that are not published removed."""
        while self._files:
            os.close(self._files.pop())
        while self._paths:
            self._paths.popitem()[0].unlink(missing_ok=True)


class TrialViews:
    """Writes ``trajectory.csv`` and ``env.csv`` from their start, in the order of numbers.

    A row waits until every lower number has one; ``close`` writes the rows that still wait. One thread adds, another
    may flush. Files that are there are replaced once all rows up to ``past`` are written: they may show these.
    ``nodes`` adds a column for the nodes of a cluster that a trial ran on.
    """

    def __init__(
        self,
        folder: Path,
        knobs: Sequence[str],
        env_params: Sequence[str],
        metrics: Sequence[str],
        past: int = 0,
        *,
        nodes: bool = False,
    ) -> None:
        self._knobs = tuple(knobs)
        self._env_params = tuple(env_params)
        self._metrics = tuple(metrics)
        self._next, self._past = 1, past
        self._nodes = nodes
        self._waiting: dict[int, tuple[str, str]] = {}
        self._files = CsvFiles(folder, (TRAJECTORY, ENV))
        columns = [
            *("step", "status", "cached", "reward"),
            *(f"action.{name}" for name in knobs),
            *(f"context.{name}" for name in env_params),
            *(f"observation.{name}" for name in metrics),
            "duration_s",
            *(["nodes"] if nodes else []),
            "phase",
        ]
        self._files.append(line(columns), line(["step", *env_params, "phase"]))
        self.flush()

    def add(self, trial: Trial) -> None:
        """Both rows of a closed trial."""
        self._waiting[trial.number] = self._pair(trial)

    def flush(self) -> None:
        """Hand the rows so far to the operating system."""
        self._write(list(takewhile(self._waiting.__contains__, count(self._next))))
        if self._next > self._past:
            self._files.publish()

    def close(self) -> None:
        """Write everything, also rows behind a number that never ended. Calling it twice is fine."""
        try:
            self._write(sorted(self._waiting))
            self._files.publish()
        finally:
            self._files.close()

    def _write(self, numbers: list[int]) -> None:
        if numbers:
            rows = [self._waiting[number] for number in numbers]
            self._files.append(*("".join(column) for column in zip(*rows, strict=True)))
            self._next = numbers[-1] + 1
            for number in numbers:  # not before: what can't be written now may be later
                del self._waiting[number]

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
            *([" ".join(trial.nodes)] if self._nodes else []),
            trial.phase,
        ]
        return line(row), line([trial.number, *drawn, trial.phase])


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
