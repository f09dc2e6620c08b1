"""A ledger in this process, shared by its threads under a name: ``memory://name``."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.dataplane.connect import Plane, find
from tunegym.dataplane.errors import ClosedError, DataPlaneError, NoPlaneError, SpecError
from tunegym.dataplane.hosts.operations import (
    WAITING,
    Begun,
    Handle,
    Latencies,
    new_ledger,
    new_owner,
    outcome_of,
    perform,
)
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Waiter
from tunegym.dataplane.storage import Storage


@dataclass
class SharedLedger:
    """A ledger, its storage, and the lock of the threads that share them."""

    storage: Storage
    ledger: Ledger = field(default_factory=new_ledger)
    latencies: Latencies = field(default_factory=Latencies)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # set when a call is done waiting or the next deadline is earlier, then replaced by a new event
    changed: threading.Event = field(default_factory=threading.Event)
    users: int = 0  # the number of open clients; the plane ends with the last one

    @contextlib.contextmanager
    def change(self) -> Iterator[float]:
        """The time, alone at the ledger, and not interrupted by Ctrl-C in the middle of a change.

        Ends leases and waits whose time is over. Afterwards wakes the threads whose calls are settled, and frees bytes.
        """
        with _interrupts_deferred(), self.lock:
            until = self.ledger.next_deadline()
            now = time.monotonic()
            self.ledger.expire(now)
            try:
                yield now
            finally:
                while freed := self.ledger.take_freed():
                    self.storage.free(freed)
                    self.ledger.given_back({}, now)
                if self.ledger.take_settled() or self.ledger.next_deadline() < until:
                    self.wake()

    def wake(self) -> None:
        """Let all waiting threads look again."""
        self.changed.set()
        self.changed = threading.Event()


class LocalHost:
    """One client's access to the ledger of a name.

    Args:
        owner: the client: its claims are released when it closes.
    """

    durable = False

    def __init__(self, name: str, shared: SharedLedger, owner: str) -> None:
        self._name = name
        self._shared = shared
        self._owner = owner
        self._closed = False

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """See ``Host``."""
        shared, begun, given = self._shared, None, dict(arguments)
        handle = Handle() if handle is None else handle
        with shared.change() as now:
            self._check(handle)
            if operation in WAITING:
                begun, given["timeout_s"] = Latencies.begin(given), wait_s
            found = perform(shared.ledger, operation, given, now, wait=wait_s is None or wait_s > 0)
            handle.call = operation, given, found
            if operation == "delete":
                shared.latencies.forget(given["partition_id"])
            elif operation == "stats":
                shared.latencies.add_to(found)
            elif begun is not None and not isinstance(found, Waiter):
                shared.latencies.end(begun, waited=False)
        return self._wait(found, begun, handle) if isinstance(found, Waiter) and begun is not None else found

    def _wait(self, waiter: Waiter, begun: Begun, handle: Handle) -> Any:
        """Wait by event. Waiting threads also end the leases and waits whose time is over."""
        shared = self._shared
        while True:
            with shared.change() as now:
                if waiter.settled:
                    if not isinstance(waiter.outcome, DataPlaneError):
                        shared.latencies.end(begun, waited=True)
                    return outcome_of(waiter)
                if self._closed or handle.abandoned:
                    shared.ledger.give_up(waiter, now)
                    self._check(handle)
                until, changed = shared.ledger.next_deadline(), shared.changed
            changed.wait(max(0.0, min(until - now, threading.TIMEOUT_MAX)))

    def abandon(self, handle: Handle) -> bool:
        """See ``Host``."""
        shared = self._shared
        with shared.change() as now:
            handle.abandoned = True
            if handle.call is None:
                return False
            operation, arguments, got = handle.call
            if isinstance(got, Waiter):
                if not got.settled:
                    shared.ledger.give_up(got, now)
                    shared.wake()
                if not got.settled or isinstance(got.outcome, DataPlaneError):
                    return False
                got = outcome_of(got)
            if operation == "claim" and arguments["partition_id"] in shared.ledger.partitions:
                shared.ledger.end_lease(arguments["partition_id"], got["lease"], now)
            return True

    def _check(self, handle: Handle) -> None:
        if self._closed:
            raise ClosedError("the client is closed")
        if handle.abandoned:
            raise ClosedError("the call was given up")

    def close(self) -> None:
        """See ``Host``."""
        with self._shared.change() as now:
            if self._closed:
                return
            self._closed = True
            self._shared.ledger.owner_gone(self._owner, now)
            self._shared.wake()
        with _LOCK:
            self._shared.users -= 1
            if not self._shared.users and _LEDGERS.get(self._name) is self._shared:
                del _LEDGERS[self._name]


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Handle a Ctrl-C in the main thread afterwards: a half-done change would spoil the ledger for all threads."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    arrived: list[Any] = []
    signal.signal(signal.SIGINT, lambda *signalled: arrived.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[0])


_LEDGERS: dict[str, SharedLedger] = {}
"""The ledgers of this process by name. A forked child starts without any."""
_LOCK = threading.Lock()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
os.register_at_fork(after_in_child=_LEDGERS.clear)


def open_plane(address: str, *, make: bool, linger_s: float, timeout_s: float) -> Plane:  # noqa: ARG001 - no process
    """The backend of ``memory://name``: see ``tunegym.dataplane.connect.Opener``."""
    if not address:
        raise SpecError("memory:// needs a name", hint="write for example memory://rollouts")
    with _LOCK:
        if address not in _LEDGERS and make:
            _LEDGERS[address] = SharedLedger(find("storages", "memory")())
        shared = _LEDGERS.get(address)
        if shared is None:
            raise NoPlaneError(
                f"there is no plane memory://{address} in this process", hint="connect() makes one, attach() only joins"
            )
        shared.users += 1
    owner = new_owner()
    return Plane(LocalHost(address, shared, owner), shared.storage, owner)
