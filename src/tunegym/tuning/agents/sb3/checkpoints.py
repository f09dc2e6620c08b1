"""The state of a policy on the disk: tensors and numbers, nothing that could run."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunegym.core.whole import write_whole
from tunegym.tuning.agents.policies import FOLDER

FILE = "checkpoint.pt"
MODEL = "model.zip"
FORMAT = 1


class CheckpointError(Exception):
    """A checkpoint that can't be used; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """What a policy was.

    Attributes:
        agent: whose it is.
        closed: how many closed trials of the journal it had seen.
        actions: the kind of its action space.
        state: its parameters.
    """

    agent: str
    closed: int
    actions: str
    state: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """In place of the last one; whole or not at all. Raises ``OSError``."""
    document = {
        "format": FORMAT,
        "agent": checkpoint.agent,
        "closed": checkpoint.closed,
        "actions": checkpoint.actions,
        "state": checkpoint.state,
    }
    content = io.BytesIO()
    torch.save(document, content)
    _write(folder / FOLDER / FILE, content)


def save_model(folder: Path, model: Any) -> None:
    """The library's own file, which its ``load`` takes; whole or not at all. Raises ``OSError``."""
    content = io.BytesIO()
    model.save(content)
    _write(folder / FOLDER / MODEL, content)


def _write(place: Path, content: io.BytesIO) -> None:
    """From memory, since torch tells no full disk from a bug."""
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, content.getbuffer())


def load(folder: Path) -> Checkpoint | None:
    """The last one; None if there is none.

    Raises:
        CheckpointError: it can't be read.
    """
    place = folder / FOLDER / FILE
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
    except Exception as error:  # torch raises almost anything, and says a lot about it
        raise CheckpointError(f"{place} is damaged") from error
