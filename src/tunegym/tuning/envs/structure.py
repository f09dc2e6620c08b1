"""Structured observations: what an environment declares, as spaces, and held to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import ObservationError
from tunegym.tuning.model.leaf import ObsLeafDescriptor
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.ports import Structured


def leaf_space(leaf: ObsLeafDescriptor) -> spaces.Box | spaces.Discrete:
    """The space that a descriptor describes."""
    if leaf.kind == "discrete":
        assert leaf.n is not None
        return spaces.Discrete(leaf.n)
    return spaces.Box(leaf.low, leaf.high, shape=(leaf.dim,), dtype=np.float32)


class Structure:
    """The leaves of an environment. Every value is checked: an agent must not learn from a shape that shifts.

    Raises:
        ObservationError: a descriptor that is none.
    """

    def __init__(self, env: Structured) -> None:
        self._env = env
        self.leaves = dict(env.structured_observation_descriptors())
        for name, leaf in self.leaves.items():
            if not isinstance(leaf, ObsLeafDescriptor):
                raise ObservationError(f"leaf {name}: {leaf!r} is no ObsLeafDescriptor")
        self._names = self.leaves.keys()

    @property
    def space(self) -> spaces.Dict:
        """One entry per leaf, in the environment's order."""
        return spaces.Dict({name: leaf_space(leaf) for name, leaf in self.leaves.items()})

    def encode(self, observation: Observation) -> dict[str, Any]:
        """An element of ``space``.

        Raises:
            ObservationError: other leaves than declared, which it lists, or one of another shape.
        """
        encoded = self._env.encode_observation(observation)
        if encoded.keys() != self._names:
            raise ObservationError(_difference(self._names, encoded))
        return {name: _checked(name, leaf, encoded[name]) for name, leaf in self.leaves.items()}


def structure_of(env: object) -> Structure | None:
    """The structure that ``env`` offers; None if it offers none, or one without leaves."""
    structure = Structure(env) if isinstance(env, Structured) else None
    return structure if structure is not None and structure.leaves else None


def _difference(declared: Any, encoded: Mapping[str, Any]) -> str:
    missing = [name for name in declared if name not in encoded]
    extra = [str(name) for name in encoded if name not in declared]
    return (
        "encode_observation() gives other leaves than structured_observation_descriptors() declares"
        f" (missing: {', '.join(missing) or 'none'}; extra: {', '.join(extra) or 'none'})"
    )


def _checked(name: str, leaf: ObsLeafDescriptor, value: Any) -> Any:
    if leaf.kind == "discrete":
        return _index(name, leaf, value)
    try:
        array = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise ObservationError(f"leaf {name}: {value!r} is no vector of numbers") from None
    if array.shape != (leaf.dim,):
        raise ObservationError(f"leaf {name}: the encoding gives shape {array.shape}, it declares ({leaf.dim},)")
    # In Python, because vectors are short. A NaN is not within anything.
    if not all(leaf.low <= number <= leaf.high for number in array.tolist()):
        raise ObservationError(f"leaf {name}: {array.tolist()} is not within {leaf.low:g} to {leaf.high:g}")
    return array


def _index(name: str, leaf: ObsLeafDescriptor, value: Any) -> np.int64:
    assert leaf.n is not None
    try:
        index = np.int64(value)
    except (TypeError, ValueError, OverflowError):
        raise ObservationError(f"leaf {name}: {value!r} is no integer") from None
    if index != value or not 0 <= index < leaf.n:
        raise ObservationError(f"leaf {name}: {value!r} is not one of 0 to {leaf.n - 1}")
    return index
