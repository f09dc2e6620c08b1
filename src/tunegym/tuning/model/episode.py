"""Episodes of a live system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

EpisodeEnd: TypeAlias = Literal["terminated", "truncated", "reset", "cut"]
"""The server ended it, a reset came before that, or the run ended."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode.

    Attributes:
        number: counts the experiment's episodes in the order in which they began.
        lane: which server.
        first: number of its first step.
        last: number of its last step; other lanes have numbers in between.
        length: number of steps.
        total: sum of its rewards.
        end: how it ended.
        context: of its first step.
    """

    number: int
    lane: int
    first: int
    last: int
    length: int
    total: float
    end: EpisodeEnd
    context: Mapping[str, Any]
