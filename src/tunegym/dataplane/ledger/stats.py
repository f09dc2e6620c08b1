"""Statistics of a partition, and the errors that explain why a request got nothing."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np

from tunegym.dataplane.errors import ClaimTimeoutError, EndOfStreamError, FullError
from tunegym.dataplane.ledger.requests import Claim, Put
from tunegym.dataplane.ledger.samples import FREE

if TYPE_CHECKING:
    from tunegym.dataplane.ledger.partition import Partition

BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Upper ends of the buckets in seconds; one more bucket holds the rest."""


class Histogram:
    """Counts of seconds by bucket, and their sum.

    Args:
        finer: more buckets, below all others.
    """

    def __init__(self, finer: tuple[float, ...] = ()) -> None:
        self._bounds = finer + BOUNDS
        self.counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def add(self, values: np.ndarray) -> None:
        """Count values."""
        found = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self.counts)).tolist()
        self.counts = [one + more for one, more in zip(self.counts, found, strict=True)]
        self.total += float(values.sum())

    def add_one(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def plain(self) -> dict[str, Any]:
        """As plain data: ``counts`` has one more entry than ``bounds``."""
        return {"bounds": list(self._bounds), "counts": list(self.counts), "sum": self.total}


def stats_of(partition: Partition, now: float) -> dict[str, Any]:
    """The state of a partition in numbers, as plain data."""
    spec, waiters = partition.spec, partition.waiters
    return {
        "produced": partition.samples.arrived,
        "resident": partition.resident,
        "alive": partition.alive,
        "capacity": spec.capacity,
        "bytes": partition.samples.blocks.nbytes,
        "blocks": len(partition.samples.blocks.known),
        "epoch": partition.epoch,
        "sealed": partition.sealed,
        "gone": {reason: count for reason, count in partition.gone.items() if count},
        "waiting": {"puts": waiters.count(Put), "claims": waiters.count(Claim)},
        "tasks": {name: _task_stats(partition, task, now) for task, name in enumerate(spec.tasks)},
    }


def _task_stats(partition: Partition, task: int, now: float) -> dict[str, Any]:
    """``ready`` is by the fields of the claims so far; ``free`` is everything that is still to be claimed."""
    queues = partition.queues.by_task[task]
    ready, age = np.zeros(partition.samples.size, dtype=bool), Histogram()
    for queue in queues.values():
        ready[partition.queues.rows_of(task, queue.units())] = True
    age.add(now - partition.samples.born[ready])
    return {
        "ready": {",".join(partition.spec.names(mask)): queue.count for mask, queue in queues.items()},
        "free": partition.free_for(task),
        "leased": partition.leased(task),
        "acked": partition.acked[task],
        "claimed": partition.claimed[task],
        "redelivered": partition.redelivered[task],
        "committed": partition.versions.committed[task],
        "age": age.plain(),
        "lag": partition.lags[task].plain(),
    }


def full(partition: Partition, request: Put) -> FullError:
    """There is no room for the samples of a put."""
    count, others = len(request.sample_ids), partition.waiters.count(Put)
    return FullError(
        f"partition {partition.spec.partition_id!r} is full: {partition.resident} of {partition.spec.capacity}, and"
        f" {count} more don't fit" + (f", {others} puts wait before" if others else ""),
        hint="consume, commit or clear samples, or give it a larger capacity",
    )


def not_ready(partition: Partition, request: Claim) -> ClaimTimeoutError:
    """Too few samples are ready: says how many, and what the others lack."""
    spec, samples = partition.spec, partition.samples
    task, mask = spec.task(request.task_name), spec.mask(request.fields)
    ready = partition.queues.ready(task, mask, request.where)
    lines = [f"{ready} of at least {request.min_batch} were ready for {request.task_name!r}"]
    rows = np.flatnonzero(samples.alive & (samples.states[task] == FREE))
    for name in request.fields:
        lacking = int(np.count_nonzero(~samples.have(rows, spec.mask([name]))))
        if lacking:
            lines.append(f"{lacking} lack {name!r}")
    if broken := partition.queues.stranded(task):
        lines.append(f"{broken} are in incomplete groups")
    if request.where is not None and (others := partition.queues.ready(task, mask) - ready):
        lines.append(f"{others} are ready, but don't match the predicate")
    if partition.leased(task):
        lines.append(f"{partition.leased(task)} are claimed")
    return ClaimTimeoutError(f"partition {request.partition_id!r}: {', '.join(lines)}")


def ended(partition: Partition, request: Claim) -> EndOfStreamError:
    """Nothing is left that the claim could get."""
    task, mask = partition.spec.task(request.task_name), partition.spec.mask(request.fields)
    what = f"partition {request.partition_id!r} is sealed, and nothing is left for {request.task_name!r}"
    left = [
        (partition.queues.ready(task, mask, request.where), f"in groups larger than {request.batch_size}"),
        (partition.queues.stranded(task), "in incomplete groups"),
    ]
    but = " and ".join(f"{count} {why}" for count, why in left if count)
    return EndOfStreamError(f"{what} but {but}" if but else what)
