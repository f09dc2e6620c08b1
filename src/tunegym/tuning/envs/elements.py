"""Elements of an action space as native values: what the codec does, for the usual case and in a third of the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.tuning.codec import ActionCodec
from tunegym.tuning.model.space import Choice, Knob, Space
from tunegym.tuning.model.values import Scalar

_Read = Callable[[Any], Scalar | None]


class Elements:
    """Reads what ``action_space`` itself would make. Anything else is the codec's, which also says what is wrong."""

    def __init__(self, space: Space, codec: ActionCodec) -> None:
        self._codec = codec
        self._readers = {name: _reader(knob, codec.action_space[name]) for name, knob in space.knobs.items()}
        self._names = self._readers.keys()

    def decode(self, encoded: Mapping[str, Any]) -> dict[str, Scalar]:
        """Native values for an element; raises ``ActionError``."""
        if isinstance(encoded, dict) and encoded.keys() == self._names:
            action: dict[str, Scalar] = {}
            for name, read in self._readers.items():
                value = read(encoded[name])
                if value is None:
                    break
                action[name] = value
            else:
                return action
        return self._codec.decode(encoded)


def _reader(knob: Knob, space: spaces.Space[Any]) -> _Read:
    if isinstance(knob, Choice):
        values, size = knob.values, knob.size

        def candidate(index: Any) -> Scalar | None:
            return values[index] if type(index) is np.int64 and 0 <= index < size else None

        return candidate
    dtype, snap = space.dtype, knob.snap

    def within(array: Any) -> Scalar | None:
        if type(array) is not np.ndarray or array.dtype != dtype or array.size != 1:
            return None
        number = array.item()
        return snap(number) if math.isfinite(number) else None

    return within
