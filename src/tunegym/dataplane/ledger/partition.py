"""One partition: the life of its samples, from a put through claims and acks until they are gone.

A sample is *alive* until it is cleared: by a user, as an orphan of vanished weights, or as consumed once every task
is done with it. A cleared sample is *condemned* while a rewind may still bring it back, then removed. One that every
task acked without a version is *retained*: it can be read until a put needs its room. Each call checks everything
first, so that it takes effect as a whole or not at all.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    EndOfStreamError,
    EpochError,
    FieldError,
    FullError,
    LeaseLostError,
    SampleError,
    SealedError,
    SpecError,
    TagError,
)
from tunegym.dataplane.ledger.leases import CONSUMED, LOST, ORPHANED, Lease, Leases, Versions, ends
from tunegym.dataplane.ledger.queues import Groups, Queues
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiters
from tunegym.dataplane.ledger.samples import ACKED, DONE, FREE, LEASED, RETIRED, UNKNOWN, Samples, TagBatch
from tunegym.dataplane.model import PartitionSpec, few

CLEARED, DEAD, OTHER = "cleared", "dead", "other"
MOST_RETAINED = 10_000
"""So many retained samples stay in a partition without a capacity."""
_MOST_REASONS = 256
_OLDEST = 10
BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Upper ends of the buckets in seconds; one more bucket holds the rest."""


