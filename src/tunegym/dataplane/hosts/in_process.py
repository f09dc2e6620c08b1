"""The ledger in this very process, for threads that share it by a name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tunegym.dataplane.errors import ClosedError, DataPlaneError
from tunegym.dataplane.hosts.operations import WAITING, perform, told
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Waiter

S = TypeVar("S")


@dataclass
class SharedLedger(Generic[S]):
    """A ledger, its storage, and what keeps threads apart.

    Attributes:
        users: how many clients are open; with the last one it is gone.
    """

    storage: S
    ledger: Ledger = field(default_factory=Ledger)
    guard: threading.Lock = field(default_factory=threading.Lock)
    events: dict[int, threading.Event] = field(default_factory=dict)
    users: int = 0


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

    def call(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0) -> Any:
        """See ``Host``."""
        shared = self._shared
        deadline = None if wait_s is None else time.monotonic() + wait_s
        with shared.guard:
            if self._closed:
                raise ClosedError("the client is closed")
            now = time.monotonic()
            shared.ledger.expire(now)
            until = shared.ledger.next_deadline()
            if operation in WAITING:
                arguments = {**arguments, "timeout_s": wait_s}
            found = perform(shared.ledger, operation, arguments, now, wait=wait_s is None or wait_s > 0)
            if shared.ledger.next_deadline() < until:
                self._nudge()  # whoever waits must wake up earlier than it meant to
            if not isinstance(found, Waiter):
                self._wake()
                return found
            event = shared.events[found.number] = threading.Event()
            self._wake()
        return self._waited(found, event, deadline)

    def _waited(self, waiter: Waiter, event: threading.Event, deadline: float | None) -> Any:
        """Wait by event; the time of leases and waits passes for everybody while one waits."""
        shared = self._shared
        while True:
            with shared.guard:
                now = time.monotonic()
                shared.ledger.expire(now)
                self._wake()
                if waiter.settled:
                    break
                if self._closed:
                    shared.ledger.give_up(waiter)
                    shared.events.pop(waiter.number, None)
                    raise ClosedError("the client was closed while it waited")
                until = shared.ledger.next_deadline()
                event.clear()
            until = until if deadline is None else min(until, deadline)
            event.wait(max(0.0, min(until - now, threading.TIMEOUT_MAX)))
        outcome = waiter.outcome
        if isinstance(outcome, DataPlaneError):
            raise outcome
        return told(outcome)

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
        with self._shared.guard:
            if self._closed:
                return
            self._closed = True
            self._shared.ledger.owner_gone(self._owner, time.monotonic())
            self._wake()
            self._nudge()
        self._on_close()
