"""``DataPlaneClient``: the one boundary of the data plane.

A put encodes the columns, writes the bytes to the storage, and tells the ledger at the host. A claim asks the ledger
for samples and gets a lease on them. A read asks the ledger where the bytes are and maps them from the storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from tunegym.dataplane import model
from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import Column, encode
from tunegym.dataplane.errors import (
    ClosedError,
    DataPlaneError,
    FieldError,
    LeaseLostError,
    SampleError,
    SpecError,
    StorageError,
)
from tunegym.dataplane.hosts.operations import BEGAN, Handle, Host
from tunegym.dataplane.model import BatchMeta, OnFull, PartitionSpec, Tags, checked_integer, checked_name, checked_names
from tunegym.dataplane.predicate import Order, Predicate, TagOrder
from tunegym.dataplane.storage import BlockGoneError, Storage

READ_TRIES = 20
"""How often a read locates samples again whose bytes moved in between."""

T = TypeVar("T")
P = ParamSpec("P")
Caller = TypeVar("Caller", "DataPlaneClient", "Producer")
_HANDLE: ContextVar[Handle | None] = ContextVar("_HANDLE", default=None)
"""Of the put or claim that the current thread was started for."""


def _awaitable(call: Callable[Concatenate[Caller, P], T]) -> Callable[Concatenate[Caller, P], Coroutine[Any, Any, T]]:
    """The put or claim for asyncio. When cancelled, it is abandoned before the cancellation continues.

    Each call has its own daemon thread, not one of a pool: a full pool of waiting claims would block the put that they
    wait for.
    """

    @functools.wraps(call)
    async def in_thread(self: Caller, /, *arguments: P.args, **named: P.kwargs) -> T:
        handle = Handle()

        def run() -> T:
            _HANDLE.set(handle)
            return call(self, *arguments, **named)

        waiting = _started(run)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(lambda done: done.exception())  # retrieve it: nothing else does
            await asyncio.shield(_started(lambda: self._host.abandon(handle)))
            raise

    return in_thread


class DataPlaneClient:
    """A client of one plane. Thread-safe; each process makes its own with ``connect`` or ``attach``.

    A put is safe when it returns. A claim is a lease until ``ack``, ``release``, the end of this client, or the end of
    ``lease_s``, if it is given. Errors are ``DataPlaneError`` and leave nothing half done; after a ``HostTimeoutError``
    the call may still take effect, as a whole. After Ctrl-C or in a cancelled asyncio task a put has taken effect
    completely or not at all, and a claim that was not returned is released. ``put_samples_async`` and
    ``claim_meta_async`` do the same without blocking an event loop.

    Args:
        host: holds the ledger.
        storage: holds the bytes.
        owner: the name of this client at the host.
        lease_s: the duration of a lease without ``extend``; None for as long as this client is connected.
        url: by which other processes attach to the plane.
    """

    def __init__(self, host: Host, storage: Storage, owner: str, lease_s: float | None = None, url: str = "") -> None:
        self._host = host
        self._storage = storage
        self._owner = owner
        self._lease_s = lease_s
        self.url = url
        self._pid = os.getpid()
        host.call("specs", {})  # raises here if the host can't be reached

    @property
    def durable(self) -> bool:
        """Whether the plane outlives its processes."""
        return self._host.durable

    def _call(self, operation: str, **arguments: Any) -> Any:
        self._check_process()
        return self._host.call(operation, arguments)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                "this client belongs to its parent process: this process is a fork of it",
                hint="call connect or attach in each process (memory:// planes can't be shared between processes)",
            )

    # partitions ---------------------------------------------------------------------------------------

    def register_partition(
        self,
        partition_id: str,
        fields: Iterable[str],
        tasks: Iterable[str],
        capacity: int | None = None,
        group_size: int | None = None,
        on_full: OnFull = "block",
        max_attempts: int | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        """Create a partition. Registering the same spec again has no effect; another spec is a ``SpecError``."""
        names = tuple(checked_names("fields", fields)), tuple(checked_names("tasks", tasks))
        limits = capacity, group_size, on_full, max_attempts, capacity_bytes
        self._call("register", spec=asdict(PartitionSpec(partition_id, *names, *limits)))

    def delete_partition(self, partition_id: str) -> None:
        """Delete the partition and its samples. Waiting calls fail with ``UnknownPartitionError``."""
        self._call("delete", partition_id=checked_name("partition_id", partition_id))

    def seal(self, partition_id: str) -> None:
        """Refuse new samples. Claims get the rest, then an ``EndOfStreamError``."""
        self._call("seal", partition_id=checked_name("partition_id", partition_id))

    # puts ---------------------------------------------------------------------------------------------

    def put_samples(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        tags: Tags | Sequence[Tags] | None = None,
        group_ids: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        lengths: Sequence[int] | str | None = None,
        _epoch: int | None = None,  # of a producer's token; None for the present one
    ) -> BatchMeta:
        """Write fields of new or existing samples. When this returns, they are not lost.

        The put belongs to the epoch in which it arrives. Rollouts that may outlast a rewind are put by a ``producer``.

        Args:
            partition_id: the partition.
            sample_ids: a text for each sample; an id is used once.
            fields: columns by name, with a row for each sample: an array, a tensor, or a list of arrays or objects.
            tags: one mapping for each sample, or one for all.
            group_ids: the group of each sample, in a partition with groups.
            timeout_s: how long to wait for room; None to wait forever.
            lengths: the length of each sample from now on, or the name of the field whose row lengths they are. By
                default the row lengths of the first jagged column, else of the first column given as a list, else of
                the first column whose rows are arrays; and only for samples without a recorded length.

        Raises:
            FullError: no room in time, or at once with ``on_full="raise"``.
        """
        began = time.monotonic()
        self._check_process()
        checked_name("partition_id", partition_id)
        wait_s = model.checked_seconds("timeout_s", timeout_s)
        ids = checked_names("sample_ids", sample_ids, SampleError)
        columns = _columns(fields, len(ids))
        plain_tags = None if tags is None else model.checked_tags(tags, len(ids))
        groups = None if group_ids is None else checked_names("group_ids", group_ids, SampleError)
        known = _lengths(columns, lengths)
        meta = BatchMeta(
            partition_id,
            tuple(ids),
            tuple(fields),
            sequence_lengths=_tuple(known),
            tags=_tuple([dict(plain_tags) for _ in ids] if isinstance(plain_tags, Mapping) else plain_tags),
            group_ids=_tuple(groups),
            epoch=_epoch or 0,
        )
        if not ids:
            return meta
        request = {
            "partition_id": partition_id,
            "sample_ids": ids,
            "shapes": {name: column.shape_key for name, column in columns.items()},
            "lengths": known,
            "tags": plain_tags,
            "group_ids": groups,
            "epoch": _epoch,
            "fresh": _epoch is not None,
            "owner": self._owner,
            "lengths_given": lengths is not None,
            BEGAN: began,
        }
        return replace(meta, epoch=self._write(_HANDLE.get() or Handle(), request, columns, wait_s))

    def producer(self, partition_id: str) -> Producer:
        """Puts rollouts in the epoch in which they started."""
        return Producer(self, checked_name("partition_id", partition_id))

    def _write(
        self, handle: Handle, request: dict[str, Any], columns: Mapping[str, Column], wait_s: float | None
    ) -> int:
        """Write the bytes, then tell the ledger; the epoch. If it does not take them, they are freed."""
        location, request["nbytes"] = self._storage.write(request["partition_id"], columns)
        taken = False
        try:
            found = self._host.call("put", {**request, "location": location}, wait_s, handle)
            taken = True
            return found["epoch"]
        except DataPlaneError:
            raise
        except BaseException:
            taken = self._host.abandon(handle)
            raise
        finally:
            if taken:
                self._storage.settle(location)
            else:
                self._storage.free([location])

    def write_tags(self, partition_id: str, sample_ids: Sequence[str], tags: Tags | Sequence[Tags]) -> None:
        """Set tags of existing samples, without any field: one mapping for each sample, or one for all."""
        checked_name("partition_id", partition_id)
        ids = checked_names("sample_ids", sample_ids, SampleError)
        plain = model.checked_tags(tags, len(ids))
        self._call("write_tags", partition_id=partition_id, sample_ids=ids, tags=plain)

    def list_samples(
        self, partition_id: str, where: Predicate | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """The samples that can be read, the oldest first, at most ``limit``: for looking, not for claiming.

        Each has ``sample_id``, ``tags``, ``fields``, and by task its ``state`` (``free``, ``leased``, ``acked`` or
        ``committed``) and its ``attempts``.
        """
        checked_name("partition_id", partition_id)
        most = checked_integer("limit", limit, 1)
        return self._call("list_samples", partition_id=partition_id, where=_plain(where), limit=most)

    def clear_samples(self, partition_id: str, sample_ids: Iterable[str], reason: str | None = None) -> int:
        """Delete samples and their bytes; how many were deleted. Samples that are gone already are ignored.

        The bytes of samples that were acked into a version stay until a ``commit`` covers it.
        """
        checked_name("partition_id", partition_id)
        if reason is not None:
            checked_name("reason", reason)
        ids = checked_names("sample_ids", sample_ids, SampleError)
        cleared = self._call("clear", partition_id=partition_id, sample_ids=ids, reason=reason)
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
        order: Order = "oldest",
    ) -> BatchMeta:
        """Claim up to ``batch_size`` samples that are ready for a task, at least ``min_batch`` (by default all).

        ``order`` decides which first: ``"oldest"``, ``"newest"``, or by a tag, ``Tag("priority").desc()``. With another
        order than the oldest, give the ``StalenessPolicy`` ``in_order=False``.

        Raises:
            ClaimTimeoutError: not enough samples became ready in time.
            EndOfStreamError: the partition is sealed, and nothing is left.
        """
        began, handle = time.monotonic(), _HANDLE.get() or Handle()
        self._check_process()
        if not isinstance(order, TagOrder) and not (isinstance(order, str) and order in ("oldest", "newest")):
            raise SpecError(f"order is {order!r:.60}", hint='give "oldest", "newest" or Tag(name).desc()')
        fields = checked_names("required_fields", required_fields)
        most = checked_integer("batch_size", batch_size, 1)
        least = most if min_batch is None else checked_integer("min_batch", min_batch, 1)
        if least > most:
            raise SpecError(f"min_batch={least} is above batch_size={most}", hint="give a min_batch of at most that")
        request = {
            **_task(partition_id, task_name),
            "fields": fields,
            "batch_size": most,
            "min_batch": least,
            "owner": self._owner,
            "lease_s": self._lease_s,
            "where": _plain(where),
            "order": order.plain() if isinstance(order, TagOrder) else order,
            BEGAN: began,
        }
        wait_s = model.checked_seconds("timeout_s", timeout_s)
        try:
            found = self._host.call("claim", request, wait_s, handle)
            ids = tuple(found["sample_ids"])
            return BatchMeta(
                partition_id,
                ids,
                tuple(fields),
                task_name,
                _tuple(found["lengths"]),
                model.tags_by_sample(found["tags"], len(ids)),
                _tuple(found["groups"]),
                leases=(found["lease"],) * len(ids),
                epoch=found["epoch"],
            )
        except DataPlaneError:
            raise
        except BaseException:
            self._host.abandon(handle)
            raise

    put_samples_async = _awaitable(put_samples)
    claim_meta_async = _awaitable(claim_meta)

    def ack(self, meta: BatchMeta, version: int | None = None) -> None:
        """Consume claimed samples; with a version, until a ``rewind`` to before it.

        Raises:
            LeaseLostError: some of the leases are lost; none of the samples is acked.
        """
        self._settle("ack", meta, version=None if version is None else checked_integer("version", version))
        self._storage.trim()

    def release(self, meta: BatchMeta, *, attempt: bool = True) -> None:
        """Give claimed samples back, after a failed ``attempt`` or without one. They are claimed before all others."""
        self._settle("release", meta, attempt=attempt)

    def extend(self, meta: BatchMeta) -> None:
        """Renew the leases for ``lease_s`` from now. Without ``lease_s`` there is no need to."""
        self._settle("extend", meta, lease_s=self._lease_s)

    def _settle(self, operation: str, meta: BatchMeta, **more: Any) -> None:
        if model.checked_meta(meta).task_name is None or meta.leases is None:
            raise LeaseLostError("this batch is not a claim", hint="ack, release and extend what claim_meta returned")
        if meta.size:
            names = {"partition_id": meta.partition_id, "task_name": meta.task_name}
            ids = list(meta.sample_ids)
            self._call(operation, **names, sample_ids=ids, leases=list(meta.leases), **more)

    # versions -----------------------------------------------------------------------------------------

    def commit(self, partition_id: str, task_name: str, version: int) -> int:
        """A checkpoint covers all acks up to ``version``: samples that every task is done with are deleted."""
        covered = self._call("commit", **_task(partition_id, task_name), version=checked_integer("version", version))
        self._storage.trim()
        return covered

    def rewind(self, partition_id: str, task_name: str, to_version: int) -> Mapping[str, int]:
        """A trainer restarted from a checkpoint: give back the samples that were trained past it.

        Samples of weights after that version are cleared as ``orphaned``. A new epoch begins: producers' rollouts that
        started before are refused.
        """
        version = checked_integer("to_version", to_version)
        return self._call("rewind", **_task(partition_id, task_name), to_version=version)

    def check_consumption_status(self, partition_id: str, task_names: Iterable[str]) -> bool:
        """Whether each of the tasks has acked every sample that is not cleared."""
        checked_name("partition_id", partition_id)
        return self._call("consumed", partition_id=partition_id, task_names=checked_names("task_names", task_names))

    # reads --------------------------------------------------------------------------------------------

    def get_samples(self, meta: BatchMeta, select_fields: Sequence[str] | None = None) -> dict[str, Rows]:
        """Read fields in the order of the batch; by default those that the batch names.

        Raises:
            FieldError: a field was not produced, or none is named.
            SampleError: a sample is cleared.
        """
        named = model.checked_meta(meta).fields if select_fields is None else select_fields
        fields = checked_names("select_fields", named)
        if not fields:
            raise FieldError("no field is named", hint="name the fields to read: there is no implicit all")
        for _ in range(READ_TRIES):
            with contextlib.suppress(BlockGoneError):  # rewritten or cleared in between: locate again
                return self._read(meta, fields)
        return self._read(meta, fields)

    get_data = get_samples

    def _read(self, meta: BatchMeta, fields: list[str]) -> dict[str, Rows]:
        ids = list(meta.sample_ids)
        found = self._call("locate", partition_id=meta.partition_id, sample_ids=ids, fields=fields)
        fields_of = {
            name: [(at, range(*run) if len(run) == 2 else run[0]) for at, *run in runs]
            for name, runs in found["fields"].items()
        }
        wanted: list[tuple[Any, list[str]]] = [(location, []) for location in found["locations"]]
        for name, runs in fields_of.items():
            for at in {at for at, _ in runs}:
                wanted[at][1].append(name)
        try:
            blocks = self._storage.read_many(wanted)
        except StorageError as error:
            broken = {at for at, one in enumerate(wanted) if not self._can_read(one)}
            parts = [[at for at, places in runs for _ in places] for runs in fields_of.values()]
            lost = [one for one, *own in zip(ids, *parts, strict=True) if not broken.isdisjoint(own)]
            raise type(error)(error.message, hint=error.hint, sample_ids=lost) from error
        return {name: Rows([(blocks[at][name], places) for at, places in runs]) for name, runs in fields_of.items()}

    def _can_read(self, one: tuple[Any, list[str]]) -> bool:
        try:
            self._storage.read_many([one])
        except StorageError:
            return False
        return True

    # the rest -----------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """The state of the plane, by partition."""
        return self._call("stats")

    def close(self) -> None:
        """Release all claims and close. Calling it twice is fine."""
        if self._pid == os.getpid():
            self._host.close()
            self._storage.close()

    def __enter__(self) -> DataPlaneClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(eq=False)
class RolloutToken:
    """The start of a rollout: its samples belong to the epoch in which it started. One thread at a time uses it."""

    partition_id: str
    epoch: int
    count: int  # the number of samples that it covers
    sample_ids: set[str] = field(default_factory=set)  # those that were put


class Producer:
    """Puts the rollouts of a partition, each in the epoch in which it started.

    ``token = producer.start(n)`` before the weights are fetched; ``producer.put_samples(token, ...)`` with what these
    weights produced. If a ``rewind`` came in between, the weights are gone: fetch the present ones, and start again.
    """

    def __init__(self, plane: DataPlaneClient, partition_id: str) -> None:
        self._plane = plane
        self._host = plane._host
        self.partition_id = partition_id

    def start(self, n: int) -> RolloutToken:
        """Start a rollout of ``n`` samples in the partition's present epoch."""
        count = checked_integer("n", n, 1)
        return RolloutToken(self.partition_id, self._plane._call("epoch", partition_id=self.partition_id), count)

    def put_samples(
        self,
        token: RolloutToken,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        tags: Tags | Sequence[Tags] | None = None,
        group_ids: Sequence[str] | None = None,
        timeout_s: float | None = None,
        lengths: Sequence[int] | str | None = None,
    ) -> BatchMeta:
        """Like ``DataPlaneClient.put_samples``, in the epoch of the token; in one call or several.

        Raises:
            EpochError: a rewind came after the start. Nothing was put: fetch the present weights, and start again.
            SampleError: more samples than the token covers, or one that has these fields already.
        """
        if not isinstance(token, RolloutToken) or token.partition_id != self.partition_id:
            raise SpecError(f"{token!r:.60} is no token of {self.partition_id!r}", hint="give the result of start")
        ids = checked_names("sample_ids", sample_ids, SampleError)
        covered = token.sample_ids.union(ids)
        if len(covered) > token.count:
            raise SampleError(f"{len(covered)} samples, but the token covers {token.count}", hint="start more of them")
        where = self.partition_id, ids
        put = self._plane.put_samples(*where, fields, tags, group_ids, timeout_s, lengths=lengths, _epoch=token.epoch)
        token.sample_ids = covered
        return put

    put_samples_async = _awaitable(put_samples)


