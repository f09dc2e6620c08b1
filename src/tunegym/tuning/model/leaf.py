"""The shape of one leaf of a structured observation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ObsLeafDescriptor:
    """What an encoding makes of a value.

    Attributes:
        kind: ``box``, a float32 vector, or ``discrete``, one of the integers from 0.
        dim: a box's length; 1 for a discrete leaf.
        n: how many integers a discrete leaf has; None for a box.
        low: a box's smallest number.
        high: a box's largest number.

    Raises:
        ValueError: these don't go together.
    """

    kind: Literal["box", "discrete"]
    dim: int = 1
    n: int | None = None
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.kind not in ("box", "discrete"):
            raise ValueError(f'kind must be "box" or "discrete", not {self.kind!r}')
        if not _positive(self.dim):
            raise ValueError(f"dim must be an integer of at least 1, not {self.dim!r}")
        if self.kind == "box":
            if self.n is not None:
                raise ValueError(f"a box has a dim and no n, here n={self.n!r}")
            if not (_number(self.low) and _number(self.high) and self.low < self.high):
                raise ValueError(f"low must be below high, here {self.low!r} and {self.high!r}")
            return
        if not _positive(self.n):
            raise ValueError(f"a discrete leaf needs n, an integer of at least 1, not {self.n!r}")
        if self.dim != 1 or (self.low, self.high) != (-math.inf, math.inf):
            raise ValueError("a discrete leaf has an n, and neither dim nor bounds")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
