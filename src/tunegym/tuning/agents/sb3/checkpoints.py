"""Files of a policy agent beside the journal: checkpoints, the model, the policy as a table, training curves.

A checkpoint holds tensors and numbers, nothing that could run. A file that can't be written is a warning: trials come
first.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tunegym.core.files import write_atomic
from tunegym.tuning.agents import policies

FILE = "checkpoint.pt"
MODEL = "model.zip"
FORMAT = 1
LONGEST_REASON = 240

logger = logging.getLogger(__name__)


class CheckpointError(Exception):
    """A checkpoint that can't be used; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a policy.

    Attributes:
        agent: the agent's name.
        closed: number of closed trials of the journal it had seen.
        actions: kind of its action space.
        state: its parameters.
    """

    agent: str
    closed: int
    actions: str
    state: dict[str, Any]


class Restorable(Protocol):
    """A learner that can be brought to a checkpoint's state."""

    def restore(self, state: dict[str, Any]) -> None:
        """Raises any exception if the state doesn't fit."""
        ...


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the last checkpoint atomically. Raises ``OSError``."""
    import torch

    content = io.BytesIO()
    torch.save({"format": FORMAT, **vars(checkpoint)}, content)
    _write(folder / policies.FOLDER / FILE, content)


def load(folder: Path) -> Checkpoint | None:
    """The last checkpoint; None if there is none. Raises ``CheckpointError`` if it can't be read."""
    import torch

    place = folder / policies.FOLDER / FILE
    if not place.exists():
        return None
    try:
        document = torch.load(place, map_location="cpu", weights_only=True)
        if document["format"] != FORMAT:
            raise CheckpointError(f"{place} has format {document['format']!r}, and only {FORMAT} is known here")
        return Checkpoint(document["agent"], int(document["closed"]), document["actions"], document["state"])
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{place} can't be read: {error.strerror}") from error
    except Exception as error:  # torch raises almost anything
        raise CheckpointError(f"{place} is damaged") from error


def _write(place: Path, content: io.BytesIO) -> None:
    """From memory, since torch can't tell a full disk from a bug."""
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, content.getbuffer())


class PolicyFiles:
    """The files of one agent in its experiment's results.

    Args:
        folder: the experiment's results.
        agent: the agent's name.
        unit: the word for one of its trials.
    """

    def __init__(self, folder: Path, agent: str, unit: str = "trial") -> None:
        self._folder = folder
        self._agent = agent
        self._unit = unit

    def last(self) -> Checkpoint | None:
        """The agent's last checkpoint; None, with a warning, if it can't be read."""
        try:
            checkpoint = load(self._folder)
        except CheckpointError as error:
            logger.warning("the policy starts from scratch: %s", error)
            return None
        return checkpoint if checkpoint is not None and checkpoint.agent == self._agent else None

    def restore(self, learner: Restorable, checkpoint: Checkpoint) -> bool:
        """Bring a learner to a checkpoint; False, with a warning, if that fails: the learner is then unusable."""
        try:
            learner.restore(checkpoint.state)
        except Exception as error:  # the file can hold anything
            reason = " ".join(str(error).split()) or type(error).__name__
            reason = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."
            logger.warning("the policy starts from scratch: its checkpoint doesn't fit: %s", reason)
            return False
        return True

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the last checkpoint."""
        with _warned("a checkpoint"):
            save(self._folder, checkpoint)

    def save_model(self, model: Any) -> None:
        """The library's own file, which its ``load`` takes."""
        with _warned("the model"):
            content = io.BytesIO()
            model.save(content)
            _write(self._folder / policies.FOLDER / MODEL, content)

    def save_table(self, table: policies.PolicyTable) -> None:
        """The policy's choices."""
        if table.choices:
            with _warned("the policy"):
                policies.save(self._folder, table)

    def log(self, closed: int, values: Mapping[str, float]) -> None:
        """Add a point to the training curves, after so many closed trials."""
        with _warned("the training's curves"):
            policies.add_training(self._folder, closed, values)

    def report_resume(self, closed: int, saved: int, remembered: int | None) -> None:
        """Tell the user of a resumed run what the policy knows.

        Args:
            closed: trials on record.
            saved: trials that the checkpoint has seen; 0 without a checkpoint.
            remembered: trials that can still be learned from; None if only fresh choices can.
        """
        where = f"from its checkpoint after {self._count(saved)}" if saved else "without a checkpoint"
        rest = ""
        if remembered is not None:
            rest = f"; in its replay buffer: {self._count(remembered)} of the record"
        elif closed > saved:
            later = self._count(closed - saved, " later" if saved else "")
            rest = f"; {later} on record can't teach it anything, as it learns from fresh choices only"
        logger.info("%s continues %s%s", self._agent, where, rest)

    def _count(self, count: int, more: str = "") -> str:
        return f"{count}{more} {self._unit}{'' if count == 1 else 's'}"


@contextlib.contextmanager
def _warned(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.warning("%s could not be written: %s", what, error.strerror or error)