def _tuple(values: Iterable[T] | None) -> tuple[T, ...] | None:
    return None if values is None else tuple(values)


def _plain(where: Predicate | None) -> list[Any] | None:
    """A predicate for the host. Raises ``SpecError``."""
    if where is not None and not isinstance(where, Predicate):
        raise SpecError(f"where is {where!r:.60}, not a predicate", hint='write for example Tag("weight_version") >= 3')
    return None if where is None else where.plain()


def _task(partition_id: str, task_name: str) -> dict[str, str]:
    """The names of a task as arguments of a call. Raises ``SpecError``."""
    return {
        "partition_id": checked_name("partition_id", partition_id),
        "task_name": checked_name("task_name", task_name),
    }


def _columns(fields: Mapping[str, Any], count: int) -> dict[str, Column]:
    """Fields, encoded, each with a row for each sample. Raises ``FieldError``."""
    if not isinstance(fields, Mapping):
        raise FieldError(f"fields is {type(fields).__name__}", hint="give a dict of columns by name")
    if not fields:
        raise FieldError("no field is given", hint="give at least one by name; write_tags sets tags alone")
    columns: dict[str, Column] = {}
    for name, values in fields.items():
        checked_name("the name of a field", name)
        if not count and isinstance(values, list | tuple) and not values:
            continue  # no samples, so no dtype
        try:
            column = encode(values)
        except FieldError as error:
            raise FieldError(f"field {name!r}: {error.message}", hint=error.hint) from None
        if column.rows != count:
            raise FieldError(f"field {name!r} has {column.rows} rows for {count} samples", hint="give a row for each")
        columns[name] = column
    return columns


def _lengths(columns: Mapping[str, Column], given: Sequence[int] | str | None) -> list[int] | None:
    """The given lengths, or the row lengths of a field: the named one, else the first jagged, listed or other."""
    if isinstance(given, str):
        found = columns[given].lengths if given in columns else None
        if found is None:
            raise FieldError(f"{given!r} has no lengths", hint="name a field of this put whose rows are arrays")
        return found
    if given is not None:
        return model.checked_lengths(given)
    known = [column for column in columns.values() if column.lengths is not None]
    best = max(known, key=lambda column: 2 if column.kind == "jagged" else column.listed, default=None)
    return None if best is None else best.lengths


def _started(call: Callable[[], T]) -> asyncio.Future[T]:
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tunegym-dataplane", daemon=True).start()
    return asyncio.wrap_future(future)
