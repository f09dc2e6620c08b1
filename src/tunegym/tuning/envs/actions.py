"""Other spaces for the same knobs: what algorithms take that know no ``Dict`` of actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import ActionError
from tunegym.tuning.model.space import Choice, Knob, Range, Space
from tunegym.tuning.model.values import Action, Scalar

BINS = 10
"""How many values of a range there are to choose from, unless somebody says so."""
LIMIT = 4096
"""How many enumerated actions there may be."""


class ActionView(Protocol):
    """Native actions as elements of another space. ``decode(encode(a))`` is the nearest action that it can say."""

    space: spaces.Space[Any]

    def decode(self, chosen: Any) -> dict[str, Scalar]:
        """Native values for an element of ``space``; raises ``ActionError`` for what is none."""
        ...

    def encode(self, action: Action) -> Any:
        """The element of ``space`` for native values; raises ``ActionError`` if they don't fit the knobs."""
        ...


def binned(knob: Knob, bins: int = BINS) -> tuple[Scalar, ...]:
    """The values to choose from: every candidate of a list, up to ``bins`` of a range, both ends among them.

    They are evenly spread, on the log scale where the range has one; a range with fewer values has them all.
    """
    if isinstance(knob, Choice):
        return knob.values
    count = knob.size
    if count is None and knob.dtype == "int":
        count = round(knob.high - knob.low) + 1
    if count is not None and count <= bins:
        step = knob.step or 1
        return tuple(knob.snap(knob.low + index * step) for index in range(count))
    spread = (knob.at_position(index / (bins - 1)) for index in range(bins))
    return tuple(dict.fromkeys(spread))


def _nearest(values: Sequence[Scalar], knob: Range, value: Scalar) -> int:
    """The position of the bin that ``value`` falls into."""
    wanted = knob.position(float(value))
    return min(range(len(values)), key=lambda index: abs(knob.position(float(values[index])) - wanted))


def _checked_bins(bins: int) -> int:
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 2:
        raise ActionError(f"bins must be an integer of at least 2, not {bins!r}")
    return bins


class _Grid:
    """The knobs' values to choose from."""

    def __init__(self, space: Space, bins: int) -> None:
        _checked_bins(bins)
        self._knobs = space
        self.values = {name: binned(knob, bins) for name, knob in space.knobs.items()}

    def at(self, indices: Sequence[int]) -> dict[str, Scalar]:
        return {name: values[index] for (name, values), index in zip(self.values.items(), indices, strict=True)}

    def indices(self, action: Action) -> list[int]:
        accepted = self._knobs.accept(action)
        found: list[int] = []
        for name, values in self.values.items():
            knob = self._knobs.knobs[name]
            if isinstance(knob, Range):
                found.append(_nearest(values, knob, accepted[name]))
            else:
                found.append(knob.index(accepted[name]) or 0)
        return found


class MultiDiscreteView:
    """One index per knob, ranges binned: ``MultiDiscrete``."""

    def __init__(self, space: Space, bins: int = BINS) -> None:
        self._grid = _Grid(space, bins)
        self._sizes = [len(values) for values in self._grid.values.values()]
        self.space: spaces.Space[Any] = spaces.MultiDiscrete(self._sizes)

    def decode(self, chosen: Any) -> dict[str, Scalar]:
        """The values at these indices."""
        indices = _integers(chosen, len(self._sizes))
        for name, index, size in zip(self._grid.values, indices, self._sizes, strict=True):
            if not 0 <= index < size:
                raise ActionError(f"{name}: index {index} is out of range", hint=f"0 to {size - 1}")
        return self._grid.at(indices)

    def encode(self, action: Action) -> Any:
        """The indices of these values; of a range, the nearest bin's."""
        return np.array(self._grid.indices(action), dtype=np.int64)


class DiscreteView:
    """Every combination has a number, ranges binned: ``Discrete``. The last knob turns fastest.

    Raises:
        ActionError: there are more than ``limit``.
    """

    def __init__(self, space: Space, bins: int = BINS, limit: int = LIMIT) -> None:
        self._grid = _Grid(space, bins)
        self._sizes = [len(values) for values in self._grid.values.values()]
        self.size = math.prod(self._sizes)
        if self.size > limit:
            raise ActionError(
                f"{self.size} combinations are more than {limit}",
                hint="give lists fewer candidates or ranges fewer bins, or choose one index per knob (MultiDiscrete)",
            )
        self.space: spaces.Space[Any] = spaces.Discrete(self.size)

    def decode(self, chosen: Any) -> dict[str, Scalar]:
        """The combination with this number."""
        (number,) = _integers(chosen, 1)
        if not 0 <= number < self.size:
            raise ActionError(f"action {number} is out of range", hint=f"0 to {self.size - 1}")
        indices = []
        for size in reversed(self._sizes):
            number, index = divmod(number, size)
            indices.append(index)
        return self._grid.at(indices[::-1])

    def encode(self, action: Action) -> Any:
        """The number of the nearest combination."""
        number = 0
        for index, size in zip(self._grid.indices(action), self._sizes, strict=True):
            number = number * size + index
        return np.int64(number)


class BoxView:
    """One number from -1 to 1 per range, on its log scale where it has one: ``Box``.

    Raises:
        ActionError: a knob is a list: its candidates have no order that a number could follow.
    """

    def __init__(self, space: Space) -> None:
        lists = [name for name, knob in space.knobs.items() if isinstance(knob, Choice)]
        if lists:
            raise ActionError(
                f"a Box holds ranges, and these knobs are lists: {', '.join(lists)}",
                hint="choose one index per knob (MultiDiscrete), or make them ranges",
            )
        self._space = space
        self.ranges = {name: knob for name, knob in space.knobs.items() if isinstance(knob, Range)}
        self.space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, shape=(len(self.ranges),), dtype=np.float32)

    def decode(self, chosen: Any) -> dict[str, Scalar]:
        """The values at these places; outside of -1 to 1 is the end of the range."""
        numbers = np.asarray(chosen, dtype=np.float64).reshape(-1)
        if numbers.shape != (len(self.ranges),) or not np.isfinite(numbers).all():
            raise ActionError(f"{chosen!r} is not {len(self.ranges)} finite numbers")
        places = (numbers + 1.0) / 2.0
        return {name: knob.at_position(place) for (name, knob), place in zip(self.ranges.items(), places, strict=True)}

    def encode(self, action: Action) -> Any:
        """The places of these values."""
        accepted = self._space.accept(action)
        places = [2.0 * knob.position(float(accepted[name])) - 1.0 for name, knob in self.ranges.items()]
        return np.array(places, dtype=np.float32)


def _integers(chosen: Any, count: int) -> list[int]:
    try:
        array = np.asarray(chosen)
    except ValueError:  # nested lists of different lengths
        array = np.empty(0)
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array == np.floor(array)).all()))
    if array.size != count or not whole:
        raise ActionError(f"{chosen!r} is not {count} integer{'' if count == 1 else 's'}")
    return [int(number) for number in array.reshape(-1)]
