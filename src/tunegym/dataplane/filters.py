"""Filters: which samples of a batch are worth training on. They look at the metadata, and never fetch a field."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tunegym.dataplane.drops import DropCounts
from tunegym.dataplane.errors import SpecError, TagError
from tunegym.dataplane.model import WEIGHT_VERSION, BatchMeta
from tunegym.dataplane.predicate import Column, Predicate

STALE = "stale"
UNWANTED = "unwanted"
GROUP = "group"
"""Why a sample is dropped that is itself fine: another one of its group is dropped."""


class MissingStateError(TagError, TypeError):
    """A filter is called without something that it needs to know."""


class BaseRolloutFilter(ABC):
    """Splits a batch into what to keep and what to drop.

    A filter of your own says in ``reasons`` why each sample is dropped; the rest follows here. What it needs to know of
    the moment (the present weight version, say) is given to ``split`` by name; it takes what it has an argument for.

    Attributes:
        counts: where this filter counts what it does, if anywhere. Inside ``All`` only that of ``All`` counts.
    """

    counts: DropCounts | None = None

    @abstractmethod
    def reasons(self, meta: BatchMeta, **state: Any) -> Sequence[str | None]:
        """For each sample, why it is dropped, or None to keep it. Looks at no other thing than ``meta`` and ``state``.

        Raises:
            TagError: the tags don't say it. It never guesses.
        """

    def split(self, meta: BatchMeta, **state: Any) -> tuple[BatchMeta, BatchMeta]:
        """What to keep, and what to drop: every sample is in exactly one of them, in the order of the batch.

        Both are new, share no dict with the batch, and may be empty. A group stays whole: if one of its samples is
        dropped, all of them are, with the reason ``"group"``.

        Raises:
            TagError: the tags don't say it.
        """
        if meta.tags is not None and len(meta.tags) != meta.size:
            raise TagError(f"{len(meta.tags)} tags for {meta.size} samples")
        reasons = list(_called(self.reasons, meta, state))
        if len(reasons) != meta.size:
            raise SpecError(f"{type(self).__name__} gave {len(reasons)} reasons for {meta.size} samples")
        if meta.group_ids is not None:
            reasons = _whole_groups(reasons, meta.group_ids)
        dropped = np.fromiter((reason is not None for reason in reasons), dtype=bool, count=len(reasons))
        if self.counts is not None:
            self.counts.add(reasons, _ages(meta, state.get("current_weight_version")), meta.sequence_lengths)
        return _fresh(meta.subset(~dropped)), _fresh(meta.subset(dropped))


@dataclass(frozen=True)
class StalenessFilter(BaseRolloutFilter):
    """Drops what weights made that are too old: those with ``current_weight_version - version > max_staleness``.

    ``split(meta, current_weight_version=v)``, where ``v`` is the version that is about to be trained further.

    The version of a sample is its tag ``weight_version``.

    Raises:
        SpecError: ``max_staleness`` is no integer, or negative.
    """

    max_staleness: int
    counts: DropCounts | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not _is_integer(self.max_staleness) or self.max_staleness < 0:
            raise SpecError(
                f"max_staleness is {self.max_staleness!r}",
                hint="give an integer; 0 keeps what the present weights made",
            )

    def reasons(
        self, meta: BatchMeta, *, current_weight_version: int | None = None, **state: Any
    ) -> Sequence[str | None]:
        """See ``BaseRolloutFilter``.

        Raises:
            TagError: a sample has no version, or one that is no integer or above the current one; or there is no
                current version (this is also a ``TypeError``).
        """
        if current_weight_version is None:
            raise MissingStateError(
                "which samples are stale can't be said without the current version",
                hint="call split(meta, current_weight_version=...)",
            )
        if not _is_integer(current_weight_version):
            raise TagError(f"current_weight_version is {current_weight_version!r}, not an integer")
        current = int(current_weight_version)
        ages = [current - version for version in _versions(meta)]
        if ages and min(ages) < 0:
            at = ages.index(min(ages))
            found = f"{WEIGHT_VERSION} {current - ages[at]}"
            raise TagError(
                f"sample {meta.sample_ids[at]!r} has {found}, and the current one is {current}",
                hint="a sample can't be of weights that are still to come: which of the two is wrong?",
            )
        return [STALE if age > self.max_staleness else None for age in ages]


@dataclass(frozen=True)
class TagFilter(BaseRolloutFilter):
    """Keeps what a predicate over tags wants, as a claim's ``where`` does: ``TagFilter(Tag("reward") > 0)``.

    It asks of every sample that it has every tag which the predicate looks at.

    Attributes:
        reason: why the others are dropped, as it is counted.
    """

    predicate: Predicate
    reason: str = UNWANTED
    counts: DropCounts | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.predicate, Predicate):
            raise SpecError(f"{self.predicate!r:.60} is no predicate", hint='make one: Tag("reward") > 0')

    def reasons(self, meta: BatchMeta, **state: Any) -> Sequence[str | None]:
        """See ``BaseRolloutFilter``. Raises ``TagError`` for a missing tag, or one that can't be compared."""

        def column(name: str) -> Column:
            values = np.empty(meta.size, dtype=object)
            values[:] = _tag(meta, name)
            missing = [at for at, value in enumerate(values) if value is None]
            if missing:
                raise TagError(f"tag {name!r} of sample {meta.sample_ids[missing[0]]!r} is None")
            return values, np.ones(meta.size, dtype=bool)

        return [None if wanted else self.reason for wanted in self.predicate.mask(column).tolist()]


