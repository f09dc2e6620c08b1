"""Spreading lengths over ranks, and packing them into micro-batches: integers in, places out. Deterministic."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np

Cost: TypeAlias = Literal["sum", "padded"]
"""What a micro-batch costs: the sum of its lengths, or its rows times its longest."""

Places: TypeAlias = list[int]


def spread_evenly(weights: Sequence[int], ranks: int) -> list[Places]:
    """Longest first, each to the rank that has least so far (longest processing time).

    The heaviest rank has at most ``4/3 - 1/(3 * ranks)`` times what it must have, and no two ranks differ by more than
    the heaviest item. With as many items as ranks or more, every rank has one.
    """
    shares: list[Places] = [[] for _ in range(ranks)]
    heap = [(0, 0, rank) for rank in range(ranks)]
    for at in _longest_first(weights):
        weight, count, rank = heap[0]
        shares[rank].append(at)
        heapq.heapreplace(heap, (weight + weights[at], count + 1, rank))
    return shares


def spread_equally(weights: Sequence[int], ranks: int) -> list[Places]:
    """As many items for every rank, within one, and about the same weight.

    Sorted, and dealt in rounds of one for each rank, the longest of a round to the rank that has least so far. A round
    never makes the ranks differ by more than they did, or than its own items do: no two differ by more than the
    heaviest item (by more than heaviest - lightest, if the ranks divide the items).
    """
    ordered = np.array(_longest_first(weights), dtype=np.int64)
    values = np.asarray(weights, dtype=np.int64)[ordered]
    owner = np.zeros(len(ordered), dtype=np.int64)
    loads = np.zeros(ranks, dtype=np.int64)
    for start in range(0, len(ordered), ranks):
        part = values[start : start + ranks]
        least = np.argsort(loads, kind="stable")[: len(part)]
        owner[start : start + ranks] = least
        loads[least] += part
    return [ordered[owner == rank].tolist() for rank in range(ranks)]


def fewest_bins(lengths: Sequence[int], most: int, cost: Cost) -> list[Places]:
    """Bins of a cost of at most ``most``, and few of them. No length is above ``most``.

    For ``"padded"`` fewer can't do. For ``"sum"`` (best fit, longest first) they are about 11/9 of the fewest at worst.
    """
    return _by_rows(lengths, most) if cost == "padded" else _best_fit(lengths, most)


def exactly_bins(lengths: Sequence[int], most: int, cost: Cost, count: int) -> list[Places]:
    """Exactly ``count`` bins, none empty, as equal as they easily can be, the dearest first.

    There are at least ``count`` lengths, and ``fewest_bins`` finds no more than ``count`` bins.
    """
    if cost == "padded":
        bins = _by_rows(lengths, _smallest(lambda cap: len(_by_rows(lengths, cap)) <= count, max(lengths), most))
    else:
        bins = spread_evenly(lengths, count)
        if max(sum(lengths[at] for at in one) for one in bins) > most:
            bins = _best_fit(lengths, most)
    heap = [(-cost_of(lengths, one, cost), min(one), one) for one in bins]
    heapq.heapify(heap)
    single: list[tuple[int, int, Places]] = []
    while len(heap) + len(single) < count:
        dearest = heapq.heappop(heap)
        if len(dearest[2]) == 1:
            single.append(dearest)
            continue
        for half in _halves(lengths, dearest[2], cost):
            heapq.heappush(heap, (-cost_of(lengths, half, cost), min(half), half))
    return [one for _, _, one in sorted([*heap, *single])]


def cost_of(lengths: Sequence[int], places: Sequence[int], cost: Cost) -> int:
    """What a micro-batch of these costs."""
    found = [lengths[at] for at in places]
    return max(found, default=0) * len(found) if cost == "padded" else sum(found)


def _longest_first(weights: Sequence[int]) -> Places:
    return np.argsort(-np.asarray(weights, dtype=np.int64), kind="stable").tolist()


def _by_rows(lengths: Sequence[int], most: int) -> list[Places]:
    """Neighbours in length share a bin: as many rows as the longest of them allows."""
    ordered = _longest_first(lengths)
    bins: list[Places] = []
    start = 0
    while start < len(ordered):
        rows = max(1, most // max(1, lengths[ordered[start]]))
        bins.append(ordered[start : start + rows])
        start += rows
    return bins


def _best_fit(lengths: Sequence[int], most: int) -> list[Places]:
    bins: list[Places] = []
    left: list[tuple[int, int]] = []
    for at in _longest_first(lengths):
        length = lengths[at]
        place = bisect_left(left, (length, -1))
        if place == len(left):
            bins.append([at])
            insort(left, (most - length, len(bins) - 1))
        else:
            room, number = left.pop(place)
            bins[number].append(at)
            insort(left, (room - length, number))
    return bins


def _smallest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number of a range that fits; the highest does."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def _halves(lengths: Sequence[int], places: Places, cost: Cost) -> list[Places]:
    if cost == "padded":
        return [places[: len(places) // 2], places[len(places) // 2 :]]
    return [[places[at] for at in half] for half in spread_evenly([lengths[at] for at in places], 2)]
