"""A partition with its claims and those who wait at it: puts and claims that may have to wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunegym.dataplane.errors import DataPlaneError, SpecError, TagError
from tunegym.dataplane.ledger.claiming import Claiming
from tunegym.dataplane.ledger.leasing import MOST_LEASES, read_tickets, tickets
from tunegym.dataplane.ledger.partition import Partition
from tunegym.dataplane.ledger.putting import check_put, take_in
from tunegym.dataplane.ledger.reporting import ended, full, not_ready
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.ledger.spans import NOTHING, Span, every, size_of
from tunegym.dataplane.ledger.waiting import Waiting


@dataclass(slots=True)
class Common:
    """What all partitions of a ledger have in common.

    Attributes:
        lease, waiter: the last numbers that were given out.
        now: the time as it was last told.
        settled: those who wait no more, and were not handed out yet.
        freed: where the bytes are that nobody wants any more, and that were not handed out yet.
    """

    lease: int = 0
    waiter: int = 0
    now: float = 0.0
    settled: list[Waiter] = field(default_factory=list)
    freed: list[Mapping[str, Any]] = field(default_factory=list)


class Held:
    """A partition in a ledger. Whoever changes it calls ``settle`` afterwards."""

    def __init__(self, partition: Partition, common: Common) -> None:
        self.partition = partition
        self.claims = Claiming(partition)
        self.waiting = Waiting(self._waits_no_more)
        self._common = common
        self._kinds: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}

    # puts ---------------------------------------------------------------------------------------------

    def put(self, request: Put, now: float, deadline: float | None, wait: bool) -> Waiter | None:
        """See ``Ledger``. What brings no new samples never waits: others may wait for just that."""
        partition = self.partition
        checked = check_put(partition, request)
        if checked.new and (not partition.room(checked.new) or self.waiting.behind(request)):
            if not wait or partition.spec.on_full == "raise":
                raise full(partition, checked.new, self.waiting)
            return self._wait(request, deadline)
        take_in(partition, checked, now)
        self.settle(now)
        return None

    # claims -------------------------------------------------------------------------------------------

    def claim(self, request: Claim, now: float, deadline: float | None, wait: bool) -> Grant | Waiter:
        """See ``Ledger``."""
        self._check(request)
        if not self.waiting.behind(request):
            outcome = self._try(request, now)
            if isinstance(outcome, DataPlaneError):
                raise outcome
            if outcome is not None:
                return outcome
        if not wait:
            raise not_ready(self.partition, self.claims, request)
        return self._wait(request, deadline)

    def claim_again(self, request: Claim, leases: Sequence[int], now: float) -> Grant:
        """See ``Ledger``."""
        spec = self.partition.spec
        numbers, rows = read_tickets(leases)
        number, task = numbers if isinstance(numbers, int) else int(numbers[0]), spec.task(request.task_name)
        self.claims.claim_these(task, spec.mask(request.fields), rows, now)
        self._common.lease = max(self._common.lease, number)
        return self._lease(request, task, number, rows, now)

    def _try(self, request: Claim, now: float) -> Grant | DataPlaneError | None:
        partition, claims = self.partition, self.claims
        task, mask = self._kind(request)
        try:
            rows = claims.claim(task, mask, request.batch_size, request.min_batch, request.where, now)
            if rows is None and partition.sealed:
                rows = self._rest(request, task, mask, now)
        except TagError as error:
            return error
        if rows is None:
            return None
        if not size_of(rows):
            return ended(partition, claims, request)
        self._common.lease = self._common.lease % MOST_LEASES + 1
        return self._lease(request, task, self._common.lease, rows, now)

    def _rest(self, request: Claim, task: int, mask: int, now: float) -> Span | None:
        """Of a sealed partition, what is left once no more can become ready; nothing at the end of the stream."""
        partition, claims = self.partition, self.claims
        if partition.leased[task]:
            return None  # they may be given back
        if partition.free_for(task) > claims.ready(task, mask) + partition.queues.stranded(task):
            return None  # their fields may still be written
        rows = claims.claim(task, mask, request.batch_size, 1, request.where, now)
        return NOTHING if rows is None else rows

    def _lease(self, request: Claim, task: int, number: int, rows: Span, now: float) -> Grant:
        self.claims.lease(number, task, rows, request.owner, now + request.lease_s)
        table, groups = self.partition.rows, self.partition.groups
        known = table.arrivals.of(rows)
        if known is not None:
            epoch, tags = self.partition.epoch, None if known.tags is None else dict(known.tags)
            lengths = None if known.lengths is None else list(known.lengths)
            return Grant(list(known.sample_ids), tickets(number, rows), epoch, lengths, tags, None)
        lengths = table.lengths[rows]
        return Grant(
            table.ids.names(rows),
            tickets(number, rows),
            self.partition.epoch,
            lengths.tolist() if every(lengths >= 0) else None,
            table.tags.of(rows),
            None if groups is None else [groups.name(one) for one in table.groups[rows].tolist()],
        )

    # time and owners ----------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Leases and waits that are over by now end."""
        over = self.partition.leases.over(now)
        if over:
            self.claims.end(over)
            self.settle(now)
        late = self.waiting.overdue(now)
        for waiter in late:
            self.waiting.remove(waiter)
        for waiter in late:
            request = waiter.request
            if isinstance(request, Claim):
                self._answer(waiter, self._too_late(request))
            else:
                self._answer(waiter, full(self.partition, len(request.sample_ids), self.waiting))
        if late:  # others may have stood behind them
            self.settle(now)

    def _too_late(self, request: Claim) -> DataPlaneError:
        try:
            return not_ready(self.partition, self.claims, request)
        except TagError as error:  # of samples that were too few to be looked at until now
            return error

    def owner_gone(self, owner: str, now: float) -> int:
        """Give back an owner's claims, and let it wait no more. How many samples came back."""
        waiters, own = self.waiting.of(owner), self.partition.leases.of(owner)
        for waiter in waiters:
            self.waiting.remove(waiter)
        back = self.claims.end(own)
        if own or waiters:
            self.settle(now)
        return back

    # who waits ----------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Something has changed: see to those who wait, and to what nobody wants any more."""
        common = self._common
        common.now = max(common.now, now)
        if self.waiting:
            self.waiting.serve(lambda request: self._attempt(request, now), self._answer)
        common.freed += self.partition.blocks.take_freed()

    def delete(self, error: DataPlaneError) -> None:
        """The partition is gone: let go of all bytes, and tell those who wait."""
        self.partition.blocks.free_all()
        self._common.freed += self.partition.blocks.take_freed()
        for waiter in self.waiting.all():
            self.waiting.remove(waiter)
            self._answer(waiter, error)

    def _wait(self, request: Put | Claim, deadline: float | None) -> Waiter:
        self._common.waiter += 1
        waiter = Waiter(self._common.waiter, request, deadline)
        self.waiting.add(waiter)
        if isinstance(request, Claim) and request.where is not None:
            self.claims.watches.hold(*self._kind(request), request.where)
        return waiter

    def _waits_no_more(self, waiter: Waiter) -> None:
        request = waiter.request
        if isinstance(request, Claim) and request.where is not None:
            self.claims.watches.let_go(*self._kind(request), request.where)

    def _check(self, request: Claim) -> None:
        """Refuse a claim that makes no sense."""
        self._kind(request)
        spec = self.partition.spec
        if not 1 <= request.min_batch <= request.batch_size:
            raise SpecError(
                f"min_batch is {request.min_batch}, batch_size {request.batch_size}",
                hint="give integers of at least 1, min_batch at most batch_size",
            )
        if spec.capacity is not None and request.min_batch > spec.capacity:
            raise SpecError(
                f"a claim of at least {request.min_batch} never comes true at a capacity of {spec.capacity}",
                hint="claim fewer, or register the partition with a larger capacity",
            )
        size = spec.group_size
        if size is not None and request.batch_size // size * size < request.min_batch:
            raise SpecError(
                f"groups of {size} never make {request.min_batch} to {request.batch_size} samples",
                hint=f"give a batch_size that is a multiple of {size}, or a smaller min_batch",
            )

    def _kind(self, request: Claim) -> tuple[int, int]:
        """Task and fields of a claim, as numbers. Raises ``SpecError`` for such as are not registered."""
        key = request.task_name, tuple(request.fields)
        known = self._kinds.get(key)
        if known is None:
            spec = self.partition.spec
            known = self._kinds[key] = spec.task(request.task_name), spec.mask(request.fields)
        return known

    def _attempt(self, request: Put | Claim, now: float) -> tuple[Grant | DataPlaneError | None] | None:
        """What comes of a request that waits; None if it must wait on."""
        if isinstance(request, Claim):
            found = self._try(request, now)
            return None if found is None else (found,)
        try:
            checked = check_put(self.partition, request)
        except DataPlaneError as error:
            return (error,)
        if checked.new and not self.partition.room(checked.new):
            return None
        take_in(self.partition, checked, now)
        return (None,)

    def _answer(self, waiter: Waiter, outcome: Grant | DataPlaneError | None) -> None:
        waiter.outcome, waiter.settled = outcome, True
        self._common.settled.append(waiter)
