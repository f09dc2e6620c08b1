"""Counts of what filters keep and drop, so that one can see whether the drops bias what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Tally:
    """Some samples, by age and by length.

    Attributes:
        samples: how many.
        ages: how many of each age (current version - version of the sample); None for an age that isn't known.
        lengths: how many by length, in powers of two: at ``n`` those of ``n`` to ``2 * n - 1`` tokens, at 0 the empty.
        measured: how many have a length.
        tokens: the sum of these lengths.
    """

    samples: int = 0
    ages: Counter[int | None] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    measured: int = 0
    tokens: int = 0

    def add(self, ages: Sequence[int | None], lengths: Sequence[int] | None) -> None:
        """Count samples of these ages and lengths."""
        self.samples += len(ages)
        self.ages.update(ages)
        if lengths is not None:
            self.lengths.update(1 << length.bit_length() >> 1 for length in map(int, lengths))
            self.measured += len(lengths)
            self.tokens += int(sum(lengths))

    def merge(self, other: Tally) -> None:
        """Count what another one has counted, too."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @property
    def mean_length(self) -> float | None:
        """Tokens of a sample on the average; None if there is none with a length."""
        return self.tokens / self.measured if self.measured else None

    @property
    def mean_age(self) -> float | None:
        """The average of the ages that are known."""
        known = {age: count for age, count in self.ages.items() if age is not None}
        return sum(age * count for age, count in known.items()) / sum(known.values()) if known else None

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "samples": self.samples,
            "mean_age": self.mean_age,
            "mean_length": self.mean_length,
            "ages": {"unknown" if age is None else str(age): self.ages[age] for age in _ordered(self.ages)},
            "lengths": {str(low): self.lengths[low] for low in sorted(self.lengths)},
        }


@dataclass
class DropCounts:
    """What filters kept, and what they dropped for which reason. Filled by the filters that are given it.

    Several can be put together by ``merge`` or ``+``; ``str`` is a table to look at. Not locked: one for each thread.

    Attributes:
        kept: what stayed.
        dropped: what went, by reason.
    """

    kept: Tally = field(default_factory=Tally)
    dropped: dict[str, Tally] = field(default_factory=dict)

    def add(
        self, reasons: Sequence[str | None], ages: Sequence[int | None], lengths: Sequence[int] | None = None
    ) -> None:
        """Count samples: why each is dropped (None if it is kept), its age, and its length."""
        for reason in dict.fromkeys(reasons):
            places = [at for at, one in enumerate(reasons) if one == reason]
            tally = self.kept if reason is None else self.dropped.setdefault(reason, Tally())
            tally.add([ages[at] for at in places], None if lengths is None else [lengths[at] for at in places])

    def merge(self, other: DropCounts) -> None:
        """Count what another one has counted, too."""
        self.kept.merge(other.kept)
        for reason, tally in other.dropped.items():
            self.dropped.setdefault(reason, Tally()).merge(tally)

    def __add__(self, other: DropCounts) -> DropCounts:
        both = DropCounts()
        both.merge(self)
        both.merge(other)
        return both

    @property
    def reasons(self) -> dict[str, int]:
        """How many were dropped, by reason."""
        return {reason: tally.samples for reason, tally in self.dropped.items()}

    @property
    def all_dropped(self) -> Tally:
        """What was dropped, for whatever reason."""
        total = Tally()
        for tally in self.dropped.values():
            total.merge(tally)
        return total

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "kept": self.kept.plain(),
            "dropped": {reason: tally.plain() for reason, tally in self.dropped.items()},
        }

    def __str__(self) -> str:
        dropped = self.all_dropped
        rows = [("", "samples", "mean age", "mean length"), _row("kept", self.kept), _row("dropped", dropped)]
        rows += [_row(f"  {reason}", self.dropped[reason]) for reason in sorted(self.dropped)]
        parts = [_aligned(rows)]
        for title, name in (("age", "ages"), ("length from", "lengths")):
            kept, gone = getattr(self.kept, name), getattr(dropped, name)
            keys = _ordered({*kept, *gone})
            if keys:
                shown = [("unknown" if key is None else str(key), str(kept[key]), str(gone[key])) for key in keys]
                parts.append(_aligned([(title, "kept", "dropped"), *shown]))
        return "\n\n".join(parts)


def _ordered(keys: Iterable[int | None]) -> list[int | None]:
    return sorted(keys, key=lambda key: (key is None, key or 0))


def _row(title: str, tally: Tally) -> tuple[str, ...]:
    means = (tally.mean_age, tally.mean_length)
    return title, str(tally.samples), *("-" if mean is None else f"{mean:.1f}" for mean in means)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells))
    return "\n".join(lines)
