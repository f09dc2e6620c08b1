"""The client: the one boundary of the data plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunegym.dataplane.encoding import Column, encode
from tunegym.dataplane.errors import EpochError, FieldError, LeaseLostError, SampleError, SpecError
from tunegym.dataplane.gathering import Rows
from tunegym.dataplane.hosts.base import Host
from tunegym.dataplane.model import BatchMeta, OnFull, PartitionSpec, Tags, check_tags
from tunegym.dataplane.predicate import Predicate
from tunegym.dataplane.storage.base import BlockGoneError, Storage

LEASE_S = 600.0
"""How long a claim lasts whose owner lives and says nothing."""
READ_TRIES = 20
"""How often bytes are looked for again that went between the look at the ledger and the read."""


class DataPlaneClient:
    """Talks to one plane. Thread-safe; every process has its own. Made by ``connect`` and ``attach``.

    What is put returns when it is safe; what is claimed is a lease, until ``ack``, ``release``, or the end of this
    process or of ``lease_s``. Errors are ``DataPlaneError``, and leave nothing half done.

    Args:
        host: has the ledger.
        storage: has the bytes.
        owner: names this client at the host.
        lease_s: how long a claim lasts without ``extend``.
    """

    def __init__(self, host: Host, storage: Storage, owner: str, lease_s: float = LEASE_S) -> None:
        self._host = host
        self._storage = storage
        self._owner = owner
        self._lease_s = lease_s
        self._epochs: dict[str, int] = {}

    @property
    def durable(self) -> bool:
        """Whether the plane outlives its processes."""
        return self._host.durable

    # partitions ---------------------------------------------------------------------------------------

    def register_partition(
        self,
        partition_id: str,
        fields: Iterable[str],
        tasks: Iterable[str],
        capacity: int | None = None,
        group_size: int | None = None,
        on_full: OnFull = "block",
    ) -> None:
        """Make a partition. Again with the same: no effect; with something else: a ``SpecError``."""
        spec = PartitionSpec(partition_id, tuple(fields), tuple(tasks), capacity, group_size, on_full)
        self._epochs[partition_id] = self._host.call("register", {"spec": asdict(spec)})["epoch"]

    def delete_partition(self, partition_id: str) -> None:
        """All that is in it goes; who waits at it gets an ``UnknownPartitionError``."""
        self._host.call("delete", {"partition_id": partition_id})

    def seal(self, partition_id: str) -> None:
        """No new samples from now on: claims get the rest, then an ``EndOfStreamError``."""
        self._host.call("seal", {"partition_id": partition_id})

    # samples ------------------------------------------------------------------------------------------

    def put_samples(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        tags: Tags | Sequence[Tags] | None = None,
        group_ids: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> BatchMeta:
        """Write fields of samples, new ones or such as are there; when this returns, it is not lost.

        Args:
            partition_id: where.
            sample_ids: a text for each; ids are used once.
            fields: by name a column with a row for each: an array, a tensor, or a list of arrays or objects.
            tags: for each, or the same for all.
            group_ids: of each, in a partition with groups.
            timeout_s: how long to wait for room; None for ever.

        Raises:
            FullError: there was no room, in time or at all (``on_full="raise"``).
            EpochError: the weights of this producer vanished in a rewind: fetch the present ones; the next put is
                of the present epoch.
        """
        ids = _checked_ids(sample_ids)
        columns = {name: encode(values) for name, values in fields.items()}
        for name, column in columns.items():
            if column.rows != len(ids):
                raise FieldError(f"field {name!r} has {column.rows} rows for {len(ids)} samples")
        if isinstance(tags, Mapping):
            tags = [tags] * len(ids)
        plain = None if tags is None else list(check_tags(tags))
        groups = None if group_ids is None else list(group_ids)
        lengths = _lengths_of(columns)
        meta = BatchMeta(
            partition_id,
            tuple(ids),
            tuple(columns),
            sequence_lengths=None if lengths is None else tuple(lengths),
            tags=None if plain is None else tuple(plain),
            group_ids=None if groups is None else tuple(groups),
            epoch=self._epoch(partition_id),
        )
        if not ids:
            return meta
        location, nbytes = self._storage.write(partition_id, columns)
        request = {
            "partition_id": partition_id,
            "sample_ids": ids,
            "shapes": {name: column.shape_key for name, column in columns.items()},
            "location": location,
            "nbytes": nbytes,
            "lengths": lengths,
            "tags": plain,
            "group_ids": groups,
            "epoch": meta.epoch,
            "owner": self._owner,
        }
        try:
            self._host.call("put", request, timeout_s)
        except BaseException as error:
            self._storage.free([location])
            if isinstance(error, EpochError):
                self._epochs.pop(partition_id, None)
            raise
        self._storage.settle(location)
        return meta

    def write_tags(self, meta: BatchMeta) -> None:
        """Put the tags of a batch back, as ``stamp_tags`` changed them."""
        if meta.tags is not None and meta.size:
            tags = list(check_tags(meta.tags))
            given = {"partition_id": meta.partition_id, "sample_ids": list(meta.sample_ids), "tags": tags}
            self._host.call("write_tags", given)

    def clear_samples(self, partition_id: str, sample_ids: Iterable[str], reason: str | None = None) -> int:
        """Samples go, with their bytes; what is gone already is left alone. How many went.

        Bytes of samples that were acked into a version stay until a ``commit`` covers it.
        """
        given = {"partition_id": partition_id, "sample_ids": _checked_ids(list(sample_ids)), "reason": reason}
        return self._host.call("clear", given)

    # claims -------------------------------------------------------------------------------------------

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        where: Predicate | None = None,
        min_batch: int | None = None,
        timeout_s: float | None = 60.0,
    ) -> BatchMeta:
        """Up to ``batch_size`` samples that are ready for a task, at least ``min_batch`` (by default all).

        Raises:
            ClaimTimeoutError: not enough were ready in time.
            EndOfStreamError: the partition is sealed, and nothing is left.
        """
        if where is not None and not isinstance(where, Predicate):
            raise SpecError(
                f"where is {where!r:.60}, no predicate", hint='write for example Tag("weight_version") >= 3'
            )
        given = {
            "partition_id": partition_id,
            "task_name": task_name,
            "fields": list(required_fields),
            "batch_size": batch_size,
            "min_batch": batch_size if min_batch is None else min_batch,
            "owner": self._owner,
            "lease_s": self._lease_s,
            "where": None if where is None else where.plain(),
        }
        found = self._host.call("claim", given, timeout_s)
        ids = found["sample_ids"]
        return BatchMeta(
            partition_id,
            tuple(ids),
            tuple(required_fields),
            task_name,
            None if found["lengths"] is None else tuple(found["lengths"]),
            None if found["tags"] is None else tuple(found["tags"]),
            None if found["groups"] is None else tuple(found["groups"]),
            leases=tuple(found["leases"]),
            epoch=found["epoch"],
        )

    def ack(self, meta: BatchMeta, version: int | None = None) -> None:
        """The samples are consumed; with a version, until a ``rewind`` to before it.

        Raises:
            LeaseLostError: some of the claims are lost; none is acked.
        """
        if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
            raise SpecError(f"the version is {version!r:.40}", hint="give an integer")
        self._settle("ack", meta, version=version)

    def release(self, meta: BatchMeta) -> None:
        """The samples are given back, to be claimed before all others."""
        self._settle("release", meta)

    def extend(self, meta: BatchMeta) -> None:
        """The claims last for ``lease_s`` from now on."""
        self._settle("extend", meta, lease_s=self._lease_s)

    def _settle(self, operation: str, meta: BatchMeta, **more: Any) -> None:
        if meta.task_name is None or meta.leases is None:
            raise LeaseLostError("this batch is no claim", hint="ack, release and extend what claim_meta gave")
        if not meta.size:
            return
        given = {
            "partition_id": meta.partition_id,
            "task_name": meta.task_name,
            "sample_ids": list(meta.sample_ids),
            "leases": list(meta.leases),
        }
        self._host.call(operation, {**given, **more})

    def commit(self, partition_id: str, task_name: str, version: int) -> int:
        """A checkpoint covers all that was acked up to ``version``: what every task is done with goes."""
        return self._host.call("commit", {"partition_id": partition_id, "task_name": task_name, "version": version})

    def rewind(self, partition_id: str, task_name: str, to_version: int) -> Mapping[str, int]:
        """A trainer is back at a checkpoint: what it had trained past it is given back.

        What weights after that version produced is cleared as ``orphaned``; puts of the old epoch are refused.
        """
        given = {"partition_id": partition_id, "task_name": task_name, "to_version": to_version}
        found = self._host.call("rewind", given)
        self._epochs[partition_id] = found["epoch"]
        return found

    def check_consumption_status(self, partition_id: str, task_names: Iterable[str]) -> bool:
        """Whether every sample that is not cleared is acked by each of the tasks."""
        return self._host.call("consumed", {"partition_id": partition_id, "task_names": list(task_names)})

    # reads --------------------------------------------------------------------------------------------

    def get_samples(self, meta: BatchMeta, select_fields: Sequence[str]) -> dict[str, Rows]:
        """The rows of fields, in the order of the batch. Raises for what was not produced, or is cleared."""
        fields = list(select_fields)
        if not fields:
            raise FieldError("no field is named", hint="name what is to be read: there is no implicit all")
        if not meta.size:
            return {name: Rows([]) for name in fields}
        for _ in range(READ_TRIES):
            with contextlib.suppress(BlockGoneError):  # written again, or cleared, in between: the next look tells
                return self._read(meta, fields)
        return self._read(meta, fields)

    def _read(self, meta: BatchMeta, fields: list[str]) -> dict[str, Rows]:
        given = {"partition_id": meta.partition_id, "sample_ids": list(meta.sample_ids), "fields": fields}
        found = self._host.call("locate", given)
        locations = dict(found["blocks"])
        wanted = found["fields"]
        return {name: self._gathered(name, wanted[name][0], wanted[name][1], locations) for name in fields}

    def get_data(self, meta: BatchMeta, select_fields: Sequence[str] | None = None) -> dict[str, Rows]:
        """As ``get_samples``, with the fields that the batch names if none are given."""
        return self.get_samples(meta, meta.fields if select_fields is None else select_fields)

    def _gathered(
        self, name: str, blocks: Sequence[int], places: Sequence[int], locations: Mapping[int, Mapping[str, Any]]
    ) -> Rows:
        """Runs of one block at a time, in the order of the batch."""
        parts: list[Any] = []
        start = 0
        for at in range(1, len(blocks) + 1):
            if at == len(blocks) or blocks[at] != blocks[start]:
                parts.append(self._storage.read(locations[blocks[start]], name, places[start:at]))
                start = at
        return Rows(parts)

    # the rest -----------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """How the plane stands, by partition."""
        return self._host.call("stats", {})

    async def put_samples_async(self, *args: Any, **kwargs: Any) -> BatchMeta:
        """``put_samples`` without blocking the event loop."""
        return await asyncio.to_thread(self.put_samples, *args, **kwargs)

    async def claim_meta_async(self, *args: Any, **kwargs: Any) -> BatchMeta:
        """``claim_meta`` without blocking the event loop."""
        return await asyncio.to_thread(self.claim_meta, *args, **kwargs)

    def close(self) -> None:
        """Give back what is still claimed, and let go. Calling it twice is fine."""
        self._host.close()
        self._storage.close()

    def __enter__(self) -> DataPlaneClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _epoch(self, partition_id: str) -> int:
        """The epoch that this producer belongs to: that of its first sight of the partition, or after a refusal."""
        known = self._epochs.get(partition_id)
        if known is None:
            specs = self._host.call("specs", {})
            self._epochs.update({one["partition_id"]: one["epoch"] for one in specs})
            known = self._epochs.get(partition_id, 0)
        return known


def _checked_ids(sample_ids: Sequence[str]) -> list[str]:
    ids = list(sample_ids)
    for one in ids:
        if type(one) is not str or not one:
            raise SampleError(f"{one!r:.60} is no sample id", hint="ids are texts of at least one character")
    return ids


def _lengths_of(columns: Mapping[str, Column]) -> list[int] | None:
    """The lengths of the first column whose rows have any that differ; else of the first that has one."""
    known = [column.lengths for column in columns.values() if column.lengths is not None]
    if not known:
        return None
    return list(next((one for one in known if len(set(one)) > 1), known[0]))
