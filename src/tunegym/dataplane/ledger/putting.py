"""Puts: what is refused, and how the rest is taken in, all of it at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tunegym.dataplane.errors import EpochError, FieldError, SampleError, SealedError, SpecError, TagError
from tunegym.dataplane.ledger.arrivals import Arrival
from tunegym.dataplane.ledger.ids import Found
from tunegym.dataplane.ledger.numbering import RETIRED, UNKNOWN
from tunegym.dataplane.ledger.partition import Partition, Shape
from tunegym.dataplane.ledger.requests import Put
from tunegym.dataplane.ledger.rows import MOST_ROWS
from tunegym.dataplane.ledger.spans import Span, every, span_of
from tunegym.dataplane.ledger.tagging import Checked
from tunegym.dataplane.model import few


@dataclass(slots=True)
class CheckedPut:
    """A put that may be taken in, as long as nothing changes.

    Attributes:
        new: how many samples it brings; the rows of the others are in ``found``.
    """

    request: Put
    found: Found
    new: int
    lengths: np.ndarray | None
    tags: Checked | None


def check_put(partition: Partition, request: Put) -> CheckedPut:
    """Refuse what may not be put; nothing is changed."""
    spec, sample_ids = partition.spec, request.sample_ids
    if request.epoch != partition.epoch:  # a later one is of a former partition of this name
        what = "rewound" if request.epoch < partition.epoch else "deleted and made again"
        raise EpochError(
            f"partition {spec.partition_id!r} was {what}, and this put is of epoch {request.epoch}:"
            f" now is {partition.epoch}",
            hint="fetch the present weights, and produce again",
        )
    _check_shapes(partition, request.shapes)
    lengths = _check_lengths(request)
    tags = None if request.tags is None else partition.rows.tags.checked(request.tags)
    _check_ids(sample_ids)
    found = partition.rows.ids.find(sample_ids)
    if not found.distinct(sample_ids):
        twice = next(one for one, count in Counter(sample_ids).items() if count > 1)
        raise SampleError(f"{twice!r} is there twice in one put")
    new = int(np.count_nonzero(found.rows == UNKNOWN))
    if new < len(sample_ids):
        _check_alive(partition, sample_ids, found.rows)
    if new and partition.sealed:
        raise SealedError(f"partition {spec.partition_id!r} is sealed: it takes no new samples")
    _check_groups(partition, request, found.rows, new)
    most = MOST_ROWS // 2 if spec.capacity is None else spec.capacity
    if new > most:
        raise SpecError(f"{new} samples never fit into a capacity of {most}", hint="put fewer at once")
    return CheckedPut(request, found, new, lengths, tags)


def _check_shapes(partition: Partition, shapes: Mapping[str, Shape]) -> None:
    partition.spec.mask(shapes)
    for name, shape in shapes.items():
        known = partition.shapes.get(name, shape)
        if tuple(known) != tuple(shape):
            raise FieldError(
                f"field {name!r} is of {known[0]} and rank {known[1]}, here {shape[0]} and rank {shape[1]}",
                hint="a field keeps its dtype and its rank",
            )


def _check_lengths(request: Put) -> np.ndarray | None:
    count = len(request.sample_ids)
    for name, values in (("tags", request.tags), ("lengths", request.lengths), ("group_ids", request.group_ids)):
        if values is not None and not isinstance(values, Mapping) and len(values) != count:
            raise (TagError if name == "tags" else SampleError)(f"{len(values)} {name} for {count} samples")
    if request.lengths is None:
        return None
    try:
        return np.array(request.lengths, dtype=np.int32)
    except (OverflowError, TypeError, ValueError):
        raise SampleError(f"a length is no integer of 32 bits: {request.lengths!r:.80}") from None


def _check_ids(sample_ids: Sequence[str]) -> None:
    kinds = set(map(type, sample_ids))
    if sample_ids and (kinds != {str} or not all(sample_ids)):
        wrong = next(one for one in sample_ids if not isinstance(one, str) or not one)
        raise SampleError(f"{wrong!r} is no sample id", hint="give texts that are not empty")


def _check_alive(partition: Partition, sample_ids: Sequence[str], rows: np.ndarray) -> None:
    gone = (rows == RETIRED) | ((rows >= 0) & ~partition.rows.alive[np.maximum(rows, 0)])
    if gone.any():
        names = [sample_ids[at] for at in np.flatnonzero(gone).tolist()]
        raise SampleError(f"{few(names)} was there before, and is consumed or cleared", hint="ids are used once")


def _check_groups(partition: Partition, request: Put, rows: np.ndarray, new: int) -> None:
    groups, group_ids, name = partition.groups, request.group_ids, partition.spec.partition_id
    if group_ids is None:
        if new and groups is not None:
            raise SampleError(
                f"partition {name!r} has groups, and these samples have none",
                hint="give group_ids",
            )
        return
    if groups is None:
        if partition.resident:
            raise SampleError(f"partition {name!r} has samples without groups", hint="give all of them groups")
    elif new < len(rows):
        for at in np.flatnonzero(rows >= 0).tolist():
            known = groups.name(int(partition.rows.groups[rows[at]]))
            if known != group_ids[at]:
                raise SampleError(f"{request.sample_ids[at]!r} is of group {known!r}, not {group_ids[at]!r}")
    fresh = [group_ids[at] for at in np.flatnonzero(rows == UNKNOWN).tolist()]
    if not all(isinstance(one, str) and one for one in fresh):
        raise SampleError("a group id is no text, or an empty one")
    if groups is not None:
        groups.check(fresh)


def take_in(partition: Partition, put: CheckedPut, now: float) -> None:
    """Take in a put that was just checked."""
    table, request, shapes = partition.rows, put.request, put.request.shapes
    count = len(request.sample_ids)
    if put.new == count:
        rows = partition.admit(request.sample_ids, put.found, request.group_ids, now)
    else:
        rows = span_of(_admit_some(partition, put, now))
        table.arrivals.forget(rows)
    mask = partition.spec.mask(shapes)
    number = partition.blocks.add(request.location, request.nbytes, count * len(shapes))
    partition.shapes.update({name: (shape[0], shape[1]) for name, shape in shapes.items()})
    if put.lengths is not None:
        if put.new < count and not request.lengths_given:  # what a stage adds says nothing of the sample's length
            table.lengths[rows] = np.where(table.lengths[rows] < 0, put.lengths, table.lengths[rows])
        else:
            table.lengths[rows] = put.lengths
    if put.tags:
        table.tags.put_checked(rows, put.tags)
    if put.new == count:
        table.places.settle(rows, mask, number)
        table.produced[rows] = mask
        _remember(partition, rows, put, now)
        partition.queues.arrived(rows, mask)
        return
    before = table.produced[rows].copy()
    after = before | before.dtype.type(mask)
    table.places.move(rows, [partition.spec.fields.index(name) for name in shapes], number)
    table.produced[rows] = after
    partition.queues.became(rows, before, after)
    if put.tags:
        partition.queues.retagged(rows)


def _remember(partition: Partition, rows: Span, put: CheckedPut, now: float) -> None:
    """Know new samples by heart, if they have in common what most have."""
    request = put.request
    plain = request.tags is None or isinstance(request.tags, Mapping)
    if not isinstance(rows, slice) or not plain or request.group_ids is not None:
        return
    if put.lengths is not None and not every(put.lengths >= 0):
        return
    tags = cast("Mapping[str, Any] | None", request.tags)
    partition.rows.arrivals.add(Arrival(rows, now, request.sample_ids, request.lengths, tags or None))


def _admit_some(partition: Partition, put: CheckedPut, now: float) -> np.ndarray:
    """The rows of all samples of a put, some of which are new."""
    rows = put.found.rows
    if not put.new:
        return rows
    request, places = put.request, np.flatnonzero(rows == UNKNOWN)
    each = places.tolist()
    numbers = None if put.found.numbers is None else put.found.numbers[places]
    hashes = None if put.found.hashes is None else put.found.hashes[places]
    groups: Any = request.group_ids
    fresh = partition.admit(
        [request.sample_ids[at] for at in each],
        Found(rows[places], put.found.form, numbers, hashes),
        None if groups is None else [groups[at] for at in each],
        now,
    )
    rows = rows.copy()
    rows[places] = np.arange(fresh.start, fresh.stop) if isinstance(fresh, slice) else fresh
    return rows
