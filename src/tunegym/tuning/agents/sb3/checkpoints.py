"""The state of a policy on the disk: tensors and numbers, nothing that could run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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
    place = folder / FOLDER / FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(".new")
    document = {
        "format": FORMAT,
        "agent": checkpoint.agent,
        "closed": checkpoint.closed,
        "actions": checkpoint.actions,
        "state": checkpoint.state,
    }
    try:
        with fresh.open("wb") as file:
            torch.save(document, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # how torch says that the disk is full
        raise OSError(0, str(error).splitlines()[0]) from error
    fresh.replace(place)


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
        return Checkpoint(document["agent"], document["closed"], document["actions"], document["state"])
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file makes torch raise almost anything
        raise CheckpointError(
            f"{place} can't be read: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error
