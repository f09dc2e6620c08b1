"""Elements of a space: what is wrong with one, those in its corners, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from gymnasium import spaces


def flaws(space: spaces.Space[Any], value: Any, where: str = "") -> list[str]:
    """What is wrong with ``value`` as an element of ``space``: sentences that begin with where it is."""
    if isinstance(space, spaces.Dict):
        return _dict_flaws(space, value, where)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return [f"{_at(where)}is {shown(value)}, not a tuple of {len(space.spaces)}"]
        parts = enumerate(zip(space.spaces, value, strict=True))
        return [flaw for at, (one, found) in parts for flaw in flaws(one, found, f"{where}[{at}]")]
    if isinstance(space, spaces.Discrete):
        return _index_flaws(space, value, where)
    return _array_flaws(space, value, where)


def _dict_flaws(space: spaces.Dict, value: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{_at(where)}is {shown(value)}, not a dict with the keys {', '.join(map(str, space.spaces))}"]
    found = [f"{_at(where)}lacks the key {key!r} of the space" for key in space.spaces if key not in value]
    found += [f"{_at(where)}has the key {key!r}, which the space has not" for key in value if key not in space.spaces]
    both = [key for key in space.spaces if key in value]
    return found + [flaw for key in both for flaw in flaws(space.spaces[key], value[key], f"{where}[{key!r}]")]


def _index_flaws(space: spaces.Discrete, value: Any, where: str) -> list[str]:
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu":
        value = value.item()
    if not isinstance(value, Integral):
        return [f"{_at(where)}is {shown(value)}, not an integer: return int(...)"]
    first, last = int(space.start), int(space.start + space.n) - 1
    if not first <= int(value) <= last:
        return [f"{_at(where)}is {int(value)}, not one of {first} to {last}, as {space} says"]
    return []


def _array_flaws(space: spaces.Space[Any], value: Any, where: str) -> list[str]:
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())
    if not isinstance(value, np.ndarray | np.generic):
        return [f"{_at(where)}is {shown(value)}, not a numpy array: return np.array(..., dtype=np.{dtype})"]
    if value.shape != shape:
        return [f"{_at(where)}has the shape {value.shape}, and the space says {shape}"]
    if value.dtype != dtype:
        return [f"{_at(where)}is of {value.dtype}, and the space says {dtype}: return np.array(..., dtype=np.{dtype})"]
    array = np.asarray(value)
    if array.dtype.kind == "f" and np.isnan(array).any():
        return [f"{_at(where)}is NaN{_index(np.isnan(array))}"]
    low, high = _ends(space)
    outside = (array < low) | (array > high)
    if outside.any():
        place = tuple(np.argwhere(outside)[0])
        bounds = f"{np.broadcast_to(low, shape)[place]} to {np.broadcast_to(high, shape)[place]}"
        return [f"{_at(where)}is {array[place]}{_index(outside)}, outside of the space, which goes from {bounds}"]
    return []


def _ends(space: spaces.Space[Any]) -> tuple[Any, Any]:
    """The smallest and the largest numbers of a space that is one array, or one number."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    return 0, 1  # MultiBinary


def corner(space: spaces.Space[Any], *, upper: bool) -> Any:
    """The element at one end of everything; where there is no end, as far as 1e6."""
    if isinstance(space, spaces.Dict):
        return {key: corner(one, upper=upper) for key, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(corner(one, upper=upper) for one in space.spaces)
    end = _ends(space)[upper]
    if isinstance(space, spaces.Discrete):
        return np.dtype(space.dtype).type(end)
    if isinstance(space, spaces.Box):
        low, high = (np.asarray(side, dtype=np.float64) for side in (space.low, space.high))
        far = np.clip(1e6 if upper else -1e6, low, high)
        end = np.where(np.isfinite(np.asarray(end, dtype=np.float64)), end, far)
    return np.full(space.shape or (), end, dtype=space.dtype)


def arrays(value: Any) -> Iterator[np.ndarray]:
    """Every array in an element."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from arrays(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from arrays(one)


def same(one: Any, other: Any) -> bool:
    """Whether two elements are equal, NaN included."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return (
            isinstance(other, tuple | list)
            and len(one) == len(other)
            and all(same(a, b) for a, b in zip(one, other, strict=True))
        )
    left, right = np.asarray(one), np.asarray(other)
    floats = left.dtype.kind in "fc" and right.dtype.kind in "fc"
    return np.array_equal(left, right, equal_nan=floats)


def shown(value: Any) -> str:
    """A value as a message names it."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of very many digits has none, and a class of one's own may do anything
        return f"something of type {type(value).__name__}"
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _at(where: str) -> str:
    return f"at {where} it " if where else "it "


def _index(wrong: np.ndarray) -> str:
    place = [int(at) for at in np.argwhere(wrong)[0]]
    return f" at {place}" if place else ""
