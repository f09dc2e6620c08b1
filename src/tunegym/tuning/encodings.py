"""Encodings: how an env_param becomes a leaf of the observation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tunegym.core.errors import ObservationError
from tunegym.tuning.model.space import Choice, EnvParam, Knob, ObsLeafDescriptor
from tunegym.tuning.model.values import Scalar


class Encoding(Protocol):
    """Turns a native value into an observation leaf. Built as ``Class(domain)``: a ``Choice`` or a ``Range``."""

    def descriptor(self) -> ObsLeafDescriptor:
        """Return the leaf's shape; always the same."""
        ...

    def encode(self, value: Scalar) -> Any:
        """Return the leaf of ``value``: an integer below ``n``, or a float32 array of length ``dim``. Deterministic."""
        ...


class _OfCandidates:
    """Encodes the position of a candidate in its list."""

    def __init__(self, domain: Knob) -> None:
        if not isinstance(domain, Choice):
            raise ObservationError("this encoding needs a list of candidates")
        self._domain = domain

    def _position(self, value: Scalar) -> int:
        index = self._domain.index(value)
        if index is None:
            raise ValueError(f"{value!r} is not one of {self._domain.describe()}")
        return index


class Categorical(_OfCandidates):
    """The candidate's position: ``Discrete(n)``."""

    def descriptor(self) -> ObsLeafDescriptor:
        """As many integers as there are candidates."""
        return ObsLeafDescriptor("discrete", n=self._domain.size)

    def encode(self, value: Scalar) -> Any:
        """The position of ``value``."""
        return np.int64(self._position(value))


class OneHot(_OfCandidates):
    """One slot per candidate: ``Box(n)``."""

    def descriptor(self) -> ObsLeafDescriptor:
        """As many slots as there are candidates."""
        return _unit_box(self._domain.size)

    def encode(self, value: Scalar) -> Any:
        """1 in the candidate's slot, 0 elsewhere."""
        slots = np.zeros(self._domain.size, dtype=np.float32)
        slots[self._position(value)] = 1.0
        return slots


class Ordinal(_OfCandidates):
    """The candidate's position scaled to 0..1: ``Box(1)``."""

    def descriptor(self) -> ObsLeafDescriptor:
        """One number from 0 to 1."""
        return _unit_box(1)

    def encode(self, value: Scalar) -> Any:
        """First candidate 0, last candidate 1."""
        return np.array([self._position(value) / max(self._domain.size - 1, 1)], dtype=np.float32)


class MinMax:
    """The number itself scaled to 0..1: ``Box(1)``."""

    def __init__(self, domain: Knob) -> None:
        numbers = _numbers(domain)
        self._low, self._high = min(numbers), max(numbers)

    def descriptor(self) -> ObsLeafDescriptor:
        """One number from 0 to 1."""
        return _unit_box(1)

    def encode(self, value: Scalar) -> Any:
        """Smallest 0, largest 1."""
        # Halved, because the width itself may be too large for a float.
        width = self._high / 2 - self._low / 2 or 1.0
        return np.array([(float(value) / 2 - self._low / 2) / width], dtype=np.float32)


class Log:
    """Whether the number is non-zero, and its logarithm scaled to 0..1: ``Box(2)``."""

    def __init__(self, domain: Knob) -> None:
        numbers = _numbers(domain)
        positive = [number for number in numbers if number > 0.0]
        if not positive or min(numbers) < 0.0:
            raise ObservationError("log needs numbers of at least 0, and one above")
        # A range that starts at 0 has no smallest positive number: twelve decades below its top will do.
        low = min(positive) if len(positive) == len(numbers) or len(positive) > 1 else positive[0] * 1e-12
        self._low, self._high = math.log(low), math.log(max(positive))

    def descriptor(self) -> ObsLeafDescriptor:
        """Two numbers from 0 to 1."""
        return _unit_box(2)

    def encode(self, value: Scalar) -> Any:
        """(0, 0) for zero, else (1, scaled logarithm)."""
        number = float(value)
        if number <= 0.0:
            return np.zeros(2, dtype=np.float32)
        width = self._high - self._low or 1.0
        scaled = min(max((math.log(number) - self._low) / width, 0.0), 1.0)
        return np.array([1.0, scaled], dtype=np.float32)


ENCODINGS: dict[str, type[Any]] = {
    "categorical": Categorical,
    "onehot": OneHot,
    "ordinal": Ordinal,
    "minmax": MinMax,
    "log": Log,
}


def encoding_of(param: EnvParam, find: Callable[[str], Callable[[Knob], Encoding]] = ENCODINGS.__getitem__) -> Encoding:
    """Return an env_param's encoding; by default ``categorical`` for lists, ``minmax`` for ranges.

    ``find`` returns an encoding by name.
    """
    default = "categorical" if isinstance(param.domain, Choice) else "minmax"
    return find(param.encoding or default)(param.domain)


def _numbers(domain: Knob) -> list[float]:
    numbers = domain.values if isinstance(domain, Choice) else (domain.low, domain.high)
    if any(isinstance(number, str | bool) for number in numbers):
        raise ObservationError("this encoding needs numbers")
    return [float(number) for number in numbers]


def _unit_box(dim: int) -> ObsLeafDescriptor:
    return ObsLeafDescriptor("box", dim, low=0.0, high=1.0)
