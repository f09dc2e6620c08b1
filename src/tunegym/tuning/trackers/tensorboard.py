"""TensorBoard: event files beside the results, written again by every session."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunegym.tuning.agents import policies
from tunegym.tuning.model.head import Head
from tunegym.tuning.trackers.feed import Item

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

FOLDER = "tensorboard"
TRIALS = "trials"
EVENTS = "events.out.tfevents.*"
MOST_HPARAMS = 500
"""The HParams tab needs a folder with a file for each trial; only the first trials have one."""
BEST = "best_reward"
FLUSH_S = 5


class TensorboardSink:
    """Writes a scalar per metric, with the item's number as its step, and the first trials' parameters.

    A session writes the whole journal again and removes what earlier ones wrote, so no point is there twice, and a
    file that was torn when its writer was killed is gone. The agent's training values, from
    ``policy/training.jsonl``, are written along.

    Args:
        folder: the experiment's ``tensorboard/``.
    """

    def __init__(self, folder: str) -> None:
        from tensorboardX import SummaryWriter

        self._new = SummaryWriter
        self._folder = Path(folder)
        self._writer: SummaryWriter | None = None
        self._best = -math.inf
        self._read = 0
        self._trained = 0

    def open(self, head: Head) -> set[int]:
        """Start with empty files."""
        if self._writer is not None:  # it could not be written to
            with contextlib.suppress(Exception):
                self._writer.close()
        for old in [*self._folder.glob(EVENTS), *self._folder.glob(f"{TRIALS}/*/{EVENTS}")]:
            old.unlink(missing_ok=True)
        self._writer = self._new(str(self._folder), flush_secs=FLUSH_S)
        self._best, self._read, self._trained = -math.inf, 0, 0
        return set()

    def send(self, items: Sequence[Item]) -> Iterator[int]:
        """Write the items."""
        writer = self._writer
        assert writer is not None
        for item in items:
            values = {name: float(value) for name, value in item.values.items() if isinstance(value, int | float)}
            if item.trial is not None:
                values["measured"] = float(item.trial.measured)
                if "reward" in values and not item.trial.context:  # rewards of different contexts don't compare
                    self._best = max(self._best, values["reward"])
                    values[BEST] = self._best
            for name, value in values.items():
                writer.add_scalar(name, value, item.number, item.at)
            if item.trial is not None and item.number <= MOST_HPARAMS:  # a row of the HParams tab
                context = {f"context.{name}": value for name, value in item.trial.context.items()}
                marks = {"tunegym.status": item.trial.status, "tunegym.phase": item.trial.phase}
                parameters = {**item.trial.action, **context, **marks}
                writer.add_hparams(parameters, dict(item.values), f"{TRIALS}/{item.number:06d}", item.number)
            yield item.number
        self._write_training(writer)
        writer.flush()

    def close(self) -> None:
        """Write the rest of the training values."""
        if self._writer is not None:
            self._write_training(self._writer)
            self._writer.close()
            self._writer = None

    def _write_training(self, writer: SummaryWriter) -> None:
        """The training values since the last look. Those with fewer trials than before are passed over."""
        updates, self._read = policies.read_training(self._folder.parent, self._read)
        for trials, values in updates:
            if trials >= self._trained:
                self._trained = trials
                for name, value in values.items():
                    writer.add_scalar(f"training/{name}", value, trials)
