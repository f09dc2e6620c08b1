"""What an experiment would do, and how far it is: values that the command line shows for every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment would do, before anything runs: in words, and as plain data for ``--json``."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a session is.

    Attributes:
        done: trials closed, or steps taken, those of earlier sessions included.
        unit: ``step`` where they are counted by the second; empty for trials, which are few.
        measured: how many of them have a measurement.
        elapsed_s: time spent on them, earlier sessions included.
        shown: what a progress line shows besides, by label, in this order.
    """

    done: int
    unit: str
    measured: int
    elapsed_s: float
    shown: Mapping[str, str] = field(default_factory=dict)
