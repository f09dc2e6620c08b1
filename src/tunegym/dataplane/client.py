"""The client: the one boundary of the data plane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunegym.dataplane import arguments
from tunegym.dataplane.calls import Calls, of
from tunegym.dataplane.errors import FieldError, LeaseLostError
from tunegym.dataplane.gathering import Rows
from tunegym.dataplane.hosts.base import Handle, Host
from tunegym.dataplane.ledger.requests import plain_tickets
from tunegym.dataplane.model import BatchMeta, OnFull, PartitionSpec, Tags, check_tags
from tunegym.dataplane.predicate import Predicate
from tunegym.dataplane.storage.base import Storage
from tunegym.dataplane.threads import in_a_thread

LEASE_S = 600.0
"""How long a claim lasts whose owner lives and says nothing."""


class DataPlaneClient:
    """Talks to one plane. Thread-safe; every process has its own. Made by ``connect`` and ``attach``.

    What is put returns when it is safe; what is claimed is a lease, until ``ack``, ``release``, or the end of this
    process or of ``lease_s``. Errors are ``DataPlaneError``, and leave nothing half done. Interrupts (Ctrl-C, and an
    asyncio task that is cancelled) don't either: a put is there wholly or not at all, and what a claim got that its
    caller never saw is given back.

    Args:
        host: has the ledger.
        storage: has the bytes.
        owner: names this client at the host.
        lease_s: how long a claim lasts without ``extend``.
    """

    def __init__(self, host: Host, storage: Storage, owner: str, lease_s: float = LEASE_S) -> None:
        self._host = host
        self._storage = storage
        self._lease_s = lease_s
        self._calls = Calls(host, storage, owner, lease_s)
        self._calls.see_epochs()

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
        spec = PartitionSpec(
            arguments.checked_name("partition_id", partition_id),
            tuple(arguments.checked_names("fields", fields)),
            tuple(arguments.checked_names("tasks", tasks)),
            None if capacity is None else arguments.checked_integer("capacity", capacity, 1),
            None if group_size is None else arguments.checked_integer("group_size", group_size, 1),
            on_full,
        )
        epoch = self._host.call("register", {"spec": asdict(spec)})["epoch"]
        self._calls.epochs.setdefault(partition_id, epoch)  # whoever knows it has no newer weights for having asked

    def delete_partition(self, partition_id: str) -> None:
        """All that is in it goes; who waits at it gets an ``UnknownPartitionError``."""
        self._host.call("delete", of(partition_id))
        self._calls.epochs.pop(partition_id, None)

    def seal(self, partition_id: str) -> None:
        """No new samples from now on: claims get the rest, then an ``EndOfStreamError``."""
        self._host.call("seal", of(partition_id))

    def epoch(self, partition_id: str) -> int:
        """How often the partition was rewound: take it before you fetch weights, and give it with what they make."""
        return self._calls.epoch(partition_id)

    # samples ------------------------------------------------------------------------------------------

    def put_samples(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        tags: Tags | Sequence[Tags] | None = None,
        group_ids: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        lengths: Sequence[int] | None = None,
        epoch: int | None = None,
    ) -> BatchMeta:
        """Write fields of samples, new ones or such as are there; when this returns, it is not lost.

        Args:
            partition_id: where.
            sample_ids: a text for each; ids are used once.
            fields: by name a column with a row for each: an array, a tensor, or a list of arrays or objects.
            tags: for each, or the same for all.
            group_ids: of each, in a partition with groups.
            timeout_s: how long to wait for room; None for ever.
            lengths: of each sample, from now on. By default those of the first column whose rows differ in length,
                else that was given row by row, else whose rows have one; and only for samples of which none was
                recorded before.
            epoch: of the weights that made the rollouts: what ``epoch`` gave before they were fetched. By default
                the one that this client is of, all of its threads: that in which it joined, registered the partition,
                rewound it, or was last refused.

        Raises:
            FullError: there was no room, in time or at all (``on_full="raise"``).
            EpochError: the weights of this producer vanished in a rewind: fetch the present ones. Without ``epoch``
                the next put of this client is of the present epoch, whichever thread makes it.
        """
        given = partition_id, sample_ids, fields, tags, group_ids, timeout_s, lengths, epoch
        return self._calls.put(Handle(), *given)

    def write_tags(self, meta: BatchMeta) -> None:
        """Put the tags of a batch back, as ``stamp_tags`` changed them."""
        arguments.checked_meta(meta)
        if meta.tags is not None and meta.size:
            tags = list(check_tags(meta.tags))
            given = {"partition_id": meta.partition_id, "sample_ids": list(meta.sample_ids), "tags": tags}
            self._host.call("write_tags", given)

    def clear_samples(self, partition_id: str, sample_ids: Iterable[str], reason: str | None = None) -> int:
        """Samples go, with their bytes; what is gone already is left alone. How many went.

        Bytes of samples that were acked into a version stay until a ``commit`` covers it.
        """
        if reason is not None:
            arguments.checked_name("reason", reason)
        given = {**of(partition_id), "sample_ids": arguments.checked_ids(sample_ids), "reason": reason}
        cleared = self._host.call("clear", given)
        self._storage.trim()
        return cleared

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
        given = partition_id, task_name, required_fields, batch_size, where, min_batch, timeout_s
        return self._calls.claim(Handle(), *given)

    def ack(self, meta: BatchMeta, version: int | None = None) -> None:
        """The samples are consumed; with a version, until a ``rewind`` to before it.

        Raises:
            LeaseLostError: some of the claims are lost; none is acked.
        """
        known = None if version is None else arguments.checked_integer("version", version)
        self._settle("ack", meta, version=known)
        self._storage.trim()

    def release(self, meta: BatchMeta) -> None:
        """The samples are given back, to be claimed before all others."""
        self._settle("release", meta)

    def extend(self, meta: BatchMeta) -> None:
        """The claims last for ``lease_s`` from now on."""
        self._settle("extend", meta, lease_s=self._lease_s)

    def _settle(self, operation: str, meta: BatchMeta, **more: Any) -> None:
        arguments.checked_meta(meta)
        if meta.task_name is None or meta.leases is None:
            raise LeaseLostError("this batch is no claim", hint="ack, release and extend what claim_meta gave")
        if not meta.size:
            return
        given = {
            "partition_id": meta.partition_id,
            "task_name": meta.task_name,
            "sample_ids": list(meta.sample_ids),
            "leases": plain_tickets(meta.leases),
        }
        self._host.call(operation, {**given, **more})

    def commit(self, partition_id: str, task_name: str, version: int) -> int:
        """A checkpoint covers all that was acked up to ``version``: what every task is done with goes."""
        known = arguments.checked_integer("version", version)
        covered = self._host.call("commit", {**of(partition_id, task_name), "version": known})
        self._storage.trim()
        return covered

    def rewind(self, partition_id: str, task_name: str, to_version: int) -> Mapping[str, int]:
        """A trainer is back at a checkpoint: what it had trained past it is given back.

        What weights after that version produced is cleared as ``orphaned``; puts of the old epoch are refused.
        """
        known = arguments.checked_integer("to_version", to_version)
        found = self._host.call("rewind", {**of(partition_id, task_name), "to_version": known})
        self._calls.epochs[partition_id] = found["epoch"]
        return found

    def check_consumption_status(self, partition_id: str, task_names: Iterable[str]) -> bool:
        """Whether every sample that is not cleared is acked by each of the tasks."""
        given = {**of(partition_id), "task_names": arguments.checked_names("task_names", task_names)}
        return self._host.call("consumed", given)

    # reads --------------------------------------------------------------------------------------------

    def get_samples(self, meta: BatchMeta, select_fields: Sequence[str]) -> dict[str, Rows]:
        """The rows of fields, in the order of the batch. Raises for what was not produced, or is cleared."""
        arguments.checked_meta(meta)
        fields = arguments.checked_names("select_fields", select_fields)
        if not fields:
            raise FieldError("no field is named", hint="name what is to be read: there is no implicit all")
        return self._calls.read(meta, fields)

    def get_data(self, meta: BatchMeta, select_fields: Sequence[str] | None = None) -> dict[str, Rows]:
        """As ``get_samples``, with the fields that the batch names if none are given."""
        return self.get_samples(meta, arguments.checked_meta(meta).fields if select_fields is None else select_fields)

    # the rest -----------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """How the plane stands, by partition."""
        return self._host.call("stats", {})

    async def put_samples_async(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        tags: Tags | Sequence[Tags] | None = None,
        group_ids: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        lengths: Sequence[int] | None = None,
        epoch: int | None = None,
    ) -> BatchMeta:
        """``put_samples`` without blocking the event loop. If it is cancelled, it is there wholly or not at all."""
        handle = Handle()
        given = partition_id, sample_ids, fields, tags, group_ids, timeout_s, lengths, epoch
        return await in_a_thread(lambda: self._calls.put(handle, *given), lambda: self._host.abandon(handle))

    async def claim_meta_async(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        where: Predicate | None = None,
        min_batch: int | None = None,
        timeout_s: float | None = 60.0,
    ) -> BatchMeta:
        """``claim_meta`` without blocking the event loop. If it is cancelled, what it got is given back."""
        handle = Handle()
        given = partition_id, task_name, required_fields, batch_size, where, min_batch, timeout_s
        return await in_a_thread(lambda: self._calls.claim(handle, *given), lambda: self._host.abandon(handle))

    def close(self) -> None:
        """Give back what is still claimed, and let go. Calling it twice is fine."""
        self._host.close()
        self._storage.close()

    def __enter__(self) -> DataPlaneClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
