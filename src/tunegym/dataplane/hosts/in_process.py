"""The ledger in this very process, for threads that share it by a name."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tunegym.core.interrupts import interrupts_deferred
from tunegym.dataplane.errors import ClosedError, DataPlaneError
from tunegym.dataplane.hosts.base import Handle
from tunegym.dataplane.hosts.latencies import Latencies
from tunegym.dataplane.hosts.operations import WAITING, perform, release_rest, told
from tunegym.dataplane.ledger.leasing import any_lease
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Waiter

S = TypeVar("S")


@dataclass
class SharedLedger(Generic[S]):
    """A ledger, its storage, and what keeps threads apart.

    Attributes:
        users: how many clients are open; with the last one it is gone.
        process: the one whose threads share it.
    """

    storage: S
    ledger: Ledger = field(default_factory=lambda: Ledger(any_lease()))
    latencies: Latencies = field(default_factory=Latencies)
    guard: threading.Lock = field(default_factory=threading.Lock)
    events: dict[int, threading.Event] = field(default_factory=dict)
    users: int = 0
    process: int = field(default_factory=os.getpid)


@dataclass
class _UnderWay:
    """A call that has reached the ledger.

    Attributes:
        found: what it came to, or who waits for that.
    """

    operation: str
    arguments: Mapping[str, Any]
    found: Any
    event: threading.Event | None = None


class InProcessHost(Generic[S]):
    """One client's hold on a shared ledger.

    Args:
        shared: with everybody of the same name.
        owner: names the client: what it has claimed is given back when it closes.
        free: lets the storage forget what nobody wants any more.
        on_close: called once.
    """

    durable = False

    def __init__(
        self,
        shared: SharedLedger[S],
        owner: str,
        free: Callable[[list[Mapping[str, Any]]], None],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._shared = shared
        self._owner = owner
        self._free = free
        self._on_close = on_close
        self._closed = False

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """See ``Host``."""
        handle = Handle() if handle is None else handle
        deadline = None if wait_s is None else time.monotonic() + wait_s
        with self._alone():
            self._check(handle)
            call = handle.under_way = self._begun(operation, arguments, wait_s, handle)
        return call.found if call.event is None else self._waited(call.found, call.event, deadline, handle)

    def _begun(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None, handle: Handle) -> _UnderWay:
        shared = self._shared
        now = time.monotonic()
        shared.ledger.expire(now)
        until = shared.ledger.next_deadline()
        if operation in WAITING:
            arguments = {**shared.latencies.heard(handle, arguments), "timeout_s": wait_s}
        try:
            found = perform(shared.ledger, operation, arguments, now, wait=wait_s is None or wait_s > 0)
        except BaseException:
            shared.latencies.refused(handle)
            raise
        if shared.ledger.next_deadline() < until:
            self._nudge()  # whoever waits must wake up earlier than it meant to
        event = None
        if isinstance(found, Waiter):
            event = shared.events[found.number] = threading.Event()
        else:
            shared.latencies.answered(handle, waited=False)
            if operation == "delete":
                shared.latencies.forget(arguments["partition_id"])
            elif operation == "stats":
                found = shared.latencies.added_to(found)
        self._wake()
        return _UnderWay(operation, arguments, found, event)

    def _waited(self, waiter: Waiter, event: threading.Event, deadline: float | None, handle: Handle) -> Any:
        """Wait by event; the time of leases and waits passes for everybody while one waits."""
        shared = self._shared
        while True:
            with self._alone():
                now = time.monotonic()
                shared.ledger.expire(now)
                self._wake()
                if waiter.settled:
                    if isinstance(waiter.outcome, DataPlaneError):
                        shared.latencies.refused(handle)
                    else:
                        shared.latencies.answered(handle, waited=True)
                    break
                if self._closed or handle.abandoned:
                    self._give_up(waiter, handle)
                    self._check(handle)
                until = shared.ledger.next_deadline()
                event.clear()
            until = until if deadline is None else min(until, deadline)
            event.wait(max(0.0, min(until - now, threading.TIMEOUT_MAX)))
        outcome = waiter.outcome
        if isinstance(outcome, DataPlaneError):
            raise outcome
        return told(outcome)

    def abandon(self, handle: Handle) -> bool:
        """See ``Host``."""
        with self._alone():
            handle.abandoned = True
            self._shared.latencies.refused(handle)
            call: _UnderWay | None = handle.under_way
            if call is None:
                return False
            got = call.found
            if isinstance(got, Waiter):
                if not got.settled:
                    self._give_up(got, handle)
                    return False
                if isinstance(got.outcome, DataPlaneError):
                    return False
                got = told(got.outcome)
            if call.operation == "claim":
                names = {name: call.arguments[name] for name in ("partition_id", "task_name")}
                given = {**names, "sample_ids": got["sample_ids"], "leases": got["leases"]}
                release_rest(
                    lambda held: perform(self._shared.ledger, "release", held, time.monotonic()),
                    given,
                )
            self._wake()
            return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else is at the ledger, and nothing interrupts what is done to it."""
        if self._shared.process != os.getpid():
            raise ClosedError(
                "this plane is in the memory of the process that made it, and this is a fork of it",
                hint="use mmap:///folder, and call connect or attach in each process",
            )
        with interrupts_deferred(), self._shared.guard:
            yield

    def _check(self, handle: Handle) -> None:
        if self._closed:
            raise ClosedError("the client is closed")
        if handle.abandoned:
            raise ClosedError("the call was given up")

    def _give_up(self, waiter: Waiter, handle: Handle) -> None:
        shared = self._shared
        shared.ledger.give_up(waiter, time.monotonic())
        shared.latencies.refused(handle)
        event = shared.events.pop(waiter.number, None)
        if event is not None:
            event.set()
        self._wake()

    def _wake(self) -> None:
        """After a change: tell those who need wait no more, and let bytes go."""
        for waiter in self._shared.ledger.take_settled():
            event = self._shared.events.pop(waiter.number, None)
            if event is not None:
                event.set()
        freed = self._shared.ledger.take_freed()
        if freed:
            self._free(freed)

    def _nudge(self) -> None:
        """Everybody who waits looks again."""
        for event in self._shared.events.values():
            event.set()

    def close(self) -> None:
        """See ``Host``."""
        if self._shared.process != os.getpid():
            return
        with self._alone():
            if self._closed:
                return
            self._closed = True
            self._shared.ledger.owner_gone(self._owner, time.monotonic())
            self._wake()
            self._nudge()
            self._on_close()
