"""The CSV views of a live journal. All rows of a group are written from the same columns, so they can't disagree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tunegym.core.errors import StoreError
from tunegym.tuning.model.scenario import Recording
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.live_group import EPISODE_COLUMNS, Group
from tunegym.tuning.stores.reader import Lost
from tunegym.tuning.stores.views import ENV, TRAJECTORY, fresh, line, write

EPISODES = "episodes.csv"


class LiveViews:
    """Writes ``trajectory.csv``, ``env.csv`` and ``episodes.csv`` anew.

    Attributes:
        sizes: of the files, once all rows that were given are written.
        holed: what kept rows from being written: nothing may follow them.
    """

    def __init__(self, folder: Path, group: Group, env_params: Sequence[str]) -> None:
        self.holed: StoreError | None = None
        self._files: list[int] = []
        for name in (TRAJECTORY, ENV, EPISODES):
            self._files.append(fresh(folder / name))
        self.sizes: Sequence[int] = [0, 0, 0]
        trajectory, env = group.header()
        self._empty = trajectory.count(",") - 2
        self.append(trajectory, env, line([*EPISODE_COLUMNS, *(f"context.{name}" for name in env_params)]))

    def write_past(self, journal: Path, group: Group, recording: Recording) -> None:
        """All rows of earlier sessions again: a killed writer may have left any part of them. Uses ``group``."""
        for one in reader.steps(journal):
            if isinstance(one, Lost):
                self._append_lost(one, group, recording)
            else:
                group.load(one)
                self.append(*group.lines())
        for episode in reader.episodes(journal):
            group.fill((), (episode,))
            self.append("", "", group.episode_lines())

    def _append_lost(self, lost: Lost, group: Group, recording: Recording) -> None:
        if recording.kind == "episodes":
            return
        every = recording.every if recording.kind == "every" else 1
        for number in range(lost.first, lost.last + 1):
            if number % every == 0:
                self.append(*group.lost_lines(number, self._empty))

    def append(self, trajectory: str, env: str, episodes: str = "", at: Sequence[int] | None = None) -> None:
        """More rows.

        Args:
            trajectory: of ``trajectory.csv``.
            env: of ``env.csv``.
            episodes: of ``episodes.csv``.
            at: ``sizes`` before the first attempt to write the same rows; what is there already isn't written twice.

        Raises:
            StoreError: they can't be written.
        """
        rows = [one.encode() for one in (trajectory, env, episodes)]
        sizes = self.sizes if at is None else at
        try:
            for descriptor, data, size in zip(self._files, rows, sizes, strict=True):
                if data:
                    write(descriptor, data[os.fstat(descriptor).st_size - size :])
        except StoreError as error:
            self.holed = error
            raise
        self.sizes = [size + len(data) for size, data in zip(sizes, rows, strict=True)]

    def close(self) -> None:
        """Let go."""
        while self._files:
            os.close(self._files.pop())
