"""Gymnasium spaces: as plain data, compared, flattened to leaves, and their elements checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

KINDS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
_DEEPEST = 20
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_DTYPES = tuple(np.dtype(name) for name in ("bool", *_INTEGERS, "float16", "float32", "float64"))


class SpaceError(Exception):
    """A space that can't be passed on, or a value that is no element of its space."""


# plain data -------------------------------------------------------------------------------------------


def describe(space: Any) -> dict[str, Any]:
    """Return ``space`` as JSON, from which ``build`` makes an equal one.

    Raises:
        SpaceError: it is nested too deeply, or has arrays that can't be recorded or have the same name.
    """
    names: set[str] = set()
    for leaf in leaves(space):
        if leaf.dtype not in _DTYPES:
            raise SpaceError(f"an array of {leaf.dtype.str} can't be passed on; {', '.join(map(str, _DTYPES))} can")
        if not leaf.size:
            raise SpaceError(f"an array of shape {leaf.shape} has no numbers")
        name = leaf.name or "value"  # as a field of a record must have one
        if name in names:
            raise SpaceError(f"two parts have the name {name!r}: rename a key")
        names.add(name)
    return _described(space)


def _described(space: spaces.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Dict():
            return {"kind": "Dict", "spaces": {key: _described(one) for key, one in space.spaces.items()}}
        case spaces.Tuple():
            return {"kind": "Tuple", "spaces": [_described(one) for one in space.spaces]}
        case spaces.Box():
            bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            counts = {"n": space.nvec.tolist(), "start": space.start.tolist()}
            return {"kind": "MultiDiscrete", **counts, "dtype": str(space.dtype)}
        case spaces.MultiBinary(n=int() | np.integer() as count):
            return {"kind": "MultiBinary", "n": int(count)}
        case _:
            return {"kind": "MultiBinary", "n": list(space.shape or ())}


def build(description: Any, depth: int = 0) -> spaces.Space[Any]:
    """Return the space of a description, which is not trusted. Raises ``SpaceError``."""
    if depth > _DEEPEST:
        raise SpaceError(f"it is nested deeper than {_DEEPEST} levels")
    try:
        kind = description["kind"]
        if kind == "Dict":
            # As pairs, which keep their order: the keys of a plain dict would be sorted.
            return spaces.Dict([(key, build(one, depth + 1)) for key, one in description["spaces"].items()])
        if kind == "Tuple":
            return spaces.Tuple([build(one, depth + 1) for one in description["spaces"]])
        return _built_leaf(kind, description)
    except SpaceError:
        raise
    except Exception as error:  # a malformed description can make the library raise anything
        raise SpaceError(f"this describes no space: {type(error).__name__}: {error}") from error


def _built_leaf(kind: Any, description: Any) -> spaces.Space[Any]:
    if kind == "Box":
        dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
        low, high = (_bounds(description[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape=shape, dtype=dtype.type)
    if kind == "Discrete":
        dtype = np.dtype(description.get("dtype", "int64")).type
        return spaces.Discrete(int(description["n"]), start=int(description["start"]), dtype=dtype)
    if kind == "MultiDiscrete":
        counts = np.array(description["n"])
        return spaces.MultiDiscrete(counts, dtype=np.dtype(description["dtype"]).type, start=description["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(description["n"])
    raise SpaceError(f"{kind!r} is no kind of space; those are {KINDS}")


def _numbers(bounds: np.ndarray) -> Any:
    """Return a bound as JSON: one number if all are equal, infinities as strings."""
    flat = [
        one if not isinstance(one, float) or math.isfinite(one) else str(one) for one in bounds.reshape(-1).tolist()
    ]
    return flat[0] if flat and flat.count(flat[0]) == len(flat) else flat


def _bounds(found: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    numbers = [float(one) if isinstance(one, str) else one for one in (found if isinstance(found, list) else [found])]
    if not isinstance(found, list):
        return np.full(shape, numbers[0], dtype=dtype)
    return np.array(numbers, dtype=dtype).reshape(shape)


def differences(expected: spaces.Space[Any], found: spaces.Space[Any], where: str) -> list[str]:
    """Return one line per difference, such as ``action_space: Discrete(2) before, Discrete(3) now``.

    The order of a Dict's keys doesn't count.
    """
    before, now = _parts(expected), _parts(found)
    if before and now and type(expected) is type(found):
        lines = [f"{where}: {key} is missing now" for key in before if key not in now]
        lines += [f"{where}: {key} is new" for key in now if key not in before]
        both = [key for key in before if key in now]
        return lines + [line for key in both for line in differences(before[key], now[key], f"{where}.{key}")]
    if type(expected) is type(found) and _described(expected) == _described(found):
        return []
    return [f"{where}: {_brief(expected, 120)} before, {_brief(found, 120)} now"]


def space_differences(expected: tuple[Any, Any], found: tuple[Any, Any]) -> list[str]:
    """Return the differences of two pairs of an action and an observation space."""
    return [
        *differences(expected[0], found[0], "action_space"),
        *differences(expected[1], found[1], "observation_space"),
    ]


# leaves -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """One array in every element of a space."""

    path: tuple[str | int, ...]  # the keys that lead to it; empty if the space is one array
    shape: tuple[int, ...]  # of the array; empty for a single number
    dtype: np.dtype[Any]  # of the array

    @property
    def name(self) -> str:
        """The path as one string."""
        return ".".join(str(part) for part in self.path)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def names(self) -> list[str]:
        """Return a name for each value."""
        if self.shape == () or self.size == 1:
            return [self.name]
        prefix = f"{self.name}." if self.path else ""
        return [prefix + ".".join(str(at) for at in index) for index in np.ndindex(*self.shape)]

    def of(self, element: Any) -> Any:
        """Return the leaf of an element."""
        for part in self.path:
            element = element[part]
        return element


def leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """Return the leaves of ``space`` in order. Raises ``SpaceError``."""
    return list(_leaves(space, ()))


def _leaves(space: spaces.Space[Any], path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if len(path) > _DEEPEST:
        raise SpaceError(f"it is nested deeper than {_DEEPEST} levels")
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, one in _parts(space).items():
            if isinstance(space, spaces.Dict) and not isinstance(key, str):
                raise SpaceError(f"the key {key!r} of a Dict is no string")
            yield from _leaves(one, (*path, key))
    elif isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Discrete):
        yield Leaf(path, tuple(space.shape or ()), np.dtype(space.dtype))
    else:
        name = f"a {type(space).__name__}" if isinstance(space, spaces.Space) else repr(space)
        raise SpaceError(f"{name} is no space that can be passed on; those are {KINDS}")


def _parts(space: spaces.Space[Any]) -> dict[Any, spaces.Space[Any]]:
    """Return the parts of a Dict or a Tuple by key; nothing for a leaf."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else {}


# elements ---------------------------------------------------------------------------------------------


def element_of(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """Return a function that copies a value as an element of ``space``, with the declared shapes and dtypes.

    It raises ``SpaceError`` for other shapes, values that aren't numbers, NaN, and lossy conversions. It doesn't check
    the bounds of a ``Box``, which would cost as much as a step of a small environment: ``check_gym_server`` does.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {key: element_of(one) for key, one in _parts(space).items()}
        return _nested_of(parts, named=isinstance(space, spaces.Dict))
    if isinstance(space, spaces.Discrete):
        return _index_of(int(space.start), int(space.n), np.dtype(space.dtype).type)
    array = _array_of(tuple(space.shape or ()), np.dtype(space.dtype))
    return array if isinstance(space, spaces.Box) else _indices_of(array, *bounds(space))


def bounds(space: spaces.Space[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest numbers of a space that is one array or number."""
    match space:
        case spaces.Box():
            return space.low, space.high
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case spaces.Discrete():
            return space.start, space.start + space.n - 1
        case _:  # MultiBinary
            return np.zeros(space.shape or ()), np.ones(space.shape or ())


def _array_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    ndarray, floats = np.ndarray, dtype.kind == "f"
    short = floats and len(shape) == 1 and shape[0] < SHORT

    def own(found: Any) -> Any:
        if type(found) is ndarray and found.dtype == dtype and found.shape == shape:
            if has_nan(found) if short else floats and np.isnan(found).any():
                raise SpaceError("it holds NaN")
            return found.copy()
        try:
            array = np.asarray(found)
        except (TypeError, ValueError, OverflowError):
            raise SpaceError(f"{_brief(found)} is no array") from None
        if array.shape != shape:
            raise SpaceError(f"its shape is {array.shape}, not {shape}")
        if array.dtype.kind not in "biuf":
            raise SpaceError(f"it is of {array.dtype}, not of {dtype}")
        with np.errstate(all="ignore"):
            converted = array.astype(dtype)
        if floats and np.isnan(converted).any():
            raise SpaceError("it holds NaN")
        if not floats and not (converted == array).all():
            raise SpaceError(f"{_brief(found)} can't be {dtype} without loss")
        return converted

    return own


SHORT = 100
"""Vectors below this length are checked for NaN in Python, which is faster."""


def has_nan(short: np.ndarray) -> bool:
    """Return whether a short vector of floats holds NaN, faster than ``isnan``.

    A sum of Python floats doesn't warn when it overflows; infinities of both signs make it NaN, too.
    """
    total = sum(short.tolist())
    return total != total and bool(np.isnan(short).any())


def _indices_of(array: Callable[[Any], Any], low: np.ndarray, high: np.ndarray) -> Callable[[Any], Any]:
    def own(found: Any) -> Any:
        indices = array(found)
        if not ((indices >= low) & (indices <= high)).all():
            raise SpaceError(f"{_brief(found)} is not within {low.tolist()} and {high.tolist()}")
        return indices

    return own


def _index_of(start: int, count: int, kind: Any) -> Callable[[Any], Any]:
    end = start + count

    def own(found: Any) -> Any:
        if type(found) is int and start <= found < end:  # as it is: an environment checks it quicker than numpy's
            return found
        try:
            index = int(found)
            exact = index == found
        except (TypeError, ValueError, OverflowError):
            raise SpaceError(f"{_brief(found)} is no integer") from None
        if not exact or not start <= index < end:
            raise SpaceError(f"{_brief(found)} is not one of the integers from {start} to {end - 1}")
        return kind(index)

    return own


def _nested_of(parts: dict[Any, Callable[[Any], Any]], *, named: bool) -> Callable[[Any], Any]:
    def own(found: Any) -> Any:
        if named and (not isinstance(found, dict) or found.keys() != parts.keys()):
            keys = list(found) if isinstance(found, dict) else _brief(found)
            raise SpaceError(f"its keys are {keys}, not {list(parts)}")
        if not named and (not isinstance(found, tuple | list) or len(found) != len(parts)):
            raise SpaceError(f"{_brief(found)} is no tuple of {len(parts)}")
        owned = {}
        for key, part in parts.items():
            try:
                owned[key] = part(found[key])
            except SpaceError as error:
                raise SpaceError(f"{key}: {error}") from None
        return owned if named else tuple(owned.values())

    return own


def _brief(found: Any, most: int = 60) -> str:
    text = " ".join(repr(found).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
