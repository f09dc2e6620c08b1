"""Values of the data plane: the spec of a partition, the metadata of a batch, and the checks of what users pass.

``BatchMeta`` travels instead of the bytes: sample ids, lengths, tags and leases. The ``checked_*`` functions turn a
user's arguments into plain values, or raise before anything is done.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np

from tunegym.dataplane.errors import DataPlaneError, SampleError, SpecError, TagError

OnFull: TypeAlias = Literal["block", "raise"]
Tags: TypeAlias = Mapping[str, bool | int | float | str | None]
MOST_FIELDS = 64
WEIGHT_VERSION = "weight_version"
"""The tag that names the weights that produced a sample."""
_LARGEST = 2**62


@dataclass(frozen=True)
class PartitionSpec:
    """What a partition is registered with. Registering an equal spec again has no effect.

    Attributes:
        fields: the columns that samples may have.
        tasks: the consumers; each has its own cursor.
        capacity: the most resident samples; None for no limit.
        group_size: samples of a complete group; None if each group arrives in one put.
        on_full: what a put does when the partition is full.
        max_attempts: how many claims of a task may end without an ack before a sample is given up; None for no limit.
        capacity_bytes: the most bytes that the storage has for it when a put brings new samples; None for no limit.

    Raises:
        SpecError: the settings contradict each other.
    """

    partition_id: str
    fields: tuple[str, ...]
    tasks: tuple[str, ...]
    capacity: int | None = None
    group_size: int | None = None
    on_full: OnFull = "block"
    max_attempts: int | None = None
    capacity_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_names("partition_id", [self.partition_id])
        for what in ("fields", "tasks"):
            names = checked_names(what, getattr(self, what))
            _check_names(what, names)
            if not names:
                raise SpecError(f"{what} is empty", hint=f"name at least one of the {what}")
            object.__setattr__(self, what, tuple(names))
        if len(self.fields) > MOST_FIELDS:
            raise SpecError(f"{len(self.fields)} fields are too many", hint=f"at most {MOST_FIELDS}")
        for what in ("capacity", "group_size", "max_attempts", "capacity_bytes"):
            if (number := getattr(self, what)) is not None:
                object.__setattr__(self, what, checked_integer(what, number, 1))
        if self.on_full not in ("block", "raise"):
            raise SpecError(f"on_full is {self.on_full!r}", hint='give "block" or "raise"')
        if self.capacity is not None and self.group_size is not None and self.group_size > self.capacity:
            raise SpecError(
                f"group_size={self.group_size} never fits into capacity={self.capacity}",
                hint="give a larger capacity: otherwise no group is ever complete, and every claim waits forever",
            )

    def mask(self, fields: Iterable[str]) -> int:
        """The fields as a bit mask. Raises ``SpecError`` for an undeclared field."""
        mask = 0
        for name in fields:
            mask |= 1 << self._index("field", name)
        return mask

    def names(self, mask: int) -> tuple[str, ...]:
        """The fields of a bit mask."""
        return tuple(name for at, name in enumerate(self.fields) if mask >> at & 1)

    def task(self, name: str) -> int:
        """The index of a task. Raises ``SpecError`` for an unknown task."""
        return self._index("task", name)

    def _index(self, what: str, name: str) -> int:
        names: tuple[str, ...] = getattr(self, f"{what}s")
        if name not in names:
            raise SpecError(
                f"partition {self.partition_id!r} has no {what} {name!r}", hint=f"it has: {', '.join(names)}"
            )
        return names.index(name)


def _check_names(what: str, names: Sequence[str]) -> None:
    for at, name in enumerate(names):
        if not isinstance(name, str) or not name or not name.isprintable() or "/" in name:
            raise SpecError(f"{what}: {name!r} is not a name", hint="give a text without / and control characters")
        if name in names[:at]:
            raise SpecError(f"{what}: {name!r} appears twice", hint="name each once")


@dataclass(frozen=True)
class BatchMeta:
    """Metadata of some samples: returned by puts and claims, split by filters and shards. Small, and pickles.

    Per-sample values are tuples of ``size`` entries in the order of ``sample_ids``. Methods return a new batch.

    Attributes:
        task_name: the task of the claim; None for the result of a put.
        sequence_lengths: the length of each sample, where known; for a put, the lengths of that put.
        tags: the tags of each sample at the time of the call; ``stamp_tags`` changes only this copy.
        extra_info: your own entries, never interpreted.
        leases: one lease number per sample; None for the result of a put.
        epoch: the partition's epoch at the time of the call.
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
        """The number of samples."""
        return len(self.sample_ids)

    def __len__(self) -> int:
        return len(self.sample_ids)

    # selection --------------------------------------------------------------------------------------------

    def subset(self, which: Sequence[int] | Sequence[bool] | np.ndarray) -> BatchMeta:
        """Select samples by position, in this order, or by a boolean mask of ``size``."""
        places = _places(which, self.size)
        changes = {
            name: tuple(values[at] for at in places)
            for name in _PER_SAMPLE
            if (values := getattr(self, name)) is not None
        }
        return replace(self, **changes)

    def slice(self, start: int | None = None, stop: int | None = None) -> BatchMeta:
        """The samples from ``start`` to ``stop``, like a Python slice."""
        return self.subset(range(self.size)[start:stop])

    def drop(self, sample_ids: Iterable[str]) -> BatchMeta:
        """The batch without these samples. Raises ``SampleError`` for an unknown id."""
        gone = set(sample_ids)
        unknown = gone.difference(self.sample_ids)
        if unknown:
            raise SampleError(f"{few(sorted(unknown))} can't be dropped: not in this batch")
        return self.subset([at for at, one in enumerate(self.sample_ids) if one not in gone])

    @staticmethod
    def concat(parts: Sequence[BatchMeta]) -> BatchMeta:
        """Join batches in order. Raises ``SampleError`` if they don't belong together."""
        if not parts:
            raise SampleError("no batch to join", hint="give at least one batch")
        first = parts[0]
        full = [part for part in parts if part.size] or [first]
        for name in ("partition_id", "task_name"):
            if len({getattr(part, name) for part in parts}) > 1:
                raise SampleError(f"batches with different {name}s can't be joined")
        if len({frozenset(part.fields) for part in full}) > 1:
            raise SampleError("batches with different fields can't be joined", hint="use with_fields on them first")
        changes: dict[str, Any] = {"extra_info": {key: one for part in parts for key, one in part.extra_info.items()}}
        for name in _PER_SAMPLE:
            values = [getattr(part, name) for part in full]
            there = [one is not None for one in values]
            if any(there) and not all(there):
                raise SampleError(f"some batches have {name} and some don't")
            changes[name] = tuple(item for one in values for item in one) if all(there) else None
        ids = changes["sample_ids"]
        if len(set(ids)) < len(ids):
            raise SampleError("a sample appears twice", hint="join each batch once")
        return replace(first, fields=full[0].fields, epoch=min(part.epoch for part in full), **changes)

    # changes -------------------------------------------------------------------------------------

    def stamp_tags(self, tags: Tags | Sequence[Tags]) -> BatchMeta:
        """Add tags: one mapping for all samples, or one for each. Local: ``write_tags`` stores them."""
        plain = checked_tags(tags, self.size)
        each = [plain] * self.size if isinstance(plain, dict) else plain
        old = self.tags or ({},) * self.size
        return replace(self, tags=tuple({**one, **new} for one, new in zip(old, each, strict=True)))

    def with_fields(self, fields: Iterable[str]) -> BatchMeta:
        """Replace the fields that ``get_samples`` reads by default."""
        return replace(self, fields=tuple(fields))

    def tag(self, name: str) -> list[Any]:
        """The values of one tag. Raises ``TagError`` if a sample lacks it."""
        if not self.size:
            return []
        if self.tags is None:
            raise TagError(f"the batch has no tags; tag {name!r} is required")
        missing = [sample for sample, one in zip(self.sample_ids, self.tags, strict=True) if name not in one]
        if missing:
            raise TagError(f"tag {name!r} is missing for {few(missing)}", sample_ids=missing)
        return [one[name] for one in self.tags]

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
        raise SampleError(f"{which!r:.60} selects no samples", hint="give integers, or a mask of booleans")
    if array.dtype == bool:
        if array.shape != (size,):
            raise SampleError(f"a mask of shape {array.shape} for {size} samples")
        return np.flatnonzero(array).tolist()
    places = [int(at) for at in array.tolist()] if array.size else []
    wrong = [at for at in places if not -size <= at < size]
    if wrong:
        raise SampleError(f"there is no sample {wrong[0]} in a batch of {size}")
    return places


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


