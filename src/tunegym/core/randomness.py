"""Randomness by name: the same names give the same number in any process, in any order.

Nothing here keeps state and nothing seeds a global generator. A draw is a hash of its names, so adding or
removing one name can't move the draws of another.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

_SCALE = 2.0**-53
_BLOCK = 24  # so that 2, 3, 4, 6, 8 and 12 candidates come equally often


def unit(seed: int, *names: str | int) -> float:
    """A uniform number in [0, 1) that depends on nothing but ``seed`` and ``names``.

    Names are separated by a character that can't be confused with their content: ``("a", "b")`` and
    ``("ab",)`` differ, and so do ``1`` and ``"1"``.
    """
    text = repr((seed, *names))
    digest = blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * _SCALE


def integer(seed: int, bound: int, *names: str | int) -> int:
    """A uniform integer in [0, bound), without bias for bounds far below 2**128."""
    text = repr((seed, *names))
    digest = blake2b(text.encode(), digest_size=32).digest()
    return int.from_bytes(digest, "little") % bound


def even_unit(seed: int, number: int, *names: str | int) -> float:
    """As ``unit``, but evenly: of each block of 24 numbers, one is in each 24th of [0, 1), in random order."""
    block, place = divmod(number, _BLOCK)
    return (_shuffled(seed, block, *names)[place] + unit(seed, *names, number)) / _BLOCK


@lru_cache(maxsize=1024)
def _shuffled(seed: int, block: int, *names: str | int) -> list[int]:
    return sorted(range(_BLOCK), key=lambda at: unit(seed, *names, "block", block, at))
