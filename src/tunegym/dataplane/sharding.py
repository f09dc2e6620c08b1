"""Sharding: split one batch over the data-parallel ranks of a training step. Pure and deterministic.

Samples (or groups) are spread over the ranks by longest processing time; each shard can be packed into micro-batches.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from tunegym.dataplane.errors import SampleError, SpecError
from tunegym.dataplane.model import BatchMeta, checked_integer

Balance: TypeAlias = Literal["tokens", "count"]
Cost: TypeAlias = Literal["sum", "padded"]
"""The cost of a micro-batch: the sum of its lengths, or its rows times its longest."""
Places: TypeAlias = list[int]


@dataclass(frozen=True)
class Shard:
    """The samples of one rank."""

    meta: BatchMeta  # the samples, micro-batch by micro-batch
    # the length to which every rank can pad: the longest of all shards, rounded up to ``pad_to_multiple``; None
    # if the lengths are unknown
    pad_to: int | None = None
    ends: tuple[int, ...] = ()  # the end of each micro-batch in ``meta``

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """The samples."""
        return self.meta.sample_ids

    @property
    def size(self) -> int:
        """The number of samples."""
        return self.meta.size

    @property
    def tokens(self) -> int | None:
        """The sum of the lengths, if known."""
        return None if self.meta.sequence_lengths is None else sum(self.meta.sequence_lengths)

    @cached_property
    def micro_batches(self) -> tuple[BatchMeta, ...]:
        """The micro-batches, the same number on every rank; one without ``max_tokens``."""
        return tuple(self.meta.slice(start, end) for start, end in zip((0, *self.ends), self.ends, strict=False))


def shard_meta_for_dp(
    meta: BatchMeta,
    dp_world: int,
    balance: Balance = "tokens",
    max_tokens: int | None = None,
    group_size: int | None = None,
    allow_empty: bool = False,
    *,
    cost: Cost = "sum",
    pad_to_multiple: int = 1,
) -> tuple[tuple[Shard, ...], np.ndarray]:
    """Split a batch over the ranks of a step.

    Every sample is in exactly one shard, with its length and tags. The result is deterministic, so every rank can make
    the call itself. ``inverse`` restores the order: if ``outputs`` has the rows of shard 0, then of shard 1, and so on,
    ``outputs[inverse]`` has them in the order of ``meta``.

    Args:
        meta: the batch.
        dp_world: the number of ranks.
        balance: ``"tokens"`` equalises the sum of lengths: the heaviest rank has at most 4/3 of the optimum.
            ``"count"`` equalises the number of samples, within one, then the tokens. In both cases the tokens of two
            ranks differ by at most the longest sample (or group). Groups of different sizes are balanced by
            ``"count"`` in samples only. No rank is empty.
        max_tokens: pack each shard into micro-batches of at most this cost, the same number on every rank, the most
            expensive first. If a rank has fewer samples than that, all are spread by ``"count"`` instead.
        group_size: keep this many consecutive samples on one rank. Where the batch has ``group_ids``, they define the
            groups, and 1 allows splitting them.
        allow_empty: allow ranks and micro-batches without samples.
        cost: of a micro-batch: the ``"sum"`` of its lengths, or ``"padded"``: its rows times its longest.
        pad_to_multiple: round padded lengths up to a multiple of this.

    Raises:
        SampleError: too few samples (or groups), a sample longer than ``max_tokens``, or missing lengths.
        SpecError: an invalid argument.
    """
    _check(dp_world, balance, max_tokens, group_size, cost, pad_to_multiple)
    lengths = _lengths(meta, balance, max_tokens, pad_to_multiple if cost == "padded" else 1)
    units = _units(meta, group_size)
    if len(units) < dp_world and not allow_empty:
        what = "samples" if len(units) == meta.size else "groups"
        raise SampleError(
            f"{len(units)} {what} are too few for {dp_world} ranks",
            hint="claim more, or allow empty shards: allow_empty=True",
        )
    shares = _spread(units, lengths, dp_world, balance)
    parts: list[list[Places]] | None = [[share] for share in shares]
    if max_tokens is not None:
        parts = _packed(shares, lengths, max_tokens, cost, allow_empty=False)
        if parts is None:
            parts = _packed(_spread(units, lengths, dp_world, "count"), lengths, max_tokens, cost, allow_empty)
        if parts is None:
            raise SampleError(
                f"{meta.size} samples are too few for the same number of micro-batches on {dp_world} ranks",
                hint="give a larger max_tokens, claim more samples, or allow empty micro-batches: allow_empty=True",
            )
    return _shards(meta, parts, pad_to_multiple)


def _shards(meta: BatchMeta, parts: list[list[Places]], pad_to_multiple: int) -> tuple[tuple[Shard, ...], np.ndarray]:
    order = [[at for part in own for at in sorted(part)] for own in parts]
    ends = [tuple(np.cumsum([len(part) for part in own]).tolist()) for own in parts]
    longest = max(meta.sequence_lengths or (), default=0)
    pad_to = None if meta.sequence_lengths is None else int(-(-longest // pad_to_multiple) * pad_to_multiple)
    shards = tuple(Shard(meta.subset(places), pad_to, end) for places, end in zip(order, ends, strict=True))
    inverse = np.empty(meta.size, dtype=np.int64)
    inverse[[at for places in order for at in places]] = np.arange(meta.size)
    return shards, inverse


def _check(
    dp_world: int, balance: str, max_tokens: int | None, group_size: int | None, cost: str, pad_to_multiple: int
) -> None:
    numbers = {"dp_world": dp_world, "pad_to_multiple": pad_to_multiple}
    given = {"max_tokens": max_tokens, "group_size": group_size}
    for name, number in {**numbers, **{name: one for name, one in given.items() if one is not None}}.items():
        checked_integer(name, number, 1)
    for name, word, allowed in (("balance", balance, ("tokens", "count")), ("cost", cost, ("sum", "padded"))):
        if word not in allowed:
            raise SpecError(f"{name} is {word!r}", hint=f"give one of: {', '.join(allowed)}")


def _lengths(meta: BatchMeta, balance: str, max_tokens: int | None, multiple: int) -> list[int]:
    """The weight of each sample."""
    if meta.sequence_lengths is None:
        if meta.size and (balance == "tokens" or max_tokens is not None):
            raise SampleError(
                "the batch has no sequence_lengths to balance or pack by",
                hint='record them when putting (kv_first_write does), or use balance="count" without max_tokens',
            )
        return [1] * meta.size
    lengths = [-(-int(length) // multiple) * multiple for length in meta.sequence_lengths]
    if max_tokens is not None and lengths and max(lengths) > max_tokens:
        at = lengths.index(max(lengths))
        raise SampleError(
            f"sample {meta.sample_ids[at]!r} has {lengths[at]} tokens, but max_tokens is {max_tokens}",
            hint="drop such samples before sharding, or give a larger max_tokens",
        )
    return lengths


def _units(meta: BatchMeta, group_size: int | None) -> list[Places]:
    """The samples that stay together."""
    if group_size == 1 or (group_size is None and meta.group_ids is None):
        return [[at] for at in range(meta.size)]
    if meta.group_ids is None:
        assert group_size is not None
        if meta.size % group_size:
            raise SampleError(
                f"{meta.size} samples can't be split into groups of {group_size}",
                hint="filter whole groups: give group_ids",
            )
        return [list(range(start, start + group_size)) for start in range(0, meta.size, group_size)]
    found: dict[Hashable, Places] = {}
    for at, group in enumerate(meta.group_ids):
        found.setdefault(group, []).append(at)
    for group, places in found.items():
        if group_size is not None and len(places) != group_size:
            raise SampleError(f"group {group!r} has {len(places)} samples here, but group_size is {group_size}")
    return list(found.values())


def _spread(units: list[Places], lengths: Sequence[int], ranks: int, balance: Balance) -> list[Places]:
    """The samples of each rank."""
    tokens = [sum(lengths[at] for at in unit) for unit in units]
    counts = [len(unit) for unit in units]
    if balance == "tokens":
        shares = _dealt(tokens, ranks)
    elif len(set(counts)) <= 1:
        shares = _dealt(tokens, ranks, by_count=True)
    else:
        shares = _dealt(counts, ranks)
    return [[at for unit in share for at in units[unit]] for share in shares]


def _packed(
    shares: list[Places], lengths: Sequence[int], most: int, cost: Cost, allow_empty: bool
) -> list[list[Places]] | None:
    """The micro-batches of each rank, the same number on each; None if a rank has too few samples."""
    own = [[lengths[at] for at in share] for share in shares]
    pack = _by_rows if cost == "padded" else _best_fit
    count = max(1, *(len(pack(some, most)) for some in own))
    packed: list[list[Places]] = []
    for share, some in zip(shares, own, strict=True):
        if len(some) < count and not allow_empty:
            return None
        bins = _exact_bins(some, most, cost, min(count, len(some))) if some else []
        bins += [[]] * (count - len(bins))
        packed.append([[share[at] for at in one] for one in bins])
    return packed


# spreading and packing --------------------------------------------------------------------------------


def _dealt(weights: Sequence[int], ranks: int, *, by_count: bool = False) -> list[Places]:
    """Longest processing time: the longest item goes to the rank with the least weight so far.

    The heaviest rank has at most ``4/3 - 1/(3 * ranks)`` of the optimum. With ``by_count`` it goes to the rank with
    the least weight among those with the fewest items. Either way two ranks differ by at most the heaviest item.
    """
    shares: list[Places] = [[] for _ in range(ranks)]
    heap = [(0, 0, rank) for rank in range(ranks)]
    for at in _longest_first(weights):
        first, second, rank = heap[0]
        more = (1, weights[at]) if by_count else (weights[at], 1)
        shares[rank].append(at)
        heapq.heapreplace(heap, (first + more[0], second + more[1], rank))
    return shares


def _exact_bins(lengths: Sequence[int], most: int, cost: Cost, count: int) -> list[Places]:
    """Exactly ``count`` bins, none empty, about equal, the most expensive first.

    Needs at least ``count`` lengths, and a ``count`` for which ``most`` suffices.
    """
    if cost == "padded":
        caps = range(max(lengths), most + 1)
        smallest = bisect_left(caps, True, key=lambda cap: len(_by_rows(lengths, cap)) <= count)
        bins = _by_rows(lengths, caps[smallest])
    else:
        bins = _dealt(lengths, count)
        if max(sum(lengths[at] for at in one) for one in bins) > most:
            bins = _best_fit(lengths, most)
    while len(bins) < count:
        dearest = max((one for one in bins if len(one) > 1), key=lambda one: (_cost(lengths, one, cost), -min(one)))
        bins.remove(dearest)
        middle = len(dearest) // 2  # longest first: halves for "padded", every other one for "sum"
        bins += [dearest[:middle], dearest[middle:]] if cost == "padded" else [dearest[::2], dearest[1::2]]
    return sorted(bins, key=lambda one: (-_cost(lengths, one, cost), min(one)))


def _cost(lengths: Sequence[int], places: Sequence[int], cost: Cost) -> int:
    found = [lengths[at] for at in places]
    return max(found, default=0) * len(found) if cost == "padded" else sum(found)


def _longest_first(weights: Sequence[int]) -> Places:
    return np.argsort(-np.asarray(weights, dtype=np.int64), kind="stable").tolist()


def _by_rows(lengths: Sequence[int], most: int) -> list[Places]:
    """The fewest bins of a padded cost: samples of similar length, as many rows as the longest allows."""
    ordered = _longest_first(lengths)
    bins: list[Places] = []
    start = 0
    while start < len(ordered):
        rows = max(1, most // max(1, lengths[ordered[start]]))
        bins.append(ordered[start : start + rows])
        start += rows
    return bins


def _best_fit(lengths: Sequence[int], most: int) -> list[Places]:
    """Few bins of a sum: best fit decreasing."""
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
