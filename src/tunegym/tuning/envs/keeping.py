"""What stays in ``trials/``."""

from __future__ import annotations

import shutil
from heapq import heappush, heappushpop
from pathlib import Path

from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.scenario import Keep
from tunegym.tuning.model.trial import Trial


class Keeping:
    """Deletes the folders of closed trials that ``keep`` doesn't cover."""

    def __init__(self, keep: Keep, trials: str) -> None:
        self._keep = keep
        self._trials = trials
        self._best: list[tuple[float, int]] = []

    def closed(self, trial: Trial) -> None:
        """Decide about the folder of a trial that just closed; also one of an earlier session."""
        if self._keep.kind == "all":
            return
        for number in self._dropped(trial):
            folder = Path(f"{self._trials}/{number:06d}")
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)

    def _dropped(self, trial: Trial) -> list[int]:
        number = trial.number
        if self._keep.kind == "failed":
            return [number] if isinstance(trial.outcome, Measured) else []
        if self._keep.kind == "none":
            return [number]
        if not isinstance(trial.outcome, Measured) or trial.cached_from is not None:
            return [number]
        entry = (trial.reward, -number)  # of equals the earlier one stays
        if len(self._best) < self._keep.count:
            heappush(self._best, entry)
            return []
        return [-heappushpop(self._best, entry)[1]]
