"""The knobs of the service: what they may be, and which of them an action chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

CHOICES: Mapping[str, tuple[int, ...]] = {
    "workers": (1, 2, 4, 8),
    "batch_size": (1, 4, 16),
    "batch_wait_ms": (0, 5, 20),
    "queue_limit": (16, 64, 256),
    "cache_size": (0, 64, 512),
}


@dataclass(frozen=True, slots=True)
class Knobs:
    """One setting of the service; these are the defaults.

    Attributes:
        workers: how many batches are worked on at once.
        batch_size: how many requests a batch has at most.
        batch_wait_ms: how long a free worker waits for a batch to fill up.
        queue_limit: how many requests may wait; further ones are refused with 503.
        cache_size: how many answers are kept; those unused for longest go first.
    """

    workers: int = 2
    batch_size: int = 4
    batch_wait_ms: int = 5
    queue_limit: int = 64
    cache_size: int = 64

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


@dataclass(frozen=True)
class Menu:
    """The knobs that actions choose; all others keep their defaults.

    Attributes:
        names: of these knobs, in the order of ``CHOICES``.
    """

    names: tuple[str, ...]

    @classmethod
    def parse(cls, tune: str) -> Menu:
        """``"all"``, or names with commas between them; raises ``ValueError``."""
        names = tune.split(",") if isinstance(tune, str) else []
        asked = list(CHOICES) if tune == "all" else [name.strip() for name in names if name.strip()]
        unknown = [name for name in asked if name not in CHOICES]
        if unknown or not asked:
            what = f"{unknown[0]!r} is no knob" if unknown else "no knob is named"
            known = ", ".join(CHOICES)
            raise ValueError(f'tune is {tune!r}: {what}; allowed: "all", or some of {known} with commas between them')
        return cls(tuple(name for name in CHOICES if name in asked))

    @property
    def counts(self) -> list[int]:
        """How many values each knob has."""
        return [len(CHOICES[name]) for name in self.names]

    @property
    def combinations(self) -> int:
        """How many settings there are."""
        return prod(self.counts)

    def knobs(self, positions: Any) -> Knobs:
        """The setting with these positions in each knob's values."""
        return Knobs(**{name: CHOICES[name][int(at)] for name, at in zip(self.names, positions, strict=True)})

    def positions(self, knobs: Knobs) -> list[int]:
        """The other way round."""
        return [CHOICES[name].index(getattr(knobs, name)) for name in self.names]

    def unfold(self, index: int) -> list[int]:
        """The positions of a setting by its number; the last knob moves quickest."""
        positions = []
        for count in reversed(self.counts):
            index, at = divmod(index, count)
            positions.append(at)
        return positions[::-1]

    def fold(self, positions: list[int]) -> int:
        """The other way round."""
        index = 0
        for at, count in zip(positions, self.counts, strict=True):
            index = index * count + at
        return index