def repeated(names: Sequence[str]) -> list[str]:
    """The names that are there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


class Histogram:
    """Counts of seconds by bucket, and their sum.

    Args:
        finer: more buckets, below all others.
    """

    def __init__(self, finer: tuple[float, ...] = ()) -> None:
        self._bounds = finer + BOUNDS
        self._edges = np.array(self._bounds)
        self.counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def add(self, values: np.ndarray) -> None:
        """Count values."""
        found = np.bincount(self._edges.searchsorted(values), minlength=len(self.counts)).tolist()
        self.counts = [one + more for one, more in zip(self.counts, found, strict=True)]
        self.total += float(values.sum())

    def add_one(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def plain(self) -> dict[str, Any]:
        """As plain data: ``counts`` has one more entry than ``bounds``."""
        return {"bounds": list(self._bounds), "counts": list(self.counts), "sum": self.total}


class Partition:
    """The samples of a partition, and what each task has done with them.

    Args:
        freed: gets the locations of bytes that no sample needs any more.

    Attributes:
        epoch: the number of rewinds; a put of another epoch is refused.
        gone: the number of cleared samples by reason: the first few hundred reasons, then ``OTHER``.
        acked: by task, the number of those alive.
        claimed, redelivered: by task, the number of samples handed out and given back so far.
        lags: by task, the time between put and claim.
        condemned: the reason of each cleared row that a rewind may bring back.
        retained: consumed rows that can still be read, in the order in which they were; without any claim to room.
    """

    def __init__(self, spec: PartitionSpec, freed: list[Mapping[str, Any]]) -> None:
        self.spec = spec
        tasks = len(spec.tasks)
        self.samples = Samples(len(spec.fields), tasks, freed)
        self.groups = Groups(spec.group_size)
        self.queues = Queues(self.samples, self.groups, tasks)
        self.leases = Leases()
        self.versions = Versions(self)
        self.waiters = Waiters()
        self.shapes: dict[str, tuple[str, int]] = {}
        self.epoch = 0
        self.sealed = False
        self.acked, self.claimed, self.redelivered = [0] * tasks, [0] * tasks, [0] * tasks
        self.lags = [Histogram() for _ in range(tasks)]
        self.gone: Counter[str] = Counter()
        self.condemned: dict[int, str] = {}
        self.retained: dict[int, None] = {}
        self.short = False  # there was no room for the last put of new samples

    @property
    def alive(self) -> int:
        """The number of samples that are not cleared."""
        return self.resident - len(self.condemned)

    @property
    def resident(self) -> int:
        """The number of samples that count against the capacity."""
        return self.samples.resident_count - len(self.retained)

    def leased(self, task: int) -> int:
        """The number of samples that a task has claimed and not settled."""
        return sum(lease.left for lease in self.leases.known.values() if lease.task == task)

    def free_for(self, task: int) -> int:
        """The number of samples that a task has yet to claim, ready or not."""
        return self.alive - self.acked[task] - self.leased(task)

    def find(self, sample_ids: Sequence[str], *, retained: bool = False) -> np.ndarray:
        """The rows of samples that are alive, or also ``retained``. Raises ``SampleError`` for any other."""
        rows = self.samples.find(sample_ids)
        good = (rows >= 0) & self.samples.alive[rows]
        if retained and self.retained:
            good |= (rows >= 0) & (self.samples.states[:, rows] == DONE).all(axis=0)
        if good.all():
            return rows
        gone = [sample_ids[at] for at in np.flatnonzero(~good & (rows != UNKNOWN)).tolist()]
        if gone:
            what = f"partition {self.spec.partition_id!r}: {few(gone)} was consumed or cleared"
            raise SampleError(what, sample_ids=gone)
        unknown = [sample_ids[at] for at in np.flatnonzero(rows == UNKNOWN).tolist()]
        raise SampleError(f"partition {self.spec.partition_id!r} has no sample {few(unknown)}", sample_ids=unknown)

    # puts ---------------------------------------------------------------------------------------------

    def put(self, request: Put, now: float, *, behind: bool = False) -> bool:
        """Take in a put. Returns False if it brings new samples, and there is no room or it is behind others."""
        rows, tags = self._check_put(request)
        samples, count, fresh = self.samples, len(rows), rows == UNKNOWN
        new = np.flatnonzero(fresh).tolist()
        if new:
            self.short = behind or not self._fits(len(new), request.nbytes)
            if self.short:
                return False
            self._make_room(len(new), request.nbytes)
            ids, groups = request.sample_ids, request.group_ids
            added = samples.add([ids[at] for at in new], now)
            rows[fresh] = added
            if groups is not None:
                samples.group[added] = self.groups.add([groups[at] for at in new], added)
        number = samples.blocks.add(request.location, request.nbytes, count * len(request.shapes))
        samples.write(rows, [self.spec.fields.index(name) for name in request.shapes], number)
        self.shapes.update({name: (shape[0], shape[1]) for name, shape in request.shapes.items()})
        if request.lengths is not None:
            known = samples.lengths[rows]
            keep = (known >= 0) & (not request.lengths_given)  # a later stage says nothing about a sample's length
            samples.lengths[rows] = np.where(keep, known, request.lengths)
        samples.tags.put(rows, tags)
        self.queues.update(rows)
        return True

    def _fits(self, new: int, nbytes: int) -> bool:
        """Whether there is room, once retained samples are gone."""
        over = self.samples.blocks.stored_bytes + nbytes - (self.spec.capacity_bytes or sys.maxsize)
        return self.resident + new <= (self.spec.capacity or sys.maxsize) and (over <= 0 or over <= self._spare_bytes())

    def _spare_bytes(self) -> int:
        """The bytes that only retained samples need."""
        samples, rows = self.samples, np.fromiter(self.retained, dtype=np.int64)
        counts = zip(*(part.tolist() for part in np.unique(samples.block[:, rows], return_counts=True)), strict=True)
        known = samples.blocks.known
        return sum(known[number].nbytes for number, count in counts if number and known[number].live == count)

    def _make_room(self, new: int, nbytes: int) -> None:
        """Remove retained samples, the oldest first, until the new ones fit."""
        samples, most_bytes = self.samples, self.spec.capacity_bytes or sys.maxsize
        most = (self.spec.capacity or self.resident + MOST_RETAINED) - new
        while self.retained and (samples.resident_count > most or samples.blocks.nbytes + nbytes > most_bytes):
            count = max(samples.resident_count - most, new)
            self.remove(np.array(list(islice(self.retained, count)), dtype=np.int64))

    def _check_put(self, request: Put) -> tuple[np.ndarray, TagBatch]:
        """Refuse what may not be put. Returns the rows, ``UNKNOWN`` for new samples, and the tags."""
        spec, ids = self.spec, request.sample_ids
        if request.epoch not in (None, self.epoch):  # a later one is of a former partition of this name
            what = "rewound" if request.epoch < self.epoch else "deleted and made again"
            raise EpochError(
                f"partition {spec.partition_id!r} was {what}: this put is of epoch {request.epoch}, and the current"
                f" one is {self.epoch}",
                hint="fetch the present weights, and start again",
            )
        self._check_shapes(request.shapes)
        tags = [] if request.tags is None else self.samples.tags.check(request.tags)
        if len(set(ids)) < len(ids):
            twice = repeated(ids)
            raise SampleError(f"{few(twice)} is there twice in one put", sample_ids=twice)
        rows = self.samples.find(ids)
        new = int(np.count_nonzero(rows == UNKNOWN))
        gone = (rows == RETIRED) | ((rows >= 0) & ~self.samples.alive[rows])
        if gone.any():
            names = [ids[at] for at in np.flatnonzero(gone).tolist()]
            what = f"{few(names)} was there before, and is consumed or cleared"
            raise SampleError(what, hint="ids are used once", sample_ids=names)
        if request.fresh and new < len(ids):
            places = [spec.fields.index(name) for name in request.shapes]
            written = (self.samples.block[places][:, rows] != 0).any(axis=0) & (rows != UNKNOWN)
            if written.any():
                names = [ids[at] for at in np.flatnonzero(written).tolist()]
                what = f"{few(names)} is there already, with these fields"
                raise SampleError(what, hint="give each rollout an id of its own", sample_ids=names)
        if new and self.sealed:
            raise SealedError(f"partition {spec.partition_id!r} is sealed: it takes no new samples")
        self._check_groups(request, rows, new)
        if spec.capacity is not None and new > spec.capacity:
            raise SpecError(f"{new} samples never fit into a capacity of {spec.capacity}", hint="put fewer at once")
        if spec.capacity_bytes is not None and request.nbytes > spec.capacity_bytes:
            what = f"{request.nbytes:,} bytes never fit into capacity_bytes={spec.capacity_bytes:,}"
            raise SpecError(what, hint="put fewer at once")
        return rows, tags

    def _check_shapes(self, shapes: Mapping[str, tuple[str, int]]) -> None:
        self.spec.mask(shapes)
        for name, shape in shapes.items():
            known = self.shapes.get(name, shape)
            if tuple(known) != tuple(shape):
                raise FieldError(
                    f"field {name!r} is of {known[0]} and rank {known[1]}, here {shape[0]} and rank {shape[1]}",
                    hint="a field keeps its dtype and its rank",
                )

    def _check_groups(self, request: Put, rows: np.ndarray, new: int) -> None:
        group_ids, name = request.group_ids, self.spec.partition_id
        if group_ids is None:
            if new and self.groups.used:
                raise SampleError(f"partition {name!r} has groups, and these samples have none", hint="give group_ids")
            return
        if not self.groups.used and self.samples.resident_count:
            raise SampleError(f"partition {name!r} has samples without groups", hint="give all of them groups")
        for at in np.flatnonzero(rows >= 0).tolist():
            known = self.groups.known[int(self.samples.group[rows[at]])].name
            if known != group_ids[at]:
                sample = request.sample_ids[at]
                raise SampleError(f"{sample!r} is in group {known!r}, not {group_ids[at]!r}", sample_ids=[sample])
        self.groups.check(group_ids[at] for at in np.flatnonzero(rows == UNKNOWN).tolist())

    # claims -------------------------------------------------------------------------------------------

    def check_claim(self, request: Claim) -> None:
        """Refuse a claim that could never be satisfied. Raises ``SpecError``."""
        spec = self.spec
        spec.task(request.task_name)
        spec.mask(request.fields)
        if spec.capacity is not None and request.min_batch > spec.capacity:
            raise SpecError(
                f"min_batch={request.min_batch} can never be satisfied: the partition's capacity is {spec.capacity}",
                hint="claim fewer, or register the partition with a larger capacity",
            )
        size = spec.group_size
        if size is not None and request.batch_size // size * size < request.min_batch:
            raise SpecError(
                f"groups of {size} never make {request.min_batch} to {request.batch_size} samples",
                hint=f"give a batch_size that is a multiple of {size}, or a smaller min_batch",
            )

    def choose(self, request: Claim) -> np.ndarray | None:
        """The rows for a claim; empty at the end of the stream; None if too few are ready. Raises ``TagError``."""
        task, mask = self.spec.task(request.task_name), self.spec.mask(request.fields)
        rows = self.queues.choose(task, mask, request.min_batch, request.batch_size, request.where, request.order)
        if len(rows):
            return rows
        if not self.sealed or self.leased(task):
            return None  # more may come, or be given back
        if self.free_for(task) > self.queues.ready(task, mask) + self.queues.stranded(task):
            return None  # their fields may still be written
        return self.queues.choose(task, mask, 1, request.batch_size, request.where, request.order)

    def lease(self, request: Claim, rows: np.ndarray, number: int, now: float) -> Grant:
        """Lease chosen rows to the owner of a claim."""
        samples, task = self.samples, self.spec.task(request.task_name)
        samples.states[task][rows] = LEASED
        samples.leases[task][rows] = number
        self.claimed[task] += len(rows)
        self.lags[task].add(now - samples.born[rows])
        self.leases.add(Lease(number, task, request.owner, rows, len(rows), now), ends(now, request.lease_s))
        self.queues.remove(rows, task)
        lengths = samples.lengths[rows]
        groups = [self.groups.known[one].name for one in samples.group[rows].tolist()] if self.groups.used else None
        return Grant(
            samples.names[rows].tolist(),
            number,
            self.epoch,
            lengths.tolist() if (lengths >= 0).all() else None,
            samples.tags.of(rows),
            groups,
        )

    def held(self, task: int, sample_ids: Sequence[str], leases: Sequence[int]) -> np.ndarray:
        """The rows of claimed samples. Raises ``LeaseLostError`` unless all of them are still held."""
        rows = self.samples.find(sample_ids)
        held = np.where(rows >= 0, self.samples.leases[task][rows], 0).tolist()
        lost = [
            name for name, lease, given in zip(sample_ids, held, leases, strict=True) if not lease or lease != given
        ]
        if lost:
            raise LeaseLostError(
                f"the claim of {few(lost)} is lost: it ended, or was settled before",
                hint="other claims may have them by now; claim again, and extend() what takes long",
                sample_ids=lost,
            )
        if len(set(sample_ids)) < len(sample_ids):
            raise SampleError("a sample is there twice in one call", sample_ids=repeated(sample_ids))
        return rows

    def ack(self, task: int, rows: np.ndarray, version: int | None) -> None:
        """Consume held rows; with a version, until a rewind to before it."""
        if version is not None:
            self.versions.add(task, version, rows)
        self._settle(task, rows, DONE if version is None else ACKED)
        self.acked[task] += len(rows)
        if self.groups.used:
            self.queues.update(rows, task)  # the rest of their groups may be ready now
        if version is None:
            self.clear(rows[(self.samples.states[:, rows] >= DONE).all(axis=0)], CONSUMED)

    def release(self, task: int, rows: np.ndarray, *, attempt: bool = True) -> int:
        """Give back held rows; they come first in the queues. Returns how many.

        With ``attempt`` this is a failed one: samples that have had all of theirs are dead instead.
        """
        self._settle(task, rows, FREE)
        if attempt:
            rows = self._count_attempt(task, rows)
        self.redelivered[task] += len(rows)
        self.queues.update(rows, task, first=True)
        return len(rows)

    def _count_attempt(self, task: int, rows: np.ndarray) -> np.ndarray:
        """Count an attempt of free rows; those that were the last are cleared, groups whole. Returns the others."""
        samples, groups = self.samples, self.groups
        samples.attempts[task][rows] += 1
        dead = samples.attempts[task][rows] >= (self.spec.max_attempts or sys.maxsize)
        if not dead.any():
            return rows
        gone = rows[dead]
        if groups.used:  # with those of their groups that were given back before
            members = [row for one in set(samples.group[gone].tolist()) for row in groups.known[one].members]
            gone = np.array([row for row in members if samples.states[task][row] == FREE], dtype=np.int64)
        self.clear(gone, DEAD)
        return rows[samples.alive[rows]]

    def _settle(self, task: int, rows: np.ndarray, state: int) -> None:
        if not len(rows):
            return
        samples = self.samples
        self.leases.settle(samples.leases[task][rows])
        samples.leases[task][rows] = 0
        samples.states[task][rows] = state

    def end(self, leases: Sequence[Lease], *, attempt: bool = True) -> int:
        """Give back all samples of leases, the oldest first. Returns how many."""
        back = 0
        for lease in sorted(leases, key=lambda one: -one.number):  # the last one given back is first in the queue
            rows = lease.rows[self.samples.leases[lease.task][lease.rows] == lease.number]
            back += self.release(lease.task, rows, attempt=attempt)
        return back

    # the end of samples -------------------------------------------------------------------------------

    def clear(self, rows: np.ndarray, reason: str) -> None:
        """Clear samples that are alive. Those that no commit covers yet are kept for a rewind."""
        if not len(rows):
            return
        own = reason in self.gone or reason in (CLEARED, CONSUMED, ORPHANED, DEAD, LOST)
        reason = reason if own or len(self.gone) < _MOST_REASONS else OTHER
        samples = self.samples
        for task, states in enumerate(samples.states):
            held = rows[states[rows] == LEASED]
            self._settle(task, held, FREE)
            self.acked[task] -= int(np.count_nonzero(states[rows] >= ACKED))
        samples.alive[rows] = False
        self.gone[reason] += len(rows)
        if self.groups.used:
            self.groups.set_alive(rows, samples.group[rows], alive=False)
        self.queues.update(rows)
        kept, spent = ((samples.states[:, rows] == state) for state in (ACKED, DONE))
        kept, spent = kept.any(axis=0), spent.all(axis=0)
        self.condemned.update(dict.fromkeys(rows[kept].tolist(), reason))
        self.retained.update(dict.fromkeys(rows[spent].tolist()))
        self.remove(rows[~(kept | spent)])

    def lose(self, where: Mapping[str, Any]) -> dict[str, list[str]]:
        """The bytes at locations with these entries are gone: clear their samples. Returns the ids by producer."""
        samples, known = self.samples, self.samples.blocks.known
        numbers = [number for number, block in known.items() if where.items() <= block.location.items()]
        rows = np.flatnonzero(np.isin(samples.block, numbers).any(axis=0)) if numbers else np.zeros(0, dtype=np.int64)
        lost: dict[str, list[str]] = {}
        for row in rows.tolist():
            if samples.alive[row]:  # its producer is the one of its first put
                first = min(number for number in samples.block[:, row].tolist() if number)
                lost.setdefault(known[first].location["owner"], []).append(samples.names[row])
            elif row in self.condemned:  # cleared before, and kept for a rewind
                self.gone[self.condemned[row]] -= 1
                self.gone[LOST] += 1
                self.condemned[row] = LOST
        self.remove(np.array([row for row in rows.tolist() if row in self.retained], dtype=np.int64))
        self.clear(rows[samples.alive[rows]], LOST)
        return lost

    def remove(self, rows: np.ndarray) -> None:
        """Forget cleared samples for good."""
        if not len(rows):
            return
        for row in rows.tolist() if self.condemned or self.retained else ():
            self.condemned.pop(row, None)
            self.retained.pop(row, None)
        if self.groups.used:
            self.groups.remove(self.samples.group[rows])
        self.samples.remove(rows)

    # numbers and explanations ---------------------------------------------------------------------

    def stats(self, now: float) -> dict[str, Any]:
        """The state of a partition in numbers, as plain data."""
        spec, waiters = self.spec, self.waiters
        return {
            "produced": self.samples.arrived,
            "resident": self.resident,
            "retained": len(self.retained),
            "alive": self.alive,
            "capacity": spec.capacity,
            "bytes": self.samples.blocks.live_bytes,
            "stored_bytes": self.samples.blocks.stored_bytes,
            "capacity_bytes": spec.capacity_bytes,
            "blocks": len(self.samples.blocks.known),
            "epoch": self.epoch,
            "sealed": self.sealed,
            "gone": {reason: count for reason, count in self.gone.items() if count},
            "waiting": {"puts": waiters.count(Put), "claims": waiters.count(Claim)},
            "leases": self._oldest_leases(now),
            "tasks": {name: self._task_stats(task, now) for task, name in enumerate(spec.tasks)},
        }

    def _oldest_leases(self, now: float) -> list[dict[str, Any]]:
        """By owner and task: the age of the oldest lease, and the samples of all; the oldest first."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for lease in self.leases.known.values():  # in the order of the claims
            task = self.spec.tasks[lease.task]
            new = {"owner": lease.owner, "task": task, "age": now - lease.since, "samples": 0}
            found.setdefault((lease.owner, lease.task), new)["samples"] += lease.left
        return list(found.values())[:_OLDEST]

    def _task_stats(self, task: int, now: float) -> dict[str, Any]:
        """``ready`` is by the fields of the claims so far; ``free`` is everything that is still to be claimed."""
        queues = self.queues.by_task[task]
        ready, age = np.zeros(self.samples.size, dtype=bool), Histogram()
        for queue in queues.values():
            ready[self.queues.rows_of(task, queue.units())] = True
        age.add(now - self.samples.born[ready])
        return {
            "ready": {",".join(self.spec.names(mask)): queue.count for mask, queue in queues.items()},
            "free": self.free_for(task),
            "leased": self.leased(task),
            "acked": self.acked[task],
            "claimed": self.claimed[task],
            "redelivered": self.redelivered[task],
            "committed": self.versions.committed[task],
            "age": age.plain(),
            "lag": self.lags[task].plain(),
        }

    def full(self, request: Put) -> FullError:
        """There is no room for the samples of a put."""
        spec, others, stored = self.spec, self.waiters.count(Put), self.samples.blocks.stored_bytes
        have, more = f"{self.resident} of {spec.capacity}", f"{len(request.sample_ids)} more don't fit"
        if spec.capacity is None or stored + request.nbytes > (spec.capacity_bytes or sys.maxsize):
            have, more = f"{stored:,} of {spec.capacity_bytes:,} bytes", f"{request.nbytes:,} more don't fit"
        return FullError(
            f"partition {spec.partition_id!r} is full: {have}, and {more}"
            + (f", {others} puts wait before" if others else ""),
            hint="consume, commit or clear samples, or give it a larger capacity",
        )

    def not_ready(self, request: Claim) -> ClaimTimeoutError | TagError:
        """Too few samples are ready: says how many, and what the others lack."""
        spec, samples = self.spec, self.samples
        task, mask = spec.task(request.task_name), spec.mask(request.fields)
        try:
            ready = self.queues.ready(task, mask, request.where)
        except TagError as error:
            return error
        lines = [f"{ready} of at least {request.min_batch} were ready for {request.task_name!r}"]
        if ready >= request.min_batch and self.waiters.behind(request):
            lines.append("an earlier claim waits for more")
        rows = np.flatnonzero(samples.alive & (samples.states[task] == FREE))
        for name in request.fields:
            lacking = int(np.count_nonzero(~samples.have(rows, spec.mask([name]))))
            if lacking:
                lines.append(f"{lacking} lack {name!r}")
        if broken := self.queues.stranded(task):
            lines.append(f"{broken} are in incomplete groups")
        if request.where is not None and (others := self.queues.ready(task, mask) - ready):
            lines.append(f"{others} are ready, but don't match the predicate")
        if self.leased(task):
            lines.append(f"{self.leased(task)} are claimed")
        return ClaimTimeoutError(f"partition {request.partition_id!r}: {', '.join(lines)}")

    def ended(self, request: Claim) -> EndOfStreamError:
        """Nothing is left that the claim could get."""
        task, mask = self.spec.task(request.task_name), self.spec.mask(request.fields)
        what = f"partition {request.partition_id!r} is sealed, and nothing is left for {request.task_name!r}"
        left = [
            (self.queues.ready(task, mask, request.where), f"in groups larger than {request.batch_size}"),
            (self.queues.stranded(task), "in incomplete groups"),
        ]
        but = " and ".join(f"{count} {why}" for count, why in left if count)
        return EndOfStreamError(f"{what} but {but}" if but else what)
