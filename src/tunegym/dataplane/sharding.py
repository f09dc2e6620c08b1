"""Sharding: one batch for all ranks of a training step. Pure: metadata in, metadata out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from tunegym.dataplane.errors import SampleError, SpecError
from tunegym.dataplane.model import BatchMeta
from tunegym.dataplane.packing import Cost, Places, exactly_bins, fewest_bins, spread_equally, spread_evenly

Balance: TypeAlias = Literal["tokens", "count"]


@dataclass(frozen=True)
class Shard:
    """What one rank trains on.

    Attributes:
        meta: all of its samples; first those of the first micro-batch, and so on.
        pad_to: a length to which every rank can pad: the longest of all, rounded up to the multiple that was asked for;
            None if the lengths are not known.
        ends: where in ``meta`` each micro-batch ends.
    """

    meta: BatchMeta
    pad_to: int | None = None
    ends: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many samples."""
        return self.meta.size

    @property
    def tokens(self) -> int | None:
        """The sum of the lengths, if they are known."""
        return None if self.meta.sequence_lengths is None else sum(self.meta.sequence_lengths)

    @cached_property
    def micro_batches(self) -> tuple[BatchMeta, ...]:
        """The parts to train one by one, as many on every rank; just one without ``max_tokens``."""
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

    Every sample is in exactly one shard, with its length and its tags. The same call gives the same shards: every rank
    can make it by itself. ``inverse`` leads back: if ``outputs`` has a row for each sample of shard 0, then of shard 1,
    and so on, ``outputs[inverse]`` has them in the order of ``meta``; ``inverse[i]`` is where sample ``i`` went.

    Args:
        meta: the batch.
        dp_world: how many ranks.
        balance: ``"tokens"`` for about the same sum of lengths on every rank: the heaviest has at most 4/3 of what it
            must have. ``"count"`` for as many samples on every rank, within one, and as equal in tokens as that allows.
            Either way the tokens of two ranks differ by no more than those of the longest sample (or group). Groups
            of several sizes are balanced by ``"count"`` in samples only. No rank is empty.
        max_tokens: pack each shard into micro-batches of this cost at most, the same number of them on every rank, the
            dearest first. If a rank has fewer samples than that number, all are spread as with ``"count"`` instead.
        group_size: keep so many consecutive samples together on one rank; where the batch has ``group_ids``, these say
            what belongs together (with or without ``group_size``), and 1 says that groups may be torn apart.
        allow_empty: give ranks (and micro-batches) without a sample, where there are too few of them.
        cost: of a micro-batch: ``"sum"`` of its lengths (sequences packed one after the other), or ``"padded"``: its
            rows times its longest. ``pad_to`` is for whole shards, and ``max_tokens`` doesn't hold for it.
        pad_to_multiple: round padded lengths up to a multiple of this.

    Raises:
        SampleError: too few samples (or groups), a sample longer than ``max_tokens``, or lengths that are missing.
        SpecError: arguments that make no sense.
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
                f"{meta.size} samples don't make the same number of micro-batches on {dp_world} ranks: one has too few",
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
    numbers |= {
        "max_tokens": 1 if max_tokens is None else max_tokens,
        "group_size": 1 if group_size is None else group_size,
    }
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
            raise SpecError(f"{name} is {number!r}", hint="give an integer of at least 1")
    for name, word, allowed in (("balance", balance, ("tokens", "count")), ("cost", cost, ("sum", "padded"))):
        if word not in allowed:
            raise SpecError(f"{name} is {word!r}", hint=f"give one of: {', '.join(allowed)}")


def _lengths(meta: BatchMeta, balance: str, max_tokens: int | None, multiple: int) -> list[int]:
    """What each sample counts for. Raises ``SampleError`` where that isn't known, or is too much."""
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
            f"sample {meta.sample_ids[at]!r} has {lengths[at]} tokens, and max_tokens is {max_tokens}",
            hint="drop such samples before sharding, or give a larger max_tokens",
        )
    return lengths


def _units(meta: BatchMeta, group_size: int | None) -> list[Places]:
    """What must stay together."""
    if group_size == 1 or (group_size is None and meta.group_ids is None):
        return [[at] for at in range(meta.size)]
    if meta.group_ids is None:
        assert group_size is not None
        if meta.size % group_size:
            raise SampleError(
                f"{meta.size} samples are not made of groups of {group_size}",
                hint="filter whole groups: give group_ids",
            )
        return [list(range(start, start + group_size)) for start in range(0, meta.size, group_size)]
    found: dict[Hashable, Places] = {}
    for at, group in enumerate(meta.group_ids):
        found.setdefault(group, []).append(at)
    for group, places in found.items():
        if group_size is not None and len(places) != group_size:
            raise SampleError(f"group {group!r} has {len(places)} samples here, and group_size is {group_size}")
    return list(found.values())


def _spread(units: list[Places], lengths: Sequence[int], ranks: int, balance: Balance) -> list[Places]:
    """The samples of each rank."""
    tokens = [sum(lengths[at] for at in unit) for unit in units]
    counts = [len(unit) for unit in units]
    if balance == "tokens":
        shares = spread_evenly(tokens, ranks)
    elif len(set(counts)) <= 1:
        shares = spread_equally(tokens, ranks)
    else:
        shares = spread_evenly(counts, ranks)
    return [[at for unit in share for at in units[unit]] for share in shares]


def _packed(
    shares: list[Places], lengths: Sequence[int], most: int, cost: Cost, allow_empty: bool
) -> list[list[Places]] | None:
    """The micro-batches of each rank, as many on each; None if a rank has too few samples for it."""
    own = [[lengths[at] for at in share] for share in shares]
    fewest = [fewest_bins(some, most, cost) for some in own]
    count = max(1, *map(len, fewest))
    packed: list[list[Places]] = []
    for share, some in zip(shares, own, strict=True):
        if len(some) < count and not allow_empty:
            return None
        bins = exactly_bins(some, most, cost, min(count, len(some))) if some else []
        bins += [[]] * (count - len(bins))
        packed.append([[share[at] for at in one] for one in bins])
    return packed
