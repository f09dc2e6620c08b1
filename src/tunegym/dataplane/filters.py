"""Filters: which samples of a batch are worth training on. They read the metadata and never fetch a field.

A filter splits a batch into (keep, drop). ``DropCounts`` counts both by age and by length, so that you can see
whether the drops bias the training data.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tunegym.dataplane.errors import DataPlaneError, SpecError, TagError
from tunegym.dataplane.model import WEIGHT_VERSION, BatchMeta, checked_integer, is_integer
from tunegym.dataplane.objects import object_array
from tunegym.dataplane.predicate import Column, Order, Predicate, naming

if TYPE_CHECKING:
    from tunegym.dataplane.client import DataPlaneClient


class BaseRolloutFilter(ABC):
    """Splits a batch into samples to keep and samples to drop.

    Your own filter implements ``reasons``. State of the moment, such as the current weight version, is passed to
    ``split`` by name: take the names that you need, and ignore the others in ``**state``.

    Attributes:
        counts: counts what this filter keeps and drops. Inside ``All`` only the counts of ``All`` are used.
    """

    counts: DropCounts | None = None

    @abstractmethod
    def reasons(self, meta: BatchMeta, **state: Any) -> Sequence[str | None]:
        """For each sample the reason to drop it, or None to keep it.

        Raises:
            TagError: the tags don't tell. A filter never guesses.
        """

    def split(self, meta: BatchMeta, **state: Any) -> tuple[BatchMeta, BatchMeta]:
        """Split into (keep, drop): every sample is in exactly one of them, in the order of the batch.

        Both are new batches and may be empty. Groups stay whole: if one sample is dropped, the others of its group are
        dropped with the reason ``"group"``.

        Raises:
            TagError: the tags don't tell.
        """
        dropped = np.array([reason is not None for reason in self.verdicts(meta, **state)], dtype=bool)
        return _fresh(meta.subset(~dropped)), _fresh(meta.subset(dropped))

    def verdicts(self, meta: BatchMeta, **state: Any) -> list[str | None]:
        """The reasons by which ``split`` decides, counted."""
        reasons = list(self.reasons(meta, **state))
        if len(reasons) != meta.size:
            raise SpecError(f"{type(self).__name__} gave {len(reasons)} reasons for {meta.size} samples")
        if meta.group_ids is not None:  # drop the rest of every group that lost a sample
            both = list(zip(meta.group_ids, reasons, strict=True))
            broken = {group for group, reason in both if reason is not None}
            reasons = ["group" if reason is None and group in broken else reason for group, reason in both]
        if self.counts is not None:
            self.counts.add(reasons, _ages(meta, state.get("current_weight_version")), meta.sequence_lengths)
        return reasons


@dataclass(frozen=True)
class StalenessFilter(BaseRolloutFilter):
    """Drops stale samples: ``current_weight_version - version > max_staleness``.

    Call ``split(meta, current_weight_version=v)`` with the version that is trained next. The version of a sample is
    its tag ``weight_version``.

    Raises:
        SpecError: ``max_staleness`` is not a non-negative integer.
    """

    max_staleness: int
    counts: DropCounts | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        checked_integer("max_staleness", self.max_staleness, 0)

    def reasons(
        self, meta: BatchMeta, *, current_weight_version: int | None = None, **state: Any
    ) -> Sequence[str | None]:
        """See ``BaseRolloutFilter``.

        Raises:
            TagError: a version is missing, not an integer, or above the current one; or there is no current version.
        """
        if current_weight_version is None:
            raise TagError("staleness needs the current version", hint="call split(meta, current_weight_version=...)")
        if not is_integer(current_weight_version):
            raise TagError(f"current_weight_version is {current_weight_version!r}, not an integer")
        current = int(current_weight_version)
        versions = meta.tag(WEIGHT_VERSION)
        for sample, version in zip(meta.sample_ids, versions, strict=True):
            if not is_integer(version):
                raise TagError(
                    f"{WEIGHT_VERSION} of sample {sample!r} is {version!r}, not an integer",
                    hint="tag samples with the integer version of the weights that produced them",
                    sample_ids=[sample],
                )
            if version > current:
                raise TagError(
                    f"sample {sample!r} has {WEIGHT_VERSION} {version}, but the current version is {current}",
                    hint="a sample can't come from future weights: which of the two is wrong?",
                    sample_ids=[sample],
                )
        return ["stale" if current - version > self.max_staleness else None for version in versions]


@dataclass(frozen=True)
class TagFilter(BaseRolloutFilter):
    """Keeps samples that match a predicate: ``TagFilter(Tag("reward") > 0)``.

    Every sample must have every tag that the predicate reads.

    Attributes:
        reason: the reason under which the others are counted.
    """

    predicate: Predicate
    reason: str = "unwanted"
    counts: DropCounts | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.predicate, Predicate):
            raise SpecError(f"{self.predicate!r:.60} is not a predicate", hint='make one: Tag("reward") > 0')

    def reasons(self, meta: BatchMeta, **state: Any) -> Sequence[str | None]:
        """See ``BaseRolloutFilter``. Raises ``TagError`` for a missing or incomparable tag."""

        def column(name: str) -> Column:
            found = meta.tag(name)
            if None in found:
                sample = meta.sample_ids[found.index(None)]
                raise TagError(f"tag {name!r} of sample {sample!r} is None", sample_ids=[sample])
            return object_array(found), np.ones(meta.size, dtype=bool)

        with naming(lambda places: [meta.sample_ids[at] for at in places]):
            return [None if wanted else self.reason for wanted in self.predicate.mask(column).tolist()]


def varied(values: np.ndarray) -> bool:
    """Whether the values differ."""
    return bool(values.min() < values.max())


@dataclass(frozen=True)
class GroupFilter(BaseRolloutFilter):
    """Keeps groups by the values of a tag in them; by default those with different values, as DAPO does.

    If every answer to a prompt has the same reward, their advantages are 0. A column that you read is used instead of
    the tag if you pass it by its name: ``GroupFilter("reward").split(meta, reward=rewards)``.

    Attributes:
        keep: whether to keep the group with these values.
        reason: the reason under which the others are counted.
    """

    tag: str
    keep: Callable[[np.ndarray], bool] = varied
    reason: str = "no variance"
    counts: DropCounts | None = field(default=None, compare=False)

    def reasons(self, meta: BatchMeta, **state: Any) -> Sequence[str | None]:
        """See ``BaseRolloutFilter``. Raises ``TagError`` for a missing value or one that is not a number."""
        if meta.group_ids is None and meta.size:
            raise TagError("the batch has no groups", hint="put samples with group_ids")
        given = state.get(self.tag)
        try:
            values = np.asarray(meta.tag(self.tag) if given is None else given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TagError(f"{self.tag!r} is not a number for each sample: {error}") from None
        if values.shape != (meta.size,) or not np.isfinite(values).all():
            raise TagError(f"{self.tag!r} is not a finite number for each of {meta.size} samples")
        groups = np.array(meta.group_ids or (), dtype=object)
        dropped = {name for name in set(groups) if not self.keep(values[groups == name])}
        return [self.reason if name in dropped else None for name in groups]


class All(BaseRolloutFilter):
    """Keeps samples that all of its filters keep. The first filter that drops a sample gives the reason.

    Args:
        filters: the filters; each sees the whole batch and its part of the state.
        counts: see ``BaseRolloutFilter``.
    """

    def __init__(self, *filters: BaseRolloutFilter, counts: DropCounts | None = None) -> None:
        for one in filters:
            if not isinstance(one, BaseRolloutFilter):
                raise SpecError(f"{one!r:.60} is not a filter", hint="All(StalenessFilter(2), TagFilter(...))")
        self.filters = filters
        self.counts = counts

    def reasons(self, meta: BatchMeta, **state: Any) -> Sequence[str | None]:
        """See ``BaseRolloutFilter``."""
        first: list[str | None] = [None] * meta.size
        for one in self.filters:
            found = one.reasons(meta, **state)
            first = [old if old is not None else new for old, new in zip(first, found, strict=True)]
        return first

    def __repr__(self) -> str:
        return f"All({', '.join(map(repr, self.filters))})"


def claim_groups(
    plane: DataPlaneClient,
    partition_id: str,
    task_name: str,
    required_fields: Sequence[str],
    groups: int,
    group_size: int,
    wanted: BaseRolloutFilter,
    *,
    columns: Sequence[str] = (),
    on_drop: Callable[[BatchMeta], None] | None = None,
    timeout_s: float | None = 60.0,
    order: Order = "oldest",
    **state: Any,
) -> BatchMeta:
    """Claim until so many groups pass a filter. The others are cleared with their reasons, and replacements claimed.

    The filter gets the ``state``, and the values of the ``columns`` by name. ``on_drop``, such as ``Admission.drop``,
    gets what was dropped. ``timeout_s`` is for all claims together. After an error nothing is held.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    held: list[BatchMeta] = []
    try:
        while (missing := groups - sum(len(set(one.group_ids or one.sample_ids)) for one in held)) > 0:
            most, left = missing * group_size, None if until is None else max(0.0, until - time.monotonic())
            names = partition_id, task_name, required_fields
            held.append(plane.claim_meta(*names, most, min_batch=group_size, timeout_s=left, order=order))
            read = plane.get_samples(held[-1], columns) if columns else {}
            reasons = wanted.verdicts(held[-1], **state, **{name: rows.dense() for name, rows in read.items()})
            drops = {one: held[-1].subset([one == two for two in reasons]) for one in {*reasons} - {None}}
            held[-1] = held[-1].subset([one is None for one in reasons])
            for reason, drop in drops.items():
                plane.clear_samples(partition_id, drop.sample_ids, reason)
                if on_drop is not None:
                    on_drop(drop)
        return BatchMeta.concat(held)
    except BaseException:
        for one in held:
            with contextlib.suppress(DataPlaneError):  # what was cleared meanwhile; the cause is to be seen
                plane.release(one, attempt=False)
        raise


