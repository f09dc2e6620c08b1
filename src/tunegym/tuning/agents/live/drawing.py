"""Random actions by their numbers, drawn in blocks: a generator is dear to make and cheap to draw from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.core.randomness import integer
from tunegym.tuning.spaces import describe

BLOCK = 256


class ActionDraws:
    """A random element of ``space`` for every number, which depends on nothing but the seed, the name and the number.

    Bounded numbers are uniform; a number with one bound is exponential from there, and one without is normal, as in
    Gymnasium's own samples.
    """

    def __init__(self, space: spaces.Space[Any], seed: int, name: str) -> None:
        self._seed = seed
        self._name = name
        self._draw = _drawer(space)

    def after(self, taken: int) -> list[Any]:
        """The actions of the numbers from ``taken + 1`` to the end of their block; never empty."""
        block, place = divmod(taken, BLOCK)
        rng = np.random.default_rng(integer(self._seed, 2**63, self._name, block))
        return self._draw(rng)[place:]

    def since(self, taken: int) -> Iterator[Any]:
        """The same without an end."""
        while True:
            block = self.after(taken)
            yield from block
            taken += len(block)


def _drawer(space: spaces.Space[Any]) -> Callable[[np.random.Generator], list[Any]]:
    if isinstance(space, spaces.Dict):
        parts = {key: _drawer(one) for key, one in space.spaces.items()}
        return lambda rng: _dicts({key: draw(rng) for key, draw in parts.items()})
    if isinstance(space, spaces.Tuple):
        members = [_drawer(one) for one in space.spaces]
        return lambda rng: _tuples([draw(rng) for draw in members])
    if isinstance(space, spaces.Discrete):
        first, count, kind = int(space.start), int(space.n), np.dtype(space.dtype)
        return lambda rng: list((rng.integers(count, size=BLOCK) + first).astype(kind))
    if isinstance(space, spaces.MultiDiscrete):
        counts, firsts, dtype = space.nvec, space.start, np.dtype(space.dtype)
        return lambda rng: list((rng.integers(counts, size=(BLOCK, *counts.shape)) + firsts).astype(dtype))
    if isinstance(space, spaces.MultiBinary):
        shape, dtype = (BLOCK, *space.shape), np.dtype(space.dtype)
        return lambda rng: list(rng.integers(2, size=shape).astype(dtype))
    if isinstance(space, spaces.Box):
        return _box_drawer(space)
    describe(space)  # raises, and says which spaces there may be
    raise AssertionError(space)


def _dicts(columns: dict[str, list[Any]]) -> list[Any]:
    return [{key: column[at] for key, column in columns.items()} for at in range(BLOCK)]


def _tuples(columns: list[list[Any]]) -> list[Any]:
    return list(zip(*columns, strict=True)) if columns else [()] * BLOCK


def _box_drawer(space: spaces.Box) -> Callable[[np.random.Generator], list[Any]]:
    low, high, shape, dtype = space.low, space.high, (BLOCK, *space.shape), np.dtype(space.dtype)
    if dtype.kind in "iub":
        kind: Any = dtype.type
        return lambda rng: list(rng.integers(low, high, size=shape, endpoint=True, dtype=kind))
    below, above = space.bounded_below, space.bounded_above
    if below.all() and above.all():
        # What is rounded to the space's own precision may be just outside of its bounds.
        return lambda rng: list(np.clip(_between(rng, low, high, shape).astype(dtype), low, high))

    def drawn(rng: np.random.Generator) -> list[Any]:
        values = rng.standard_normal(size=shape)
        tails = rng.exponential(size=shape)
        values = np.where(below & ~above, low + tails, values)
        values = np.where(above & ~below, high - tails, values)
        with np.errstate(invalid="ignore"):  # where there is no bound, and it isn't taken
            values = np.where(below & above, _between(rng, low, high, shape), values)
        return list(np.clip(values.astype(dtype), low, high))

    return drawn


def _between(rng: np.random.Generator, low: np.ndarray, high: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform; also where the two bounds are too far apart for their difference to be a number."""
    share = rng.random(size=shape)
    return low.astype(np.float64) * (1.0 - share) + high.astype(np.float64) * share
