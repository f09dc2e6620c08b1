"""What a ledger says of itself: why somebody got nothing, and how much of what there is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunegym.dataplane.errors import ClaimTimeoutError, EndOfStreamError, FullError
from tunegym.dataplane.ledger.claiming import Claiming
from tunegym.dataplane.ledger.measures import histogram_of
from tunegym.dataplane.ledger.partition import Partition
from tunegym.dataplane.ledger.requests import Claim, Put
from tunegym.dataplane.ledger.rows import FREE
from tunegym.dataplane.ledger.waiting import Waiting


def full(partition: Partition, count: int, waiting: Waiting) -> FullError:
    """There is no room for so many."""
    others = waiting.count(Put)
    return FullError(
        f"partition {partition.spec.partition_id!r} is full: {partition.resident} of {partition.spec.capacity}, and"
        f" {count} more don't fit" + (f", {others} puts wait before" if others else ""),
        hint="consume, commit or clear samples, or give it a larger capacity",
    )


def not_ready(partition: Partition, claims: Claiming, request: Claim) -> ClaimTimeoutError:
    """How many were ready, and what the others lack."""
    task, mask = partition.spec.task(request.task_name), partition.spec.mask(request.fields)
    ready = claims.ready(task, mask, request.where)
    lines = [f"{ready} of at least {request.min_batch} were ready for {request.task_name!r}"]
    rows = np.flatnonzero(partition.rows.alive & (partition.rows.states[task] == FREE))
    for name in request.fields:
        bit = partition.rows.produced.dtype.type(partition.spec.mask([name]))
        lacking = int(np.count_nonzero((partition.rows.produced[rows] & bit) == 0))
        if lacking:
            lines.append(f"{lacking} lack {name!r}")
    if broken := partition.queues.stranded(task):
        lines.append(f"{broken} are of groups that are not whole")
    if request.where is not None and (others := claims.ready(task, mask) - ready):
        lines.append(f"{others} are ready, and not wanted")
    if partition.leased[task]:
        lines.append(f"{partition.leased[task]} are claimed")
    return ClaimTimeoutError(f"partition {request.partition_id!r}: {', '.join(lines)}")


def ended(partition: Partition, claims: Claiming, request: Claim) -> EndOfStreamError:
    """Nothing is left that the claim could get."""
    task, mask = partition.spec.task(request.task_name), partition.spec.mask(request.fields)
    what = f"partition {request.partition_id!r} is sealed, and nothing is left for {request.task_name!r}"
    left = [
        (claims.ready(task, mask, request.where), f"in groups larger than {request.batch_size}"),
        (partition.queues.stranded(task), "of groups that are not whole"),
    ]
    but = " and ".join(f"{count} {why}" for count, why in left if count)
    return EndOfStreamError(f"{what} but {but}" if but else what)


def stats_of(partition: Partition, claims: Claiming, waiting: Waiting, now: float) -> dict[str, Any]:
    """How a partition stands, as plain data. All of it is counted as it happens, but for the ages."""
    spec = partition.spec
    return {
        "produced": partition.produced,
        "resident": partition.resident,
        "alive": partition.alive,
        "capacity": spec.capacity,
        "bytes": partition.blocks.nbytes,
        "blocks": len(partition.blocks.known),
        "epoch": partition.epoch,
        "sealed": partition.sealed,
        "gone": {reason: count for reason, count in partition.gone.items() if count},
        "waiting": {"puts": waiting.count(Put), "claims": waiting.count(Claim)},
        "tasks": {name: _task_stats(partition, claims, task, now) for task, name in enumerate(spec.tasks)},
    }


def _task_stats(partition: Partition, claims: Claiming, task: int, now: float) -> dict[str, Any]:
    """One task's: ``ready`` by the fields of the claims that there were, ``free`` for those that may come."""
    queues = partition.queues.by_task[task]
    ready = np.zeros(partition.rows.size, dtype=bool)
    for queue in queues.values():
        queue.mark(ready)
    return {
        "ready": {",".join(partition.spec.names(mask)): queue.count for mask, queue in queues.items()},
        "free": partition.free_for(task),
        "leased": partition.leased[task],
        "acked": partition.acked[task],
        "claimed": claims.claimed[task],
        "redelivered": claims.redelivered[task],
        "committed": claims.versions.committed[task],
        "age": histogram_of(now - partition.rows.born[ready]),
        "lag": claims.lags[task].plain(),
    }