def _ages(meta: BatchMeta, current: Any) -> list[int | None]:
    """Ages to count; None where unknown."""
    if not is_integer(current) or meta.tags is None:
        return [None] * meta.size
    versions = [tags.get(WEIGHT_VERSION) for tags in meta.tags]
    return [int(current - version) if is_integer(version) else None for version in versions]


def _fresh(meta: BatchMeta) -> BatchMeta:
    tags = None if meta.tags is None else tuple(dict(one) for one in meta.tags)
    return replace(meta, tags=tags, extra_info=dict(meta.extra_info))


# counts -----------------------------------------------------------------------------------------------


@dataclass
class SampleCounts:
    """Counts of samples by age and by length."""

    samples: int = 0
    ages: Counter[int | None] = field(default_factory=Counter)  # current version minus the sample's; None if unknown
    lengths: Counter[int] = field(default_factory=Counter)  # ``n`` counts lengths of ``n`` to ``2 * n - 1``
    measured: int = 0  # samples with a known length
    tokens: int = 0  # the sum of the known lengths

    def add(self, ages: Sequence[int | None], lengths: Sequence[int] | None) -> None:
        """Count samples."""
        self.samples += len(ages)
        self.ages.update(ages)
        if lengths is not None:
            self.lengths.update(1 << length.bit_length() >> 1 for length in map(int, lengths))
            self.measured += len(lengths)
            self.tokens += int(sum(lengths))

    def merge(self, other: SampleCounts) -> None:
        """Add the counts of another object."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @property
    def mean_length(self) -> float | None:
        """The mean length; None if no length is known."""
        return self.tokens / self.measured if self.measured else None

    @property
    def mean_age(self) -> float | None:
        """The mean of the known ages."""
        known = {age: count for age, count in self.ages.items() if age is not None}
        return sum(age * count for age, count in known.items()) / sum(known.values()) if known else None

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "samples": self.samples,
            "mean_age": self.mean_age,
            "mean_length": self.mean_length,
            "ages": {"unknown" if age is None else str(age): self.ages[age] for age in _ordered(self.ages)},
            "lengths": {str(low): self.lengths[low] for low in sorted(self.lengths)},
        }


@dataclass
class DropCounts:
    """Samples that filters kept and dropped, by reason. Pass one to a filter to fill it.

    ``merge`` and ``+`` combine several; ``str`` prints a table. Not thread-safe: use one per thread.
    """

    kept: SampleCounts = field(default_factory=SampleCounts)
    dropped: dict[str, SampleCounts] = field(default_factory=dict)  # by reason

    def add(
        self, reasons: Sequence[str | None], ages: Sequence[int | None], lengths: Sequence[int] | None = None
    ) -> None:
        """Count samples: the reason of each (None if kept), its age, and its length."""
        for reason in dict.fromkeys(reasons):
            places = [at for at, one in enumerate(reasons) if one == reason]
            counts = self.kept if reason is None else self.dropped.setdefault(reason, SampleCounts())
            counts.add([ages[at] for at in places], None if lengths is None else [lengths[at] for at in places])

    def merge(self, other: DropCounts) -> None:
        """Add the counts of another object."""
        self.kept.merge(other.kept)
        for reason, counts in other.dropped.items():
            self.dropped.setdefault(reason, SampleCounts()).merge(counts)

    def __add__(self, other: DropCounts) -> DropCounts:
        both = DropCounts()
        both.merge(self)
        both.merge(other)
        return both

    @property
    def reasons(self) -> dict[str, int]:
        """The number of dropped samples by reason."""
        return {reason: counts.samples for reason, counts in self.dropped.items()}

    @property
    def all_dropped(self) -> SampleCounts:
        """The dropped samples of all reasons."""
        total = SampleCounts()
        for counts in self.dropped.values():
            total.merge(counts)
        return total

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "kept": self.kept.plain(),
            "dropped": {reason: counts.plain() for reason, counts in self.dropped.items()},
        }

    def __str__(self) -> str:
        dropped = self.all_dropped
        rows = [("", "samples", "mean age", "mean length"), _row("kept", self.kept), _row("dropped", dropped)]
        rows += [_row(f"  {reason}", self.dropped[reason]) for reason in sorted(self.dropped)]
        parts = [_aligned(rows)]
        for title, name in (("age", "ages"), ("length from", "lengths")):
            kept, gone = getattr(self.kept, name), getattr(dropped, name)
            keys = _ordered({*kept, *gone})
            if keys:
                shown = [("unknown" if key is None else str(key), str(kept[key]), str(gone[key])) for key in keys]
                parts.append(_aligned([(title, "kept", "dropped"), *shown]))
        return "\n\n".join(parts)


def _ordered(keys: Iterable[int | None]) -> list[int | None]:
    return sorted(keys, key=lambda key: (key is None, key or 0))


def _row(title: str, counts: SampleCounts) -> tuple[str, ...]:
    means = (counts.mean_age, counts.mean_length)
    return title, str(counts.samples), *("-" if mean is None else f"{mean:.1f}" for mean in means)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells))
    return "\n".join(lines)
