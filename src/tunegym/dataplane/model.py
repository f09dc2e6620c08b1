"""Values of the data plane: what a partition is, and what travels instead of the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from tunegym.dataplane.errors import SampleError, SpecError, TagError
from tunegym.dataplane.tags import Tags, check_tags

OnFull: TypeAlias = Literal["block", "raise"]
MOST_FIELDS = 64
WEIGHT_VERSION = "weight_version"
"""The tag that says which weights produced a sample."""


@dataclass(frozen=True)
class PartitionSpec:
    """What a partition is registered with. Registering again with an equal one has no effect.

    Attributes:
        fields: the columns that there may be.
        tasks: the consumers; each has a cursor of its own.
        capacity: how many samples may be there at once; None for no limit.
        group_size: how many samples make a group whole; None if a group comes in one put.
        on_full: what a put does that doesn't fit.

    Raises:
        SpecError: these don't go together.
    """

    partition_id: str
    fields: tuple[str, ...]
    tasks: tuple[str, ...]
    capacity: int | None = None
    group_size: int | None = None
    on_full: OnFull = "block"

    def __post_init__(self) -> None:
        _check_names("partition_id", [self.partition_id])
        for what in ("fields", "tasks"):
            names = getattr(self, what)
            if isinstance(names, str):
                raise SpecError(f"{what} is the text {names!r}", hint=f"give a list of the {what}")
            object.__setattr__(self, what, tuple(names))
        for what, names in (("fields", self.fields), ("tasks", self.tasks)):
            _check_names(what, names)
            if not names:
                raise SpecError(f"{what} is empty", hint=f"name at least one of the {what}")
        if len(self.fields) > MOST_FIELDS:
            raise SpecError(f"{len(self.fields)} fields are too many", hint=f"at most {MOST_FIELDS}")
        for what, number in (("capacity", self.capacity), ("group_size", self.group_size)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise SpecError(f"{what} is {number!r}", hint="give an integer of at least 1, or None")
        if self.on_full not in ("block", "raise"):
            raise SpecError(f"on_full is {self.on_full!r}", hint='give "block" or "raise"')
        if self.capacity is not None and self.group_size is not None and self.group_size > self.capacity:
            raise SpecError(
                f"a group of {self.group_size} never fits into a capacity of {self.capacity}",
                hint="give a larger capacity: no group would ever be whole, and everybody would wait",
            )

    def mask(self, fields: Iterable[str]) -> int:
        """The fields as bits, in their order here. Raises ``SpecError`` for one that isn't declared."""
        bits = 0
        for name in fields:
            try:
                bits |= 1 << self.fields.index(name)
            except ValueError:
                raise SpecError(
                    f"partition {self.partition_id!r} has no field {name!r}", hint=f"it has: {', '.join(self.fields)}"
                ) from None
        return bits

    def names(self, mask: int) -> tuple[str, ...]:
        """The fields of bits."""
        return tuple(name for at, name in enumerate(self.fields) if mask >> at & 1)

    def task(self, name: str) -> int:
        """The place of a task. Raises ``SpecError`` for one that isn't registered."""
        try:
            return self.tasks.index(name)
        except ValueError:
            raise SpecError(
                f"partition {self.partition_id!r} has no task {name!r}", hint=f"it has: {', '.join(self.tasks)}"
            ) from None


def _check_names(what: str, names: Sequence[str]) -> None:
    for at, name in enumerate(names):
        if not isinstance(name, str) or not name or not name.isprintable() or "/" in name:
            raise SpecError(f"{what}: {name!r} is no name", hint="give a text without / and control characters")
        if name in names[:at]:
            raise SpecError(f"{what}: {name!r} is there twice", hint="name each once")


