"""Structured observations: the context of a trial as leaves, the spaces they declare, and the check of every value.

``ContextLeaves`` encodes an experiment's env_params. ``Structure`` holds any environment to the leaves it declares.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
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

    def encode(self, context: Context) -> dict[str, Any]:
        """A value for each leaf. That of a candidate can't be written to, as it is given out again."""
        return {name: encode(context[name]) for name, encode in self._encoders.items()}

    @cached_property
    def _encoders(self) -> dict[str, Callable[[Scalar], Any]]:
        encodings = self._encodings
        return {
            name: _Remembered(encodings[name].encode) if isinstance(param.domain, Choice) else encodings[name].encode
            for name, param in self._params.params.items()
        }


class _Remembered:
    """The leaves of candidates, each encoded once. Equal-looking ones (1, 1.0, True) stay apart."""

    def __init__(self, encode: Callable[[Scalar], Any]) -> None:
        self._encode = encode
        self._leaves: dict[tuple[type, Scalar], Any] = {}

    def __call__(self, value: Scalar) -> Any:
        key = (type(value), value)
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._encode(value)
            if getattr(leaf, "shape", ()):
                leaf = leaf.copy()
                leaf.setflags(write=False)
            self._leaves[key] = leaf
        return leaf


_OFFERED = ("structured_observation_descriptors", "encode_observation")
_LARGEST = float(np.finfo(np.float32).max)
_MOST_PASSED = 1000
"""How many leaves are remembered that need no second look, by name."""


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
        self._names = self.leaves.keys()
        bounds = {name: _bounds(leaf) for name, leaf in self.leaves.items()}
        self._passed: dict[str, dict[int, Any]] = {name: {} for name in self.leaves}
        self._bounds = {name: (max(low, -_LARGEST), min(high, _LARGEST)) for name, (low, high) in bounds.items()}

    @property
    def space(self) -> spaces.Dict:
        """One entry per leaf, by name."""
        return spaces.Dict({name: leaf_space(leaf) for name, leaf in self.leaves.items()})

    def encode(self, observation: Observation) -> dict[str, Any]:
        """An element of ``space``; arrays in it may be read-only, as they may be given out again.

        Raises:
            ObservationError: other leaves than declared, which it lists, or one of another shape.
        """
        encoded = self._env.encode_observation(observation)
        if type(encoded) is not dict and not isinstance(encoded, Mapping):
            raise ObservationError(f"encode_observation() gives {encoded!r}, which is no mapping")
        if encoded.keys() != self._names:
            raise ObservationError(_difference(self._names, encoded))
        element: dict[str, Any] = {}
        for name, passed in self._passed.items():
            value = encoded[name]
            element[name] = value if passed.get(id(value), passed) is value else self._checked(name, value, passed)
        return element

    def _checked(self, name: str, value: Any, passed: dict[int, Any]) -> Any:
        """A copy of the leaf, or the leaf itself if it is read-only."""
        leaf = self.leaves[name]
        checked = _index(name, leaf, value) if leaf.kind == "discrete" else self._vector(name, leaf, value)
        if _constant(value) and len(passed) < _MOST_PASSED:
            passed[id(value)] = value
            return value
        return checked

    def _vector(self, name: str, leaf: ObsLeafDescriptor, value: Any) -> np.ndarray:
        try:
            array = np.array(value, dtype=np.float32)  # a copy: an environment may use its own again
        except (TypeError, ValueError):
            raise ObservationError(f"leaf {name}: {value!r} is no vector of numbers") from None
        if array.shape != (leaf.dim,):
            raise ObservationError(f"leaf {name}: the encoding gives shape {array.shape}, it declares ({leaf.dim},)")
        low, high = self._bounds[name]
        for number in array.tolist():  # in Python, because vectors are short; a NaN is not within anything
            if not low <= number <= high:
                raise ObservationError(f"leaf {name}: {array.tolist()} is not within {leaf.low:g} to {leaf.high:g}")
        return array


def structure_of(env: object) -> Structure | None:
    """The structure that ``env`` offers; None if it offers none, or one without leaves.

    Raises:
        ObservationError: it offers half of one.
    """
    there = [name for name in _OFFERED if callable(getattr(env, name, None))]
    if len(there) == 1:
        (missing,) = set(_OFFERED) - set(there)
        raise ObservationError(f"{type(env).__name__} offers {there[0]}() without {missing}()")
    if not isinstance(env, Structured):
        return None
    structure = Structure(env)
    return structure if structure.leaves else None


def _constant(value: Any) -> bool:
    """Whether it is a leaf as it stands, and stays one."""
    if type(value) is np.ndarray:
        return value.dtype == np.float32 and not value.flags.writeable and value.base is None
    return type(value) is np.int64


def _bounds(leaf: ObsLeafDescriptor) -> tuple[float, float]:
    """As a float32 holds them, since that is what they are compared with."""
    with np.errstate(over="ignore"):
        return float(np.float32(leaf.low)), float(np.float32(leaf.high))


def _difference(declared: Iterable[str], encoded: Mapping[str, Any]) -> str:
    missing = [name for name in declared if name not in encoded]
    extra = [str(name) for name in encoded if name not in declared]
    return (
        "encode_observation() gives other leaves than structured_observation_descriptors() declares"
        f" (missing: {', '.join(missing) or 'none'}; extra: {', '.join(extra) or 'none'})"
    )


def _index(name: str, leaf: ObsLeafDescriptor, value: Any) -> np.int64:
    assert leaf.n is not None
    try:
        index = operator.index(value)
    except TypeError:
        raise ObservationError(f"leaf {name}: {value!r} is no integer") from None
    if isinstance(value, bool) or not 0 <= index < leaf.n:
        raise ObservationError(f"leaf {name}: {value!r} is not one of 0 to {leaf.n - 1}")
    return np.int64(index)
