"""What groups of some sizes can make together: sets of totals, as the bits of an integer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def between(least: int, most: int) -> int:
    """Totals from ``least`` to ``most``, as bits."""
    return (1 << most + 1) - (1 << least)


def totals(sizes: Mapping[int, int], most: int) -> list[int]:
    """What so many groups of these sizes can make together, up to ``most``, as bits: with ever more of ``_parts``."""
    found, within = [1], (1 << most + 1) - 1
    for size, count in _parts(sizes, most):
        found.append(found[-1] | found[-1] << size * count & within)
    return found


def _parts(sizes: Mapping[int, int], most: int) -> list[tuple[int, int]]:
    """Sizes, each as often as one, two, four, ... groups of it: together these make any number of them."""
    parts: list[tuple[int, int]] = []
    for size, count in sizes.items():
        count, step = min(count, most // size), 1
        while count > 0:
            parts.append((size, min(step, count)))
            count -= step
            step *= 2
    return parts


def counts(sizes: Mapping[int, int], least: int, most: int) -> Counter[int]:
    """How many groups of each size make ``least`` to ``most`` together, rather of the first sizes; some do."""
    found = totals(sizes, most)
    total = (found.pop() & between(least, most)).bit_length() - 1
    numbers: Counter[int] = Counter()
    for (size, count), before in zip(reversed(_parts(sizes, most)), reversed(found), strict=True):
        if not before >> total & 1:
            numbers[size] += count
            total -= size * count
    return numbers
