"""Files of a policy agent beside the journal: checkpoints, the model, the policy as a table, training curves.

A checkpoint holds tensors and numbers, nothing that could run. A file that can't be written is a warning: trials come
first.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from tunegym.core.files import write_atomic
from tunegym.tuning.agents import policies
from tunegym.tuning.model.values import counted

FILE = "checkpoint.pt"
FORMAT = 1
LONGEST_REASON = 240

logger = logging.getLogger(__name__)

LearnerT = TypeVar("LearnerT")


class PolicyFiles:
    """The files of one agent in its experiment's results; ``unit`` is the word for one of its trials."""

    def __init__(self, folder: Path, agent: str, unit: str = "trial") -> None:
        self._results = folder
        self._folder = folder / policies.FOLDER
        self._agent = agent
        self._unit = unit

    def restored(
        self, build: Callable[[str | None], LearnerT], restore: Callable[[LearnerT, dict[str, Any]], None]
    ) -> tuple[LearnerT, int]:
        """A learner, at the last checkpoint if there is one, and how many closed trials that has seen, otherwise 0.

        ``build`` makes one for the checkpoint's kind of action space; ``restore`` raises if the state doesn't fit.
        """
        checkpoint = self._last()
        kind = None if checkpoint is None else checkpoint["actions"]
        learner = build(kind)
        if checkpoint is None:
            return learner, 0
        try:
            restore(learner, checkpoint["state"])
            return learner, int(checkpoint["closed"])
        except Exception as error:  # the file can hold anything
            reason = " ".join(str(error).split()) or type(error).__name__
            reason = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."
            logger.warning("the policy starts from scratch: its checkpoint doesn't fit: %s", reason)
            return build(kind), 0  # the other one may be restored in part

    def _last(self) -> dict[str, Any] | None:
        """The agent's last checkpoint; None, with a warning, if it can't be read."""
        place = self._folder / FILE
        try:
            found = torch.load(place, map_location="cpu", weights_only=True)
            if found["format"] == FORMAT:
                kept = {key: found[key] for key in ("closed", "actions", "state")}
                return kept if found["agent"] == self._agent else None
            why = f"{place} has format {found['format']!r}, and only {FORMAT} is known here"
        except FileNotFoundError:
            return None
        except OSError as error:
            why = f"{place} can't be read: {error.strerror}"
        except Exception:  # torch raises almost anything
            why = f"{place} is damaged"
        logger.warning("the policy starts from scratch: %s", why)
        return None

    def save(self, actions: str, state: Mapping[str, Any], closed: int) -> bool:
        """Replace the last checkpoint, after so many closed trials; ``actions`` is the kind of the action space.

        Returns whether it is there.
        """
        document = {"format": FORMAT, "agent": self._agent, "closed": closed, "actions": actions, "state": state}
        return self._write(FILE, "a checkpoint", lambda content: torch.save(document, content))

    def save_model(self, write: Callable[[io.BytesIO], None]) -> None:
        """The library's own file, which ``write`` fills."""
        self._write(policies.MODEL, "the model", write)

    def save_folder(self, write: Callable[[Path], None], name: str) -> None:
        """The library's own files, which ``write`` puts into a folder."""
        with _warned("the model"):
            write(self._folder / name)

    def _write(self, name: str, what: str, write: Callable[[io.BytesIO], None]) -> bool:
        """From memory, since torch can't tell a full disk from a bug; whether it is on the disk."""
        with _warned(what):
            content = io.BytesIO()
            write(content)
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / name, content.getbuffer())
            return True
        return False

    def save_table(self, table: policies.PolicyTable) -> None:
        """The policy's choices."""
        if table.choices:
            with _warned("the policy"):
                policies.save(self._results, table)

    def log(self, closed: int, values: Mapping[str, float]) -> None:
        """Add a point to the training curves, after so many closed trials."""
        with _warned("the training's curves"):
            policies.add_training(self._results, closed, values)

    def report_resume(self, closed: int, saved: int, remembered: int | None) -> None:
        """Tell the user of a resumed run what the policy knows.

        ``saved`` of the ``closed`` trials are in its checkpoint, and ``remembered`` can still be learned from; None if
        only fresh choices can.
        """
        unit = self._unit
        where = f"from its checkpoint after {counted(saved, unit)}" if saved else "without a checkpoint"
        rest = ""
        if remembered is not None:
            rest = f"; in its replay buffer: {counted(remembered, unit)} of the record"
        elif closed > saved:
            later = counted(closed - saved, f"later {unit}" if saved else unit)
            rest = f"; {later} on record are not in it: it learns from fresh choices, or rollouts in a data plane"
        logger.info("%s continues %s%s", self._agent, where, rest)


@contextlib.contextmanager
def _warned(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.warning("%s could not be written: %s", what, error.strerror or error)
