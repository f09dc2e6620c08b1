"""What is known of a live system's episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

EpisodeEnd: TypeAlias = Literal["terminated", "truncated", "reset", "cut"]
"""How an episode ended: by the server's word, by a reset before that, or with the run."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode that is over.

    Attributes:
        number: counts all episodes of the experiment, in the order in which they began.
        lane: which server.
        first: the number of its first step.
        last: the number of its last step; other lanes have numbers in between.
        length: how many steps it had.
        total: the sum of its rewards.
        end: how it ended.
        context: the context of its first step.
    """

    number: int
    lane: int
    first: int
    last: int
    length: int
    total: float
    end: EpisodeEnd
    context: Mapping[str, Any]
