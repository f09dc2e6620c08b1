"""The state of a whole ledger as bytes, and back.

A snapshot has the columns of every partition as they are, and a header of plain data for the rest. Everything that
follows from these (ids, counts, free rows) is derived again. Requests that wait are left out: they are calls that their
callers repeat.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from tunegym.core import wire
from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.ledger.leases import Lease
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.partition import Partition
from tunegym.dataplane.ledger.queues import Group
from tunegym.dataplane.ledger.samples import ACKED, Block, Samples, objects
from tunegym.dataplane.model import PartitionSpec

_LARGEST = 1 << 48
_PLAIN = ("epoch", "sealed", "claimed", "redelivered", "gone", "shapes")


def snapshot(ledger: Ledger) -> bytes:
    """The ledger as bytes."""
    header = {
        "lease": ledger.lease,
        "freed": list(ledger.freed),
        "partitions": [_save_partition(partition) for partition in ledger.partitions.values()],
    }
    columns = [_save_columns(partition.samples) for partition in ledger.partitions.values()]
    return wire.encode([orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY), columns], _LARGEST)


def restore(data: bytes) -> Ledger:
    """The ledger of a snapshot. Raises ``StorageError`` if the bytes are none."""
    try:
        text, columns = wire.decode(data, _LARGEST)
        header = orjson.loads(text)
        ledger = Ledger(header["lease"])
        ledger.freed += header["freed"]
        for plain, own in zip(header["partitions"], columns, strict=True):
            partition = Partition(PartitionSpec(**plain["spec"]), ledger.freed)
            _load_columns(partition.samples, plain, own)
            _load_partition(partition, plain)
            ledger.partitions[partition.spec.partition_id] = partition
    except (wire.WireError, ValueError, KeyError, TypeError, IndexError) as error:
        what = f"the ledger's snapshot can't be read: {error}"
        raise StorageError(what, hint="it is damaged: start with an empty folder") from error
    return ledger


def _save_columns(samples: Samples) -> dict[str, np.ndarray]:
    used = int(np.flatnonzero(samples.resident).max(initial=-1)) + 1
    columns = {name: getattr(samples, name)[..., :used] for name in Samples.COLUMNS}
    for tag, values in samples.tags.values.items():
        columns[f"has tag {tag}"] = samples.tags.there[tag][:used]
        if values.dtype != object:
            columns[f"tag {tag}"] = values[:used]
    return columns


def _save_partition(partition: Partition) -> dict[str, Any]:
    samples, tags, leases = partition.samples, partition.samples.tags, partition.leases
    return {
        "spec": asdict(partition.spec),
        **{name: getattr(partition, name) for name in _PLAIN},
        "lags": [[one.counts, one.total] for one in partition.lags],
        "condemned": list(partition.condemned.items()),
        "retained": list(partition.retained),
        "arrived": samples.arrived,
        "names": samples.names[samples.resident].tolist(),
        "retired": list(samples.retired),
        "tags": {
            tag: values[tags.there[tag]].tolist() if values.dtype == object else None
            for tag, values in tags.values.items()
        },
        "last_block": samples.blocks.last,
        "blocks": [[at, one.location, one.nbytes, one.cells, one.live] for at, one in samples.blocks.known.items()],
        "grouped": partition.groups.used,
        "groups": [
            [at, one.name, one.expected, list(one.members), one.away] for at, one in partition.groups.known.items()
        ],
        "queues": [[[mask, one.units()] for mask, one in queues.items()] for queues in partition.queues.by_task],
        "leases": [[one.number, one.task, one.owner, one.rows, one.left, one.since] for one in leases.known.values()],
        "expires": [leases.expires.get(number) for number in leases.known],
        "committed": partition.versions.committed,
        "uncovered": [[[one, rows] for one, rows in some.items()] for some in partition.versions.uncovered],
    }


def _load_columns(samples: Samples, plain: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> None:
    used = len(columns["resident"])
    samples.reserve(used)
    for name in Samples.COLUMNS:
        getattr(samples, name)[..., :used] = columns[name]
    samples.restore(plain["names"], plain["retired"])
    samples.arrived = plain["arrived"]
    for tag, texts in plain["tags"].items():
        rows = np.flatnonzero(columns[f"has tag {tag}"])
        values = columns[f"tag {tag}"][rows] if texts is None else objects(texts)
        samples.tags.put(rows, [(tag, None, values.dtype, values)])
    samples.blocks.last = plain["last_block"]
    samples.blocks.known = {number: Block(*block) for number, *block in plain["blocks"]}
    samples.blocks.nbytes = sum(one.nbytes for one in samples.blocks.known.values())
    samples.blocks.live_bytes = sum(one.live_bytes for one in samples.blocks.known.values())


def _load_partition(partition: Partition, plain: Mapping[str, Any]) -> None:
    samples, versions = partition.samples, partition.versions
    for name in _PLAIN:
        setattr(partition, name, plain[name])
    partition.gone = Counter(plain["gone"])
    for lag, (counts, total) in zip(partition.lags, plain["lags"], strict=True):
        lag.counts, lag.total = counts, total
    partition.condemned = dict(plain["condemned"])
    partition.retained = dict.fromkeys(plain["retained"])
    groups = {
        at: Group(name, expected, dict.fromkeys(rows), away) for at, name, expected, rows, away in plain["groups"]
    }
    partition.groups.restore(groups, plain["grouped"])
    for task, states in enumerate(samples.states):
        partition.acked[task] = int(np.count_nonzero(samples.alive & (states >= ACKED)))
        for mask, units in plain["queues"][task]:
            partition.queues.restore(task, mask, np.array(units, dtype=np.int64))
        for version, parts in plain["uncovered"][task]:
            versions.uncovered[task][version] = [np.array(rows, dtype=np.int64) for rows in parts]
    versions.committed = plain["committed"]
    for (number, task, owner, rows, left, since), expires in zip(plain["leases"], plain["expires"], strict=True):
        lease = Lease(number, task, owner, np.array(rows, dtype=np.int64), left, since)
        partition.leases.add(lease, math.inf if expires is None else expires)
