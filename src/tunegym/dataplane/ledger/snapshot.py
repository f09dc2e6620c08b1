"""The state of a whole ledger as bytes, and back.

A snapshot has the columns of every partition as they are, and a header of plain data for the rest. Everything that
follows from the columns (ids, counts, free rows) is derived again. Requests that wait are left out: they are calls
that their callers repeat. The bytes are a ``.npz`` archive without pickled objects.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.ledger.leases import Lease
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.partition import Partition
from tunegym.dataplane.ledger.queues import Group
from tunegym.dataplane.ledger.samples import ACKED, LEASED, Block, Samples, TagColumns, objects
from tunegym.dataplane.model import PartitionSpec

FORMAT = 4

Arrays = dict[str, np.ndarray]
_PLAIN = ("epoch", "sealed", "produced", "claimed", "redelivered", "gone", "shapes")


def snapshot(ledger: Ledger) -> bytes:
    """The ledger as bytes."""
    header, arrays = save(ledger)
    buffer = io.BytesIO()
    arrays["header"] = np.frombuffer(orjson.dumps(header), dtype=np.uint8)
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def restore(data: bytes | memoryview) -> Ledger:
    """The ledger of a snapshot. Raises ``StorageError`` if the bytes are no snapshot, or of another format."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = dict(archive)
        header = orjson.loads(arrays.pop("header").tobytes())
        return load(header, arrays)
    except (ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(
            f"the ledger's snapshot can't be read: {error}", hint="it is damaged, or of an older version"
        ) from error


def save(ledger: Ledger) -> tuple[dict[str, Any], Arrays]:
    """A header of plain data, and arrays by name. The arrays may be views: use them at once."""
    arrays: Arrays = {}
    header = {
        "format": FORMAT,
        "lease": ledger.lease,
        "waiter": ledger.waiter,
        "freed": list(ledger.freed),
        "partitions": [
            _save_partition(partition, f"{at}/", arrays) for at, partition in enumerate(ledger.partitions.values())
        ],
    }
    return header, arrays


def load(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Ledger:
    """The ledger again. Raises ``StorageError`` for another format."""
    if header.get("format") != FORMAT:
        raise StorageError(
            f"the snapshot is of format {header.get('format')!r}, not {FORMAT}",
            hint="use the version that wrote it, or start with an empty folder",
        )
    ledger = Ledger(header["lease"])
    ledger.waiter, ledger.freed = header["waiter"], list(header["freed"])
    for at, plain in enumerate(header["partitions"]):
        partition = _load_partition(plain, f"{at}/", arrays, ledger.freed)
        ledger.partitions[partition.spec.partition_id] = partition
    return ledger


def _save_partition(partition: Partition, name: str, arrays: Arrays) -> dict[str, Any]:
    samples, versions = partition.samples, partition.versions
    used = int(np.flatnonzero(samples.resident).max(initial=-1)) + 1
    arrays.update({name + column: getattr(samples, column)[..., :used] for column in Samples.COLUMNS})
    arrays[name + "condemned"] = np.fromiter(partition.condemned, dtype=np.int64)
    arrays[name + "leased_rows"] = _joined([lease.rows for lease in partition.leases.known.values()])
    acked = [(task, one, _joined(rows)) for task, some in enumerate(versions.uncovered) for one, rows in some.items()]
    arrays[name + "acked_rows"] = _joined([rows for _, _, rows in acked])
    queues = [
        (task, mask, one.units()) for task, some in enumerate(partition.queues.by_task) for mask, one in some.items()
    ]
    arrays[name + "queues"] = _joined([units for _, _, units in queues])
    groups = [[at, one.name, one.expected, list(one.members), one.away] for at, one in partition.groups.known.items()]
    return {
        "spec": asdict(partition.spec),
        **{one: getattr(partition, one) for one in _PLAIN},
        "lags": [[one.counts, one.total] for one in partition.lags],
        "condemned": list(partition.condemned.values()),
        "arrived": samples.arrived,
        "names": samples.names[:used][samples.resident[:used]].tolist(),
        "retired": list(samples.retired),
        "tags": [
            _save_tag(samples.tags, tag, used, f"{name}tag/{at}/", arrays) for at, tag in enumerate(samples.tags.values)
        ],
        "last_block": samples.blocks.last,
        "blocks": [[number, dict(one.location), one.nbytes, one.live] for number, one in samples.blocks.known.items()],
        "groups": groups if partition.groups.used else None,
        "queues": [[task, mask, len(units)] for task, mask, units in queues],
        "leases": [
            [one.number, one.task, one.owner, one.left, partition.leases.timers.get(one.number), len(one.rows)]
            for one in partition.leases.known.values()
        ],
        "committed": versions.committed,
        "acked": [[task, one, len(rows)] for task, one, rows in acked],
    }


def _load_partition(
    plain: Mapping[str, Any], name: str, arrays: Mapping[str, np.ndarray], freed: list[Any]
) -> Partition:
    partition = Partition(PartitionSpec(**plain["spec"]), freed)
    for one in _PLAIN:
        setattr(partition, one, plain[one])
    partition.gone = Counter(plain["gone"])
    for lag, (counts, total) in zip(partition.lags, plain["lags"], strict=True):
        lag.counts, lag.total = counts, total
    partition.condemned = dict(zip(arrays[name + "condemned"].tolist(), plain["condemned"], strict=True))
    _load_samples(partition.samples, plain, name, arrays)
    samples = partition.samples
    if plain["groups"] is not None:
        partition.groups.restore(
            {
                at: Group(title, expected, dict.fromkeys(rows), away)
                for at, title, expected, rows, away in plain["groups"]
            }
        )
    partition.resident = len(plain["names"])
    partition.alive = int(np.count_nonzero(samples.alive))
    for task, states in enumerate(samples.states):
        partition.acked[task] = int(np.count_nonzero(samples.alive & (states >= ACKED)))
        partition.leased[task] = int(np.count_nonzero(samples.alive & (states == LEASED)))
    for (task, mask, _), units in _split(plain["queues"], arrays[name + "queues"]):
        partition.queues.restore(task, mask, units)
    for (number, task, owner, left, expires, _), rows in _split(plain["leases"], arrays[name + "leased_rows"]):
        partition.leases.add(Lease(number, task, owner, rows, left), expires)
    partition.versions.committed = plain["committed"]
    for (task, version, _), rows in _split(plain["acked"], arrays[name + "acked_rows"]):
        partition.versions.add(task, version, rows)
    return partition


def _load_samples(samples: Samples, plain: Mapping[str, Any], name: str, arrays: Mapping[str, np.ndarray]) -> None:
    used = len(arrays[name + "resident"])
    samples.reserve(used)
    for column in Samples.COLUMNS:
        getattr(samples, column)[..., :used] = arrays[name + column]
    samples.restore(plain["names"], plain["retired"])
    samples.arrived = plain["arrived"]
    for at, (tag, values) in enumerate(plain["tags"]):
        rows = arrays[f"{name}tag/{at}/rows"]
        typed = objects(values) if values is not None else arrays[f"{name}tag/{at}/values"]
        samples.tags.put(rows, [(tag, None, typed.dtype, typed)])
    samples.blocks.last = plain["last_block"]
    samples.blocks.known = {number: Block(location, nbytes, live) for number, location, nbytes, live in plain["blocks"]}
    samples.blocks.nbytes = sum(one.nbytes for one in samples.blocks.known.values())


def _save_tag(tags: TagColumns, tag: str, used: int, name: str, arrays: Arrays) -> list[Any]:
    """Texts and mixed values go into the header, others into an array."""
    rows = arrays[name + "rows"] = np.flatnonzero(tags.there[tag][:used])
    values = tags.values[tag][rows]
    if values.dtype == object:
        return [tag, values.tolist()]
    arrays[name + "values"] = values
    return [tag, None]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _split(heads: Sequence[Sequence[Any]], joined: np.ndarray) -> Iterator[tuple[Sequence[Any], np.ndarray]]:
    """Each head with its part of the array; the last entry of a head is the length of that part."""
    ends = np.cumsum([head[-1] for head in heads], dtype=np.int64)
    return zip(heads, np.split(joined, ends)[: len(heads)], strict=True)