@dataclass(frozen=True, eq=False)
class BatchMeta:
    """Samples without their bytes: what a put gives, a claim hands out, and filters and shards are made of.

    Everything that has a value per sample is a tuple of ``size`` of them, in the order of ``sample_ids``; every method
    keeps that so, and gives a new one. It pickles, and is small.

    Attributes:
        task_name: whose claim it is of; None for what a put gave.
        sequence_lengths: of each sample, where they are known; for what a put gave, those of that put.
        tags: of each sample, as they were when it was handed out; ``stamp_tags`` changes only this copy.
        extra_info: anything else that is worth carrying; never looked at.
        leases: what proves the claim of each sample; None for what a put gave.
        epoch: of the partition when it was handed out.
    """

    partition_id: str
    sample_ids: tuple[str, ...]
    fields: tuple[str, ...] = ()
    task_name: str | None = None
    sequence_lengths: tuple[int, ...] | None = None
    tags: tuple[Mapping[str, Any], ...] | None = None
    group_ids: tuple[str, ...] | None = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    leases: tuple[int, ...] | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        for name in _PER_SAMPLE:
            values = getattr(self, name)
            if values is None:
                continue
            if not isinstance(values, tuple):
                object.__setattr__(self, name, tuple(values))
            if len(values) != len(self.sample_ids):
                wrong = TagError if name == "tags" else SampleError
                raise wrong(f"{len(values)} {name} for {len(self.sample_ids)} samples")
        if not isinstance(self.fields, tuple):
            object.__setattr__(self, "fields", tuple(self.fields))

    @property
    def size(self) -> int:
        """How many samples."""
        return len(self.sample_ids)

    def __len__(self) -> int:
        return len(self.sample_ids)

    # parts --------------------------------------------------------------------------------------------

    def subset(self, which: Sequence[int] | Sequence[bool] | np.ndarray) -> BatchMeta:
        """The samples at these places, in this order; or those that a mask of ``size`` says."""
        places = _places(which, self.size)
        changes = {
            name: tuple(values[at] for at in places)
            for name in _PER_SAMPLE
            if (values := getattr(self, name)) is not None
        }
        return replace(self, **changes)

    def slice(self, start: int | None = None, stop: int | None = None) -> BatchMeta:
        """The samples from ``start`` to ``stop``, as Python slices."""
        changes = {name: values[start:stop] for name in _PER_SAMPLE if (values := getattr(self, name)) is not None}
        return replace(self, **changes)

    def drop(self, sample_ids: Iterable[str]) -> BatchMeta:
        """Without these. Raises ``SampleError`` for one that isn't here."""
        gone = set(sample_ids)
        unknown = gone.difference(self.sample_ids)
        if unknown:
            raise SampleError(f"{few(sorted(unknown))} can't be dropped: not in this batch")
        return self.subset([at for at, one in enumerate(self.sample_ids) if one not in gone])

    @staticmethod
    def concat(parts: Sequence[BatchMeta]) -> BatchMeta:
        """All samples of all parts, in their order. Raises ``SampleError`` if they don't belong together."""
        if not parts:
            raise SampleError("there is nothing to put together", hint="give at least one batch")
        first = parts[0]
        full = [part for part in parts if part.size] or [first]
        for name in ("partition_id", "task_name"):
            if len({getattr(part, name) for part in parts}) > 1:
                raise SampleError(f"batches of several {name}s can't be put together")
        if len({frozenset(part.fields) for part in full}) > 1:
            raise SampleError("batches of other fields can't be put together", hint="use with_fields on them first")
        changes: dict[str, Any] = {"extra_info": {key: one for part in parts for key, one in part.extra_info.items()}}
        for name in _PER_SAMPLE:
            values = [getattr(part, name) for part in full]
            there = [one is not None for one in values]
            if any(there) and not all(there):
                raise SampleError(f"some of the batches have {name}, and some have none")
            changes[name] = tuple(item for one in values for item in one) if all(there) else None
        ids = changes["sample_ids"]
        if len(set(ids)) < len(ids):
            raise SampleError("a sample is there twice", hint="put each batch in once")
        return replace(first, fields=full[0].fields, epoch=min(part.epoch for part in full), **changes)

    # other values -------------------------------------------------------------------------------------

    def stamp_tags(self, tags: Tags | Sequence[Tags]) -> BatchMeta:
        """With these tags besides its own, the same for all or one for each sample. Local, until ``write_tags``."""
        each = [tags] * self.size if isinstance(tags, Mapping) else list(tags)
        if len(each) != self.size:
            raise TagError(f"{len(each)} tags for {self.size} samples")
        old = self.tags or ({},) * self.size
        return replace(self, tags=tuple({**one, **new} for one, new in zip(old, check_tags(each), strict=True)))

    def with_fields(self, fields: Iterable[str]) -> BatchMeta:
        """With other fields named, for a read that takes the meta's."""
        return replace(self, fields=tuple(fields))

    def with_info(self, **info: Any) -> BatchMeta:
        """With more ``extra_info``."""
        return replace(self, extra_info={**self.extra_info, **info})

    def tag(self, name: str) -> list[Any]:
        """One tag of every sample. Raises ``TagError`` where one has none."""
        if self.tags is None:
            raise TagError(f"the batch has no tags, and {name!r} is asked for")
        missing = [sample for sample, one in zip(self.sample_ids, self.tags, strict=True) if name not in one]
        if missing:
            raise TagError(f"tag {name!r} is missing at {few(missing)}")
        return [one[name] for one in self.tags]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchMeta):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [f"{self.size} samples of {self.partition_id!r}"]
        if self.task_name is not None:
            parts.append(f"for {self.task_name!r}")
        parts.append(f"[{few(self.sample_ids)}]" if self.size else "[]")
        if self.fields:
            parts.append(f"fields {', '.join(self.fields)}")
        if self.sequence_lengths:
            parts.append(f"lengths {min(self.sequence_lengths)} to {max(self.sequence_lengths)}")
        if self.tags:
            names = list(dict.fromkeys(name for one in self.tags for name in one))
            parts.append(f"tags {', '.join(names)}")
        return f"BatchMeta({', '.join(parts)})"


_PER_SAMPLE = ("sample_ids", "sequence_lengths", "tags", "group_ids", "leases")


def _places(which: Any, size: int) -> list[int]:
    array = np.asarray(which)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biu"):
        raise SampleError(f"{which!r:.60} are no places", hint="give integers, or a mask of True and False")
    if array.dtype == bool:
        if array.shape != (size,):
            raise SampleError(f"a mask of {array.shape} for {size} samples")
        return np.flatnonzero(array).tolist()
    places = [int(at) for at in array.tolist()] if array.size else []
    wrong = [at for at in places if not -size <= at < size]
    if wrong:
        raise SampleError(f"there is no sample {wrong[0]} in a batch of {size}")
    return places


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
