"""Encodes native actions as elements of Gymnasium spaces, and decodes them.

A list is a ``Discrete`` over its candidates' positions, a range is a ``Box`` of one float64 in native units
(int64 where it holds integers that no float64 can), so that every value survives encoding and decoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import ActionError
from tunegym.tuning.model.space import Choice, Range, Space
from tunegym.tuning.model.values import Action, Scalar

EXACT = 2**53
"""A float64 holds every integer up to this one."""

_NUMPY = (np.ndarray, np.generic)


class ActionCodec:
    """Encodes and decodes the actions of one space. ``decode(encode(a)) == a`` once floats have snapped."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.action_space = spaces.Dict(
            {
                name: spaces.Discrete(knob.size) if isinstance(knob, Choice) else _box(knob)
                for name, knob in space.knobs.items()
            }
        )

    def decode(self, encoded: Mapping[str, Any]) -> dict[str, Scalar]:
        """Return the native values of an element of ``action_space``. Integer knobs round and clamp.

        Raises:
            ActionError: a missing or an extra key, an index out of range, a value that is no number.
        """
        self._space.check_keys(encoded)
        action: dict[str, Scalar] = {}
        for name, knob in self._space.knobs.items():
            value = _number(name, encoded[name])
            if isinstance(knob, Range):
                action[name] = knob.snap(value)
            else:
                action[name] = knob.at(_index(name, value, knob))
        return action

    def encode(self, action: Action) -> dict[str, Any]:
        """Return the element of ``action_space`` for native values; raises ``ActionError`` if they don't fit."""
        accepted = self._space.accept(action)
        encoded: dict[str, Any] = {}
        for name, knob in self._space.knobs.items():
            value = accepted[name]
            if isinstance(knob, Range):
                encoded[name] = np.array([value], dtype=_dtype(knob))
            else:
                encoded[name] = np.int64(knob.index(value) or 0)
        return encoded


def _dtype(knob: Range) -> type[np.float64] | type[np.int64]:
    exact = knob.dtype == "float" or max(abs(knob.low), abs(knob.high)) <= EXACT
    return np.float64 if exact else np.int64


def _box(knob: Range) -> spaces.Box:
    dtype = _dtype(knob)
    low, high = (knob.low, knob.high) if dtype is np.int64 else (float(knob.low), float(knob.high))
    return spaces.Box(low, high, shape=(1,), dtype=dtype)


def _number(name: str, value: Any) -> float:
    """Return the number of a scalar or an array of one element."""
    array = as_array(value)
    if array.size != 1 or array.dtype.kind not in "iuf":
        raise ActionError(f"{name}: {value!r} is not one number")
    number = array.item()
    if not math.isfinite(number):
        raise ActionError(f"{name}: {number} is not finite")
    return number


def as_array(value: Any) -> Any:
    """Return ``value`` as an array or a scalar of numpy; nested lists of different lengths as an empty array."""
    try:
        return value if isinstance(value, _NUMPY) else np.asarray(value)
    except ValueError:
        return np.empty(0, dtype=object)


def _index(name: str, value: float, knob: Choice) -> int:
    if value != int(value) or not 0 <= value < knob.size:
        raise ActionError(f"{name}: index {value} is out of range", hint=f"0 to {knob.size - 1}")
    return int(value)
