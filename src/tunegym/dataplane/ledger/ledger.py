"""The ledger: partitions, their claims, and the requests that wait. A pure state machine: no clock, file or thread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np

from tunegym.dataplane.errors import DataPlaneError, FieldError, SampleError, SpecError, TagError, UnknownPartitionError
from tunegym.dataplane.ledger.leases import ends
from tunegym.dataplane.ledger.partition import CLEARED, Partition, repeated
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.ledger.samples import DONE, STATES, UNKNOWN
from tunegym.dataplane.model import PartitionSpec, few, tags_by_sample
from tunegym.dataplane.predicate import Predicate, naming

Ids: TypeAlias = Sequence[str]
Ints: TypeAlias = Sequence[int]


class Ledger:
    """The control plane that every host drives. One thread calls it and tells it the time, which never runs back.

    Every call takes effect as a whole, or raises a ``DataPlaneError`` and changes nothing. A call may settle waiting
    requests: ``take_settled`` hands these out, each once.

    Args:
        first_lease: leases are numbered from here on. Ledgers with different starts reject each other's leases.
    """

    def __init__(self, first_lease: int = 0) -> None:
        self.partitions: dict[str, Partition] = {}
        self.lease = first_lease
        self._waiter = 0
        self.freed: list[Mapping[str, Any]] = []
        self._settled: list[Waiter] = []

    # partitions ---------------------------------------------------------------------------------------

    def register(self, spec: PartitionSpec) -> None:
        """Create a partition. Again with an equal spec it has no effect; with another one it raises ``SpecError``."""
        known = self.partitions.get(spec.partition_id)
        if known is None:
            self.partitions[spec.partition_id] = Partition(spec, self.freed)
            return
        for name, before in asdict(known.spec).items():
            now = getattr(spec, name)
            if before != now:
                raise SpecError(
                    f"partition {spec.partition_id!r} is registered with {name} = {before!r}, not {now!r}",
                    hint="use another partition_id, or delete the partition first",
                )

    def delete(self, partition_id: str) -> None:
        """Delete the partition and its samples. Waiting requests fail with ``UnknownPartitionError``."""
        partition = self._find(partition_id)
        del self.partitions[partition_id]
        self.freed += [block.location for block in partition.samples.blocks.known.values()]
        for waiter in partition.waiters:
            partition.waiters.remove(waiter)
            self._answer(waiter, UnknownPartitionError(f"partition {partition_id!r} was deleted"))

    def seal(self, partition_id: str, now: float) -> None:
        """Take no new samples: waiting claims get the rest, then ``EndOfStreamError``."""
        partition = self._find(partition_id)
        partition.sealed = True
        self._changed(partition, now)

    def epoch(self, partition_id: str) -> int:
        """The number of rewinds of a partition."""
        return self._find(partition_id).epoch

    def stats(self, now: float) -> dict[str, Any]:
        """Statistics of every partition, as plain data."""
        return {name: partition.stats(now) for name, partition in self.partitions.items()}

    # samples ------------------------------------------------------------------------------------------

    def put(self, request: Put, now: float, deadline: float | None = None, *, wait: bool = False) -> Waiter | None:
        """Take in fields of samples. If there is no room, return a waiter, or raise ``FullError`` if it may not wait.

        A put without new samples never waits: others may wait for just that.
        """
        partition = self._find(request.partition_id)
        if partition.put(request, now, behind=partition.waiters.behind(request)):
            self._changed(partition, now, request)
            return None
        if not wait or partition.spec.on_full == "raise":
            raise partition.full(request)
        return self._wait(partition, replace(request, epoch=partition.epoch), deadline)

    def write_tags(self, partition_id: str, sample_ids: Ids, tags: Any, now: float) -> None:
        """Set tags of samples, one mapping for each or one for all; their other tags stay."""
        partition = self._find(partition_id)
        if len(set(sample_ids)) < len(sample_ids):
            raise SampleError("a sample is there twice in one call", sample_ids=repeated(sample_ids))
        columns = partition.samples.tags
        columns.put(partition.find(sample_ids), columns.check(tags))
        self._changed(partition, now)

    def list_samples(self, partition_id: str, where: Predicate | None, limit: int) -> list[dict[str, Any]]:
        """Samples that can be read, in the order of their puts, as plain data. Raises ``TagError``."""
        partition = self._find(partition_id)
        samples, spec = partition.samples, partition.spec
        rows = np.flatnonzero(samples.alive | (samples.resident & (samples.states == DONE).all(axis=0)))
        rows = rows[np.argsort(samples.arrival[rows])]
        if where is not None:
            with naming(lambda places: samples.names[rows[places]].tolist()):
                rows = rows[where.mask(lambda name: samples.tags.column(name, rows))]
        rows = rows[:limit]
        tags = tags_by_sample(samples.tags.of(rows), len(rows)) or [{} for _ in rows]
        return [
            {
                "sample_id": samples.names[row],
                "tags": own,
                "fields": list(spec.names(int(samples.produced[row]))),
                "state": {name: STATES[samples.states[task, row]] for task, name in enumerate(spec.tasks)},
                "attempts": dict(zip(spec.tasks, samples.attempts[:, row].tolist(), strict=True)),
            }
            for row, own in zip(rows.tolist(), tags, strict=True)
        ]

    def locate(self, partition_id: str, sample_ids: Ids, fields: Sequence[str]) -> dict[str, Any]:
        """Where fields of samples are, as plain data; see ``Samples.locate``.

        Raises ``FieldError`` for a field that was not produced, and ``SampleError`` for a sample that is not there.
        """
        partition = self._find(partition_id)
        partition.spec.mask(fields)
        rows = partition.find(sample_ids, retained=True)
        places = {name: partition.spec.fields.index(name) for name in fields}
        for name, field in places.items():
            missing = [sample_ids[at] for at in np.flatnonzero(partition.samples.block[field, rows] == 0).tolist()]
            if missing:
                raise FieldError(
                    f"field {name!r} was not produced for {few(missing)}",
                    hint="a claim that requires the field waits for it",
                    sample_ids=missing,
                )
        return partition.samples.locate(rows, places)

    def clear(self, partition_id: str, sample_ids: Ids, reason: str | None, now: float) -> int:
        """Clear samples; those that are already gone are ignored. Returns how many were cleared."""
        partition = self._find(partition_id)
        rows = partition.samples.find(dict.fromkeys(sample_ids))
        if (rows == UNKNOWN).any():
            unknown = [one for one in sample_ids if one not in partition.samples.ids]
            raise SampleError(f"partition {partition_id!r} never had a sample {few(unknown)}", sample_ids=unknown)
        rows = rows[rows >= 0]
        alive = partition.samples.alive[rows]
        retained = [row for row in rows[~alive].tolist() if row in partition.retained]
        partition.remove(np.array(retained, dtype=np.int64))
        partition.clear(rows[alive], reason or CLEARED)
        self._changed(partition, now)
        return len(retained) + int(alive.sum())

    def lose(self, where: Mapping[str, Any], now: float) -> list[tuple[str, str, list[str]]]:
        """The bytes at locations with these entries are gone: clear their samples, whose producers and ids it returns.

        A rewind does not bring them back. A commit of what they were trained into counts them as consumed.
        """
        lost = []
        for name, partition in self.partitions.items():
            lost += [(owner, name, ids) for owner, ids in partition.lose(where).items()]
            self._changed(partition, now)
        return lost

    # claims -------------------------------------------------------------------------------------------

    def claim(self, request: Claim, now: float, deadline: float | None = None, *, wait: bool = False) -> Grant | Waiter:
        """Claim samples. If too few are ready, return a waiter, or raise ``ClaimTimeoutError`` if it may not wait.

        Raises ``EndOfStreamError`` once the partition is sealed and nothing is left.
        """
        partition = self._find(request.partition_id)
        partition.check_claim(request)
        if not partition.waiters.behind(request):
            outcome = self._try_claim(partition, request, now)
            if isinstance(outcome, DataPlaneError):
                raise outcome
            if outcome is not None:
                return outcome
        if not wait:
            raise partition.not_ready(request)
        return self._wait(partition, request, deadline)

    def claim_again(self, request: Claim, lease: int, sample_ids: Ids, now: float) -> Grant:
        """Repeat a claim from a journal: the same samples under the same lease."""
        partition = self._find(request.partition_id)
        partition.queues.of(partition.spec.task(request.task_name), partition.spec.mask(request.fields))
        self.lease = max(self.lease, lease)
        return partition.lease(request, partition.find(sample_ids), lease, now)

    def ack(
        self, partition_id: str, task_name: str, sample_ids: Ids, leases: Ints, version: int | None, now: float
    ) -> None:
        """Consume claimed samples. Raises ``LeaseLostError`` if a claim is lost; then none is consumed."""
        partition = self._find(partition_id)
        task = partition.spec.task(task_name)
        partition.ack(task, partition.held(task, sample_ids, leases), version)
        self._changed(partition, now)

    def release(
        self, partition_id: str, task_name: str, sample_ids: Ids, leases: Ints, now: float, *, attempt: bool = True
    ) -> None:
        """Give back claimed samples; with ``attempt`` as a failed one."""
        partition = self._find(partition_id)
        task = partition.spec.task(task_name)
        partition.release(task, partition.held(task, sample_ids, leases), attempt=attempt)
        self._changed(partition, now)

    def end_lease(self, partition_id: str, lease: int, now: float) -> None:
        """Give back all samples of a claim that are still held."""
        partition = self._find(partition_id)
        known = partition.leases.known.get(lease)
        if known is not None:
            partition.end([known], attempt=False)
            self._changed(partition, now)

    def extend(
        self, partition_id: str, task_name: str, sample_ids: Ids, leases: Ints, lease_s: float | None, now: float
    ) -> None:
        """Extend claims: everything that was claimed together with these samples."""
        partition = self._find(partition_id)
        partition.held(partition.spec.task(task_name), sample_ids, leases)
        partition.leases.extend(set(leases), ends(now, lease_s))

    def commit(self, partition_id: str, task_name: str, version: int, now: float) -> int:
        """A checkpoint covers everything that was acked up to ``version``. Returns how many samples it newly covers."""
        partition = self._find(partition_id)
        covered = partition.versions.commit(partition.spec.task(task_name), version)
        self._changed(partition, now)
        return covered

    def rewind(self, partition_id: str, task_name: str, to_version: int, now: float) -> tuple[int, int]:
        """A trainer is back at a checkpoint. Returns how many samples are given back, and how many are orphaned.

        Open claims of the task are lost: they train a model that is gone.
        """
        partition = self._find(partition_id)
        counts = partition.versions.rewind(partition.spec.task(task_name), to_version)
        self._changed(partition, now)
        return counts

    def consumed(self, partition_id: str, task_names: Sequence[str]) -> bool:
        """Whether each of the tasks has acked every sample that is not cleared."""
        partition = self._find(partition_id)
        tasks = [partition.spec.task(name) for name in task_names]
        return all(partition.acked[task] == partition.alive for task in tasks)

    # time and owners ----------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End the leases and waits whose time is over."""
        for partition in self.partitions.values():
            over = partition.leases.over(now)
            if over:
                partition.end(over)
                self._changed(partition, now)
            late = partition.waiters.overdue(now)
            for waiter in late:
                request = waiter.request
                why = partition.full(request) if isinstance(request, Put) else partition.not_ready(request)
                self._answer(waiter, why)
            if late:  # others may have stood behind them
                self._changed(partition, now)

    def next_deadline(self) -> float:
        """When ``expire`` should be called next."""
        ends = (min(one.leases.next_end(), one.waiters.next_deadline()) for one in self.partitions.values())
        return min(ends, default=math.inf)

    def owner_gone(self, owner: str, now: float) -> int:
        """Give back the claims of an owner that has ended, and cancel its waits. Returns how many samples came back."""
        back = 0
        for partition in self.partitions.values():
            waiters = [one for one in partition.waiters if one.request.owner == owner]
            for waiter in waiters:
                partition.waiters.remove(waiter)
            leases = [one for one in partition.leases.known.values() if one.owner == owner]
            back += partition.end(leases)
            if leases or waiters:
                self._changed(partition, now)
        return back

    def give_up(self, waiter: Waiter, now: float) -> None:
        """Cancel a waiting request."""
        partition = self.partitions.get(waiter.request.partition_id)
        if partition is not None and partition.waiters.remove(waiter):
            self._changed(partition, now)

    def take_settled(self) -> list[Waiter]:
        """The requests that wait no longer, each once."""
        settled, self._settled = self._settled, []
        return settled

    def take_freed(self) -> list[Mapping[str, Any]]:
        """The locations of bytes that no sample needs any more, each once."""
        freed = list(self.freed)
        self.freed.clear()
        return freed

    def locations(self) -> list[Mapping[str, Any]]:
        """The locations of all bytes that are still needed."""
        return [block.location for one in self.partitions.values() for block in one.samples.blocks.known.values()]

    def short_of_bytes(self) -> list[str]:
        """The partitions without room for a put, of those whose bytes are bounded."""
        return [name for name, one in self.partitions.items() if one.short and one.spec.capacity_bytes is not None]

    def drop_retained(self, partition_id: str) -> None:
        """Remove all retained samples: without others of their puts, which are moved then, they give no room."""
        partition = self._find(partition_id)
        partition.remove(np.array(list(partition.retained), dtype=np.int64))

    def move(self, partition_id: str, number: int, count: int, location: Mapping[str, Any], nbytes: int) -> None:
        """The bytes of the first ``count`` samples that need a block are copied to ``location``."""
        self._find(partition_id).samples.move(number, count, location, nbytes)

    def given_back(self, dead: Mapping[str, int], now: float) -> None:
        """The storage has given freed bytes back, and still has ``dead`` of them by partition: puts may have room."""
        for name, partition in self.partitions.items():
            blocks = partition.samples.blocks
            before, blocks.dead_bytes = blocks.dead_bytes, dead.get(name, 0)
            if blocks.dead_bytes < before and partition.spec.capacity_bytes is not None:
                self._changed(partition, now)

    # waiting ------------------------------------------------------------------------------------------

    def _find(self, partition_id: str) -> Partition:
        partition = self.partitions.get(partition_id)
        if partition is None:
            known = ", ".join(map(repr, self.partitions)) or "none"
            raise UnknownPartitionError(f"there is no partition {partition_id!r}", hint=f"registered: {known}")
        return partition

    def _changed(self, partition: Partition, now: float, put: Put | None = None) -> None:
        """After every change: serve the requests that wait.

        If a put is all that has changed, claims whose predicate none of its samples matches stay as they are.
        """
        alone = None if partition.sealed else put  # then fields may be the last that claims wait for
        partition.waiters.serve(lambda waiter: self._attempt(partition, waiter, now, alone))

    def _attempt(self, partition: Partition, waiter: Waiter, now: float, put: Put | None) -> bool:
        """Try a waiting request. Returns whether it is settled."""
        request = waiter.request
        if isinstance(request, Claim):
            where = request.where
            if put is not None and where is not None and not partition.queues.any_match(where, put.sample_ids):
                return False
            outcome = self._try_claim(partition, request, now)
            if outcome is not None:
                self._answer(waiter, outcome)
            return outcome is not None
        try:
            if not partition.put(request, now):
                return False
            self._answer(waiter, None)
        except DataPlaneError as error:
            self._answer(waiter, error)
        return True

    def _try_claim(self, partition: Partition, request: Claim, now: float) -> Grant | DataPlaneError | None:
        try:
            rows = partition.choose(request)
            if rows is None:
                return None
            if not len(rows):
                return partition.ended(request)
        except TagError as error:
            return error
        self.lease += 1
        return partition.lease(request, rows, self.lease, now)

    def _wait(self, partition: Partition, request: Put | Claim, deadline: float | None) -> Waiter:
        self._waiter += 1
        return partition.waiters.add(Waiter(self._waiter, request, math.inf if deadline is None else deadline))

    def _answer(self, waiter: Waiter, outcome: Grant | DataPlaneError | None) -> None:
        waiter.outcome, waiter.settled = outcome, True
        self._settled.append(waiter)