# tags -------------------------------------------------------------------------------------------------


TagColumn: TypeAlias = tuple[str, list[int] | None, list[Any]]
"""A tag's name, the places of the samples that have it (None for all of them), and their values."""


def tags_by_sample(columns: Iterable[TagColumn], count: int) -> tuple[dict[str, Any], ...] | None:
    """The tags of each of ``count`` samples; None if there are none."""
    tags: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, places, values in columns:
        tagged = tags if places is None else [tags[place] for place in places]
        for one, value in zip(tagged, values, strict=True):
            one[name] = value
    return tuple(tags) if any(tags) else None


def checked_tags(tags: Any, count: int) -> list[dict[str, Any]] | dict[str, Any]:
    """Tags of each sample, or one mapping for all, as plain Python values. Raises ``TagError``."""
    if isinstance(tags, Mapping):
        return _plain_tags(0, tags)
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TagError(f"tags is {tags!r:.60}", hint="give a dict for each sample, or one for all")
    each = [_plain_tags(at, one) for at, one in enumerate(tags)]
    if len(each) != count:
        raise TagError(f"{len(each)} tags for {count} samples", hint="give a dict for each sample, or one for all")
    return each


def _plain_tags(at: int, tags: Tags) -> dict[str, Any]:
    if not isinstance(tags, Mapping):
        raise TagError(f"the tags of sample {at} are {type(tags).__name__}, not a dict")
    plain: dict[str, Any] = {}
    for name, value in tags.items():
        found = value.item() if isinstance(value, np.generic) else value
        if not isinstance(name, str) or not name or not is_unicode(name):
            raise TagError(f"{name!r} is not a tag name")
        problem = scalar_problem(found)
        if problem is not None:
            raise TagError(f"tag {name!r} of sample {at} is {problem}", hint=_TAG_VALUES)
        plain[name] = found
    return plain


