"""Other spaces for the same actions: of knobs, for algorithms that take no ``Dict``, and of live systems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import ActionError
from tunegym.tuning.codec import as_array
from tunegym.tuning.model.space import Choice, Knob, Range, Space
from tunegym.tuning.model.values import Action, Scalar, counted
from tunegym.tuning.spaces import bounds

BINS = 10
"""The default number of bins of a range."""
LIMIT = 4096
"""The largest number of enumerated actions."""


class ActionView(Protocol):
    """Native actions as elements of another space. ``decode(encode(a))`` is the nearest action that it can say."""

    space: spaces.Space[Any]

    def decode(self, chosen: Any) -> dict[str, Scalar]:
        """Native values for an element of ``space``; raises ``ActionError`` for anything else."""
        ...

    def encode(self, action: Action) -> Any:
        """The element of ``space`` for native values; raises ``ActionError`` if they don't fit the knobs."""
        ...


def binned(knob: Knob, bins: int = BINS) -> tuple[Scalar, ...]:
    """The values to choose from: every candidate of a list, up to ``bins`` of a range, both ends among them.

    A range's are increasing and evenly spread, on the log scale where it has one; with fewer values it has them all.
    """
    if isinstance(knob, Choice):
        return knob.values
    count = knob.size
    if count is None and knob.dtype == "int":
        count = round(knob.high - knob.low) + 1
    if count is not None and count <= bins:
        step = knob.step or 1
        return tuple(knob.snap(knob.low + index * step) for index in range(count))
    return tuple(sorted({knob.at_position(index / (bins - 1)) for index in range(bins)}))


class _Grid:
    """The knobs' values to choose from."""

    def __init__(self, space: Space, bins: int) -> None:
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 2:
            raise ActionError(f"bins must be an integer of at least 2, not {bins!r}")
        self._space = space
        self.values = {name: binned(knob, bins) for name, knob in space.knobs.items()}
        self.sizes = [len(values) for values in self.values.values()]

    def at(self, indices: Sequence[int]) -> dict[str, Scalar]:
        return {name: values[index] for (name, values), index in zip(self.values.items(), indices, strict=True)}

    def indices(self, action: Action) -> list[int]:
        accepted = self._space.accept(action)
        found: list[int] = []
        for name, values in self.values.items():
            knob = self._space.knobs[name]
            if isinstance(knob, Range):
                found.append(_nearest(values, accepted[name], knob.log))
            else:
                found.append(knob.index(accepted[name]) or 0)
        return found


class MultiDiscreteView:
    """One index per knob, ranges binned: ``MultiDiscrete``."""

    def __init__(self, space: Space, bins: int = BINS) -> None:
        self._grid = _Grid(space, bins)
        self.space: spaces.Space[Any] = spaces.MultiDiscrete(self._grid.sizes)

    def decode(self, chosen: Any) -> dict[str, Scalar]:
        """The values at these indices."""
        sizes = self._grid.sizes
        indices = _integers(chosen, len(sizes))
        for name, index, size in zip(self._grid.values, indices, sizes, strict=True):
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
        self.size = math.prod(self._grid.sizes)
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
        return self._grid.at([int(index) for index in np.unravel_index(number, self._grid.sizes)])

    def encode(self, action: Action) -> Any:
        """The number of the nearest combination."""
        return np.int64(np.ravel_multi_index(self._grid.indices(action), self._grid.sizes))


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
        array = as_array(chosen)
        numbers = [float(number) for number in array.reshape(-1)] if array.dtype.kind in "iuf" else []
        if len(numbers) != len(self.ranges) or not all(map(math.isfinite, numbers)):
            raise ActionError(f"{chosen!r} is not {counted(len(self.ranges), 'finite number')}")
        return {
            name: knob.at_position((number + 1.0) / 2.0)
            for (name, knob), number in zip(self.ranges.items(), numbers, strict=True)
        }

    def encode(self, action: Action) -> Any:
        """The places of these values."""
        accepted: Any = self._space.accept(action)
        places = [2.0 * knob.position(accepted[name]) - 1.0 for name, knob in self.ranges.items()]
        return np.array(places, dtype=np.float32)


def _nearest(values: Sequence[Any], value: Any, log: bool) -> int:
    """The position of the bin that ``value`` falls into; of two as near the lower one's."""
    away = [max(value / one, one / value) if log else abs(value - one) for one in values]
    return away.index(min(away))


def _integers(chosen: Any, count: int) -> list[int]:
    array = as_array(chosen)
    if array.size != count or (array.dtype.kind not in "iu" and count):
        raise ActionError(f"{chosen!r} is not {counted(count, 'integer')}")
    return [int(number) for number in array.reshape(-1)]


# a live system's own actions ---------------------------------------------------------------------------------------


def choice_space(space: Any) -> spaces.Space[Any]:
    """What an algorithm chooses from for a server's action space: it counts from 0, or has numbers from -1 to 1."""
    match space:
        case spaces.Dict():
            return spaces.Dict({key: choice_space(part) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return spaces.Tuple([choice_space(part) for part in space.spaces])
        case spaces.Box():
            return spaces.Box(-1.0, 1.0, (int(np.prod(space.shape)),), np.float32)
        case spaces.Discrete():
            return spaces.Discrete(int(space.n))
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec.reshape(-1))
        case _:  # MultiBinary
            return spaces.MultiDiscrete([2] * int(np.prod(space.shape)))


def server_action(space: Any, chosen: Any) -> Any:
    """The element of the server's action space for such a choice."""
    if isinstance(space, spaces.Dict):
        return {key: server_action(part, chosen[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(server_action(part, one) for part, one in zip(space.spaces, chosen, strict=True))
    low, high = bounds(space)
    value = np.reshape(chosen, space.shape)
    if not isinstance(space, spaces.Box):
        return (value + low).astype(space.dtype)[()]
    lowest, highest = low.astype(np.float64), high.astype(np.float64)
    value = lowest + (np.clip(value, -1.0, 1.0) + 1.0) / 2.0 * (highest - lowest)
    value = np.rint(value) if np.dtype(space.dtype).kind in "iu" else value
    return np.clip(value.astype(space.dtype), low, high)  # rounding may lead out of bounds
