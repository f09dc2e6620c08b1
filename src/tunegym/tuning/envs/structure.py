"""Structured observations: the context of a trial as leaves, the spaces they declare, and the check of every value.

``ContextLeaves`` encodes an experiment's env_params. ``Structure`` holds any environment to the leaves it declares.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import ObservationError
from tunegym.tuning.model.space import Choice, EnvParams, Knob, ObsLeafDescriptor
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Context, Scalar
from tunegym.tuning.ports import Structured

if TYPE_CHECKING:
    from tunegym.tuning.encodings import Encoding

FindEncoding: TypeAlias = "Callable[[str], Callable[[Knob], Encoding]]"

_LARGEST = float(np.finfo(np.float32).max)


class CheckedLeaves(dict[str, Any]):
    """Leaves that fit their descriptors; arrays in it may be read-only."""


class ContextLeaves:
    """The encodings of an experiment's env_params; built when they are first asked for."""

    def __init__(self, params: EnvParams, find: FindEncoding | None = None) -> None:
        self._params = params
        self._find = find

    @cached_property
    def _encodings(self) -> dict[str, Encoding]:
        # Most agents act on native values: they need no encoding.
        from tunegym.tuning.encodings import ENCODINGS, encoding_of

        find = self._find or ENCODINGS.__getitem__
        return {name: encoding_of(param, find) for name, param in self._params.params.items()}

    def descriptors(self) -> dict[str, ObsLeafDescriptor]:
        """The leaves by the address of their env_param."""
        return {name: encoding.descriptor() for name, encoding in self._encodings.items()}

    def encode(self, context: Context) -> CheckedLeaves:
        """A value for each leaf. Raises ``ObservationError`` if an encoding gives another than it declares."""
        return CheckedLeaves([(name, encode(context[name])) for name, encode in self._encoders.items()])

    @cached_property
    def _encoders(self) -> dict[str, Callable[[Scalar], Any]]:
        encoders: dict[str, Callable[[Scalar], Any]] = {}
        for name, param in self._params.params.items():
            encode = _checked(self._encodings[name], _check(name, self._encodings[name].descriptor()))
            encoders[name] = _prepared(encode, param.domain) if isinstance(param.domain, Choice) else encode
        return encoders


def _checked(encoding: Encoding, check: Callable[[Any], Any]) -> Callable[[Scalar], Any]:
    return lambda value: check(encoding.encode(value))


def _prepared(encode: Callable[[Scalar], Any], domain: Choice) -> Callable[[Scalar], Any]:
    """Candidates are encoded once. Equal-looking ones (1, 1.0, True) stay apart."""
    leaves = {(type(value), value): encode(value) for value in domain.values}
    for leaf in leaves.values():
        if isinstance(leaf, np.ndarray):
            leaf.setflags(write=False)
    return lambda value: leaves[type(value), value]


def leaf_space(leaf: ObsLeafDescriptor) -> spaces.Box | spaces.Discrete:
    """The space that a descriptor describes."""
    if leaf.kind == "discrete":
        assert leaf.n is not None
        return spaces.Discrete(leaf.n)
    low, high = _bounds(leaf)
    return spaces.Box(low, high, shape=(leaf.dim,), dtype=np.float32)


class Structure:
    """The leaves of an environment. Every value is checked: an agent must not learn from a shape that shifts.

    Raises:
        ObservationError: a descriptor that is none.
    """

    def __init__(self, env: Structured) -> None:
        self._env = env
        declared = env.structured_observation_descriptors()
        if not isinstance(declared, Mapping):
            raise ObservationError(f"structured_observation_descriptors() gives {declared!r}, which is no mapping")
        for name, leaf in declared.items():
            if not isinstance(name, str) or not isinstance(leaf, ObsLeafDescriptor):
                raise ObservationError(f"leaf {name}: {leaf!r} is no ObsLeafDescriptor under a name")
        self.leaves = dict(declared)
        self._checks = {name: _check(name, leaf) for name, leaf in self.leaves.items()}

    @property
    def space(self) -> spaces.Dict:
        """One entry per leaf, by name."""
        return spaces.Dict({name: leaf_space(leaf) for name, leaf in self.leaves.items()})

    def encode(self, observation: Observation) -> Mapping[str, Any]:
        """An element of ``space``; arrays in it may be read-only.

        Raises:
            ObservationError: other leaves than declared, which it lists, or one of another shape.
        """
        encoded = self._env.encode_observation(observation)
        if type(encoded) is CheckedLeaves:
            return encoded
        if not isinstance(encoded, Mapping):
            raise ObservationError(f"encode_observation() gives {encoded!r}, which is no mapping")
        if encoded.keys() != self._checks.keys():
            missing = ", ".join(name for name in self._checks if name not in encoded) or "none"
            extra = ", ".join(str(name) for name in encoded if name not in self._checks) or "none"
            what = "encode_observation() gives other leaves than structured_observation_descriptors() declares"
            raise ObservationError(f"{what} (missing: {missing}; extra: {extra})")
        return {name: check(encoded[name]) for name, check in self._checks.items()}


def structure_of(env: object) -> Structure | None:
    """The structure that ``env`` offers; None if it offers none, or one without leaves."""
    structure = Structure(env) if isinstance(env, Structured) else None
    return structure if structure is not None and structure.leaves else None


# the check of one leaf --------------------------------------------------------------------------------


def _bounds(leaf: ObsLeafDescriptor) -> tuple[float, float]:
    """As a float32 holds them, since that is what they are compared with."""
    with np.errstate(over="ignore"):
        return float(np.float32(leaf.low)), float(np.float32(leaf.high))


def _check(name: str, leaf: ObsLeafDescriptor) -> Callable[[Any], Any]:
    """A function that copies a leaf's value, or raises ``ObservationError``."""
    low, high = _bounds(leaf)
    low, high = max(low, -_LARGEST), min(high, _LARGEST)

    def index(value: Any) -> np.int64:
        assert leaf.n is not None
        try:
            found = operator.index(value)
        except TypeError:
            raise ObservationError(f"leaf {name}: {value!r} is no integer") from None
        if isinstance(value, bool) or not 0 <= found < leaf.n:
            raise ObservationError(f"leaf {name}: {value!r} is not one of 0 to {leaf.n - 1}")
        return np.int64(found)

    def vector(value: Any) -> np.ndarray:
        try:
            array = np.array(value, dtype=np.float32)  # a copy: an environment may use its own again
        except (TypeError, ValueError):
            raise ObservationError(f"leaf {name}: {value!r} is no vector of numbers") from None
        if array.shape != (leaf.dim,):
            raise ObservationError(f"leaf {name}: the encoding gives shape {array.shape}, it declares ({leaf.dim},)")
        for number in array.tolist():  # in Python, because vectors are short; a NaN is not within anything
            if not low <= number <= high:
                raise ObservationError(f"leaf {name}: {array.tolist()} is not within {leaf.low:g} to {leaf.high:g}")
        return array

    return index if leaf.kind == "discrete" else vector
