"""The whole of a ledger as plain data and arrays, and back: exact, and without pickle."""

from __future__ import annotations

import struct
import zlib
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

_FORMAT = 3
_ALIGN = 8
_MAGIC = b"tgledger"
_HEAD = struct.Struct("<8sQQ")
_LOST = "use the one before it, or start with an empty folder"


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
                "lags": [[list(one.counts), one.total] for one in claims.lags],
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
    """What ``save`` gives, as one piece, with its length and a checksum."""
    header, arrays = save(ledger)
    shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = orjson.dumps({"header": header, "arrays": shapes})
    parts: list[Any] = [len(text).to_bytes(_ALIGN, "little"), text, bytes(-len(text) % _ALIGN)]
    for array in arrays:
        parts += [np.ascontiguousarray(array).data.cast("B") if array.size else b"", bytes(-array.nbytes % _ALIGN)]
    total, check = 0, 0
    for part in parts:
        total, check = total + len(part), zlib.crc32(part, check)
    return b"".join([_HEAD.pack(_MAGIC, total, check), *parts])


def restore(data: bytes | memoryview) -> Ledger:
    """The ledger of a snapshot. Raises ``StorageError`` if it is none, or not as it was written."""
    body = _checked(memoryview(data))
    try:
        length = int.from_bytes(body[:_ALIGN], "little")
        plain = orjson.loads(body[_ALIGN : _ALIGN + length])
        at = _ALIGN + length + -length % _ALIGN
        arrays: list[np.ndarray] = []
        for kind, shape in plain["arrays"]:
            count = int(np.prod(shape))
            arrays.append(np.frombuffer(body, dtype=kind, count=count, offset=at).reshape(shape))
            at += arrays[-1].nbytes + -arrays[-1].nbytes % _ALIGN
        return load(plain["header"], arrays)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StorageError(f"the snapshot can't be read: {error}") from error


def _checked(data: memoryview) -> memoryview:
    """What is behind the head, if it is all there, and as it was written."""
    if len(data) < _HEAD.size or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise StorageError("this is no snapshot of a ledger", hint=_LOST)
    _, total, check = _HEAD.unpack(data[: _HEAD.size])
    body = data[_HEAD.size :]
    if len(body) != total:
        raise StorageError(f"the snapshot has {len(body):,} of {total:,} bytes: it was cut", hint=_LOST)
    if zlib.crc32(body) != check:
        raise StorageError("the snapshot is damaged: its checksum is another one", hint=_LOST)
    return body
