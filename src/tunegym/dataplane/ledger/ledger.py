"""The ledger: partitions, claims and who waits. A pure state machine: no clock, no file, no thread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunegym.dataplane.errors import FieldError, SampleError, SpecError, TagError, UnknownPartitionError
from tunegym.dataplane.ledger.held import Common, Held
from tunegym.dataplane.ledger.numbering import UNKNOWN
from tunegym.dataplane.ledger.partition import CLEARED, Partition
from tunegym.dataplane.ledger.placing import Run, runs_of
from tunegym.dataplane.ledger.reporting import stats_of
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.ledger.spans import every, span_of
from tunegym.dataplane.model import PartitionSpec


class Ledger:
    """What every host of a data plane drives. One thread calls it, and tells it the time, which never runs back.

    Every call takes effect whole, or raises a ``DataPlaneError`` and changes nothing. Calls that others wait for have
    them settled: ``take_settled`` hands these out, each once.

    Args:
        first_lease: leases are numbered from here on. Ledgers that begin apart don't take each other's for their own.
    """

    def __init__(self, first_lease: int = 0) -> None:
        self._held: dict[str, Held] = {}
        self._common = Common(lease=first_lease)

    # partitions ---------------------------------------------------------------------------------------

    def register(self, spec: PartitionSpec) -> None:
        """Make a partition. Again with an equal spec: no effect; with another one: an error that names it."""
        known = self._held.get(spec.partition_id)
        if known is None:
            self._held[spec.partition_id] = Held(Partition(spec), self._common)
            return
        for name in ("fields", "tasks", "capacity", "group_size", "on_full"):
            before, now = getattr(known.partition.spec, name), getattr(spec, name)
            if before != now:
                raise SpecError(
                    f"partition {spec.partition_id!r} is registered with {name} = {before!r}, not {now!r}",
                    hint="use another partition_id, or delete the partition first",
                )

    def delete(self, partition_id: str) -> None:
        """The partition is gone, with all that is in it; who waits at it is told."""
        held = self._find(partition_id)
        del self._held[partition_id]
        held.delete(UnknownPartitionError(f"partition {partition_id!r} was deleted"))

    def seal(self, partition_id: str, now: float) -> None:
        """No new samples from now on: claims that wait get the rest, and then an ``EndOfStreamError``."""
        held = self._find(partition_id)
        held.partition.sealed = True
        held.settle(now)

    def specs(self) -> list[PartitionSpec]:
        """Every partition's."""
        return [held.partition.spec for held in self._held.values()]

    def epoch(self, partition_id: str) -> int:
        """How often the partition was rewound."""
        return self._find(partition_id).partition.epoch

    def stats(self, now: float) -> dict[str, Any]:
        """How every partition stands, as plain data; see ``reporting``."""
        return {name: stats_of(one.partition, one.claims, one.waiting, now) for name, one in self._held.items()}

    # samples ------------------------------------------------------------------------------------------

    def put(self, request: Put, now: float, deadline: float | None = None, *, wait: bool = False) -> Waiter | None:
        """Take in fields of samples; a waiter if there is no room and the caller may wait.

        Raises:
            FullError: there is no room, and it may not wait.
        """
        return self._find(request.partition_id).put(request, now, deadline, wait)

    def write_tags(
        self, partition_id: str, sample_ids: Sequence[str], tags: Sequence[Mapping[str, Any]], now: float
    ) -> None:
        """Set tags of samples; others of theirs stay."""
        held = self._find(partition_id)
        if len(tags) != len(sample_ids):
            raise TagError(f"{len(tags)} tags for {len(sample_ids)} samples")
        if len(set(sample_ids)) < len(sample_ids):
            raise SampleError("a sample is there twice in one call")
        rows = held.partition.find(sample_ids)
        held.partition.rows.tags.put(rows, tags)
        held.partition.rows.arrivals.forget(rows)
        held.partition.queues.retagged(rows)
        held.settle(now)

    def locate(self, partition_id: str, sample_ids: Sequence[str], fields: Sequence[str]) -> dict[str, list[Run]]:
        """By field, the blocks of the samples and their places there. Raises for what was not produced, or is cleared.

        Fields that are in the same places share one list.
        """
        partition = self._find(partition_id).partition
        partition.spec.mask(fields)
        rows = partition.find(sample_ids)
        found: dict[str, list[Run]] = {}
        before: tuple[np.ndarray, np.ndarray, list[Run]] | None = None
        for name in fields:
            at = partition.spec.fields.index(name)
            blocks, places = partition.rows.places.of(at, rows)
            if not every(blocks):
                missing = [sample_ids[place] for place in np.flatnonzero(blocks == 0).tolist()]
                raise FieldError(
                    f"field {name!r} was not produced for {missing[0]!r}"
                    + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""),
                    hint="a claim that requires the field waits for it",
                )
            if before is None or not (every(before[0] == blocks) and every(before[1] == places)):
                before = blocks, places, runs_of(blocks, places)
            found[name] = before[2]
        return found

    def location(self, partition_id: str, block: int) -> Mapping[str, Any]:
        """Where the bytes of a block are."""
        return self._find(partition_id).partition.blocks.known[block].location

    def clear(self, partition_id: str, sample_ids: Sequence[str], reason: str | None, now: float) -> int:
        """Samples go; those that are gone already are left alone. How many went."""
        held = self._find(partition_id)
        rows = held.partition.rows.ids.find(sample_ids).rows
        if (rows == UNKNOWN).any():
            unknown = sample_ids[int(np.flatnonzero(rows == UNKNOWN)[0])]
            raise SampleError(f"partition {partition_id!r} never had a sample {unknown!r}")
        rows = rows[rows >= 0]
        rows = rows[held.partition.rows.alive[rows]]
        if len(set(sample_ids)) < len(sample_ids):
            rows = np.unique(rows)
        held.partition.clear(span_of(rows), reason or CLEARED)
        held.settle(now)
        return len(rows)

    # claims -------------------------------------------------------------------------------------------

    def claim(self, request: Claim, now: float, deadline: float | None = None, *, wait: bool = False) -> Grant | Waiter:
        """Samples, or a waiter for them.

        Raises:
            ClaimTimeoutError: there are not enough, and the caller may not wait.
            EndOfStreamError: the partition is sealed, and nothing is left.
        """
        return self._find(request.partition_id).claim(request, now, deadline, wait)

    def ask(self, partition_id: str, task_name: str, fields: Sequence[str]) -> None:
        """Claims of this kind will come: from here on, samples that become ready for them keep their order."""
        partition = self._find(partition_id).partition
        partition.queues.of(partition.spec.task(task_name), partition.spec.mask(fields))

    def claim_again(self, request: Claim, leases: Sequence[int], now: float) -> Grant:
        """Repeat a claim of which one knows what it got, as from a journal: the same samples, under the same leases.

        A claim alone doesn't tell: it depends on the order of those that are ready, and so on claims that got nothing.

        Raises:
            LeaseLostError: they can't be claimed.
        """
        return self._find(request.partition_id).claim_again(request, leases, now)

    def ack(
        self,
        partition_id: str,
        task_name: str,
        sample_ids: Sequence[str],
        leases: Sequence[int],
        version: int | None,
        now: float,
    ) -> None:
        """Claimed samples are consumed. Raises ``LeaseLostError`` if one of the claims is lost; then none is."""
        held = self._find(partition_id)
        task = held.partition.spec.task(task_name)
        rows, numbers = held.claims.held(task, sample_ids, leases)
        held.claims.ack(task, rows, numbers, version)
        held.settle(now)

    def release(
        self, partition_id: str, task_name: str, sample_ids: Sequence[str], leases: Sequence[int], now: float
    ) -> None:
        """Claimed samples are given back."""
        held = self._find(partition_id)
        task = held.partition.spec.task(task_name)
        held.claims.release(task, *held.claims.held(task, sample_ids, leases))
        held.settle(now)

    def extend(
        self,
        partition_id: str,
        task_name: str,
        sample_ids: Sequence[str],
        leases: Sequence[int],
        lease_s: float,
        now: float,
    ) -> None:
        """Claims last longer: all that was claimed together with these samples."""
        held = self._find(partition_id)
        _, numbers = held.claims.held(held.partition.spec.task(task_name), sample_ids, leases)
        held.partition.leases.extend(numbers, now + lease_s)

    def commit(self, partition_id: str, task_name: str, version: int, now: float) -> int:
        """A checkpoint covers what was acked up to ``version``."""
        held = self._find(partition_id)
        covered = held.claims.versions.commit(held.partition.spec.task(task_name), version)
        held.settle(now)
        return covered

    def rewind(self, partition_id: str, task_name: str, to_version: int, now: float) -> tuple[int, int]:
        """A trainer is back at a checkpoint: how many samples are given back, and how many orphaned.

        Whoever still has a claim for the task trains a model that is gone: it loses the claim.
        """
        held = self._find(partition_id)
        task = held.partition.spec.task(task_name)
        held.claims.versions.check_rewind(task, to_version)
        held.claims.end(held.partition.leases.of_task(task))
        back, orphaned = held.claims.versions.rewind(task, to_version)
        held.claims.redelivered[task] += back
        held.settle(now)
        return back, orphaned

    def consumed(self, partition_id: str, task_names: Sequence[str]) -> bool:
        """Whether every sample that is not cleared is acked by each of the tasks."""
        partition = self._find(partition_id).partition
        tasks = [partition.spec.task(name) for name in task_names]
        return all(partition.acked[task] == partition.alive for task in tasks)

    # time and owners ----------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Leases and waits that are over by now end."""
        self._common.now = max(self._common.now, now)
        for held in self._held.values():
            held.expire(now)

    def next_deadline(self) -> float:
        """When ``expire`` should be called next."""
        ends = (min(one.partition.leases.next_end(), one.waiting.next_deadline()) for one in self._held.values())
        return min(ends, default=math.inf)

    def owner_gone(self, owner: str, now: float) -> int:
        """An owner's process has ended: its claims are given back, and it waits no more. How many samples came back."""
        return sum(held.owner_gone(owner, now) for held in self._held.values())

    def owners(self) -> set[str]:
        """Who has claims."""
        return {owner for held in self._held.values() for owner in held.partition.leases.owners()}

    def give_up(self, waiter: Waiter, now: float | None = None) -> None:
        """Somebody waits no more; without a time, that is now as the ledger was last told."""
        held = self._held.get(waiter.request.partition_id)
        if held is not None and held.waiting.remove(waiter):
            held.settle(self._common.now if now is None else now)

    def take_settled(self) -> list[Waiter]:
        """Those who wait no more, once."""
        settled, self._common.settled = self._common.settled, []
        return settled

    def take_freed(self) -> list[Mapping[str, Any]]:
        """Where the bytes are that nobody wants any more, once."""
        freed, self._common.freed = self._common.freed, []
        return freed

    def locations(self) -> list[Mapping[str, Any]]:
        """Where all the bytes are that somebody wants."""
        return [block.location for held in self._held.values() for block in held.partition.blocks.known.values()]

    def _find(self, partition_id: str) -> Held:
        held = self._held.get(partition_id)
        if held is None:
            known = ", ".join(map(repr, self._held)) or "none"
            raise UnknownPartitionError(f"there is no partition {partition_id!r}", hint=f"registered: {known}")
        return held