class All(BaseRolloutFilter):
    """Keeps what all of its filters keep. Each looks at the whole batch; the first that drops a sample says why.

    Args:
        filters: each is given the part of the state that it has arguments for.
        counts: see ``BaseRolloutFilter``.
    """

    def __init__(self, *filters: BaseRolloutFilter, counts: DropCounts | None = None) -> None:
        for one in filters:
            if not isinstance(one, BaseRolloutFilter):
                raise SpecError(f"{one!r:.60} is no filter", hint="All(StalenessFilter(2), TagFilter(...))")
        self.filters = filters
        self.counts = counts

    def reasons(self, meta: BatchMeta, **state: Any) -> Sequence[str | None]:
        """See ``BaseRolloutFilter``."""
        first: list[str | None] = [None] * meta.size
        for one in self.filters:
            found = _called(one.reasons, meta, state)
            first = [old if old is not None else new for old, new in zip(first, found, strict=True)]
        return first

    def __repr__(self) -> str:
        return f"All({', '.join(map(repr, self.filters))})"


def _called(reasons: Callable[..., Sequence[str | None]], meta: BatchMeta, state: Mapping[str, Any]) -> Any:
    """Call with as much of the state as the filter takes."""
    parameters = inspect.signature(reasons).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        state = {name: value for name, value in state.items() if name in parameters}
    return reasons(meta, **state)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _tag(meta: BatchMeta, name: str) -> list[Any]:
    """One tag of every sample. Raises ``TagError`` where one has none."""
    if not meta.size:
        return []
    for sample, tags in zip(meta.sample_ids, meta.tags or (), strict=False):
        if not isinstance(tags, Mapping):
            raise TagError(f"the tags of sample {sample!r} are {tags!r:.60}, not a dict")
    return meta.tag(name)


def _versions(meta: BatchMeta) -> list[int]:
    versions = _tag(meta, WEIGHT_VERSION)
    for sample, version in zip(meta.sample_ids, versions, strict=True):
        if not _is_integer(version):
            raise TagError(
                f"{WEIGHT_VERSION} of sample {sample!r} is {version!r}, not an integer",
                hint="tag samples with the version of the weights that made them, as an integer",
            )
    return [int(version) for version in versions]


def _ages(meta: BatchMeta, current: Any) -> list[int | None]:
    """Ages to count; None where they aren't known. Other filters than that of staleness don't insist on them."""
    if not _is_integer(current) or meta.tags is None:
        return [None] * meta.size
    versions = [tags.get(WEIGHT_VERSION) for tags in meta.tags]
    return [int(current - version) if _is_integer(version) else None for version in versions]


def _whole_groups(reasons: list[str | None], group_ids: Sequence[Hashable]) -> list[str | None]:
    """Drop the rest of a group of which something is dropped."""
    broken = {group for group, reason in zip(group_ids, reasons, strict=True) if reason is not None}
    return [
        GROUP if reason is None and group in broken else reason
        for group, reason in zip(group_ids, reasons, strict=True)
    ]


def _fresh(meta: BatchMeta) -> BatchMeta:
    tags = None if meta.tags is None else tuple(dict(one) for one in meta.tags)
    return replace(meta, tags=tags, extra_info=dict(meta.extra_info))