_TAG_VALUES = "tags are finite numbers of up to 64 bits, texts, True, False and None; put other values into fields"


def scalar_problem(value: Any) -> str | None:
    """A value that no tag can have, in words; None if a tag can have it."""
    if isinstance(value, str):
        return None if is_unicode(value) else "a text with a lone surrogate"
    if isinstance(value, float):
        return None if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else "an integer beyond 64 bits"
    return None if value is None else f"a {type(value).__name__}"


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: lone surrogates can't."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


# arguments --------------------------------------------------------------------------------------------


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether it is Python's or numpy's integer, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def checked_names(what: str, names: Iterable[str], wrong: type[DataPlaneError] = SpecError) -> list[str]:
    """Names of fields, tasks, samples or groups. Raises ``wrong``."""
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Iterable):
        raise wrong(f"{what} is {names!r:.60}", hint="give a list of texts")
    texts = names.tolist() if isinstance(names, np.ndarray) else list(names)
    if set(map(type, texts)) != {str} or "" in texts or not is_unicode("".join(texts)):
        for one in texts:
            if not isinstance(one, str) or not one or not is_unicode(one):
                raise wrong(f"{what}: {one!r:.60} is not a name", hint="give Unicode texts of at least one character")
        texts = [str(one) for one in texts]
    return texts


def checked_name(what: str, name: str) -> str:
    """One name. Raises ``SpecError``."""
    if not isinstance(name, str) or not name or not is_unicode(name):
        raise SpecError(f"{what} is {name!r:.60}", hint="give a Unicode text of at least one character")
    return str(name)


def checked_lengths(lengths: Iterable[int]) -> list[int]:
    """Lengths of samples. Raises ``SampleError``."""
    try:
        found = [operator.index(one) for one in lengths]
    except TypeError:
        found = [-1]
    if any(not 0 <= one < 2**31 for one in found):
        raise SampleError(f"lengths is {lengths!r:.60}", hint="give integers from 0 to 2**31 - 1")
    return found


def checked_integer(what: str, value: int, least: int = -_LARGEST) -> int:
    """An integer; numpy's are fine. Raises ``SpecError``."""
    if not is_integer(value) or not least <= value <= _LARGEST:
        bound = "" if least == -_LARGEST else f" of at least {least}"
        raise SpecError(f"{what} is {value!r:.60}", hint=f"give an integer{bound}")
    return int(value)


def checked_seconds(what: str, value: float | None) -> float | None:
    """A timeout; None to wait forever. Raises ``SpecError``."""
    if value is None:
        return None
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or math.isnan(value) or value < 0:
        raise SpecError(f"{what} is {value!r:.60}", hint="give seconds, 0 for no wait, or None to wait forever")
    return None if math.isinf(value) else float(value)


def checked_meta(meta: BatchMeta) -> BatchMeta:
    """A batch. Raises ``SpecError``."""
    if not isinstance(meta, BatchMeta):
        raise SpecError(f"{meta!r:.60} is not a BatchMeta", hint="give the result of put_samples or claim_meta")
    return meta
