"""The whole of a ledger as plain data and arrays, and back: exact, and without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.ledger.held import Held
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.partition import Partition
from tunegym.dataplane.model import PartitionSpec

_FORMAT = 1
_ALIGN = 8


def save(ledger: Ledger) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A header of plain data, which refers to arrays by their places. The arrays may be views: use them at once.

    Those who wait are left out: they are calls, which their callers repeat.
    """
    arrays: list[np.ndarray] = []

    def keep(array: np.ndarray) -> int:
        arrays.append(array)
        return len(arrays) - 1

    common = ledger._common
    partitions = []
    for held in ledger._held.values():
        claims = held.claims
        partitions.append(
            {
                "spec": asdict(held.partition.spec),
                "partition": held.partition.state(keep),
                "versions": claims.versions.state(keep),
                "claimed": claims.claimed,
                "redelivered": claims.redelivered,
                "lags": [[one.counts.tolist(), one.total] for one in claims.lags],
            }
        )
    header = {
        "format": _FORMAT,
        "lease": common.lease,
        "waiter": common.waiter,
        "now": common.now,
        "freed": [dict(one) for one in common.freed],
        "partitions": partitions,
    }
    return header, arrays


def load(header: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Ledger:
    """The ledger again; the arrays are not kept. Raises ``StorageError`` for a format of another time."""
    if header.get("format") != _FORMAT:
        raise StorageError(
            f"the snapshot is of format {header.get('format')!r}, not {_FORMAT}",
            hint="use the version that wrote it, or start with an empty folder",
        )
    ledger = Ledger()
    common = ledger._common
    common.lease, common.waiter, common.now = header["lease"], header["waiter"], header["now"]
    common.freed = list(header["freed"])
    for one in header["partitions"]:
        given = one["spec"]
        spec = PartitionSpec(**{**given, "fields": tuple(given["fields"]), "tasks": tuple(given["tasks"])})
        held = Held(Partition.restored(spec, one["partition"], arrays), common)
        held.claims.versions.restore(one["versions"], arrays)
        held.claims.claimed, held.claims.redelivered = list(one["claimed"]), list(one["redelivered"])
        for lag, (counts, total) in zip(held.claims.lags, one["lags"], strict=True):
            lag.counts[:], lag.total = counts, total
        ledger._held[spec.partition_id] = held
    return ledger


def snapshot(ledger: Ledger) -> bytes:
    """What ``save`` gives, as one piece."""
    header, arrays = save(ledger)
    shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = orjson.dumps({"header": header, "arrays": shapes})
    parts = [len(text).to_bytes(_ALIGN, "little"), text, bytes(-len(text) % _ALIGN)]
    for array in arrays:
        parts += [np.ascontiguousarray(array).data.cast("B") if array.size else b"", bytes(-array.nbytes % _ALIGN)]
    return b"".join(parts)


def restore(data: bytes | memoryview) -> Ledger:
    """The ledger of a snapshot. Raises ``StorageError`` if it is none."""
    try:
        length = int.from_bytes(data[:_ALIGN], "little")
        plain = orjson.loads(data[_ALIGN : _ALIGN + length])
        at = _ALIGN + length + -length % _ALIGN
        arrays: list[np.ndarray] = []
        for kind, shape in plain["arrays"]:
            count = int(np.prod(shape))
            arrays.append(np.frombuffer(data, dtype=kind, count=count, offset=at).reshape(shape))
            at += arrays[-1].nbytes + -arrays[-1].nbytes % _ALIGN
        return load(plain["header"], arrays)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StorageError(f"the snapshot can't be read: {error}") from error
