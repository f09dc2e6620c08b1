"""A ledger in this process, shared by its threads under a name: ``memory://name``."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.dataplane.connect import Plane, find
from tunegym.dataplane.errors import ClosedError, DataPlaneError, NoPlaneError, SpecError
from tunegym.dataplane.hosts.operations import WAITING, Handle, Latencies, outcome_of, perform, release_rest
from tunegym.dataplane.ledger.leases import first_lease
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Waiter
from tunegym.dataplane.storage import Storage


@dataclass
class SharedLedger:
    """A ledger, its storage, and the lock of the threads that share them.

    Attributes:
        users: open clients; the plane ends with the last one.
        events: wake waiting calls, by the number of their waiter.
    """

    storage: Storage
    ledger: Ledger = field(default_factory=lambda: Ledger(first_lease()))
    latencies: Latencies = field(default_factory=Latencies)
    lock: threading.Lock = field(default_factory=threading.Lock)
    events: dict[int, threading.Event] = field(default_factory=dict)
    users: int = 0


class SharedLedgers:
    """The ledgers of this process by name. A forked child starts without any."""

    def __init__(self) -> None:
        self._ledgers: dict[str, SharedLedger] = {}
        self._lock = threading.Lock()

    def join(self, name: str, *, make: bool) -> SharedLedger | None:
        """The ledger of a name, with one more user; None if there is none and ``make`` is false."""
        with self._lock:
            shared = self._ledgers.get(name)
            if shared is None and make:
                shared = self._ledgers[name] = SharedLedger(find("storages", "memory")())
            if shared is not None:
                shared.users += 1
            return shared

    def leave(self, name: str, shared: SharedLedger) -> None:
        """A user is gone; with the last one the ledger is."""
        with self._lock:
            shared.users -= 1
            if shared.users == 0 and self._ledgers.get(name) is shared:
                del self._ledgers[name]


SHARED = SharedLedgers()
os.register_at_fork(after_in_child=SHARED.__init__)


@dataclass
class _Call:
    """A call that has reached the ledger.

    Attributes:
        found: its result, or its waiter.
        event: wakes the waiting thread; None if the call did not wait.
    """

    operation: str
    arguments: Mapping[str, Any]
    found: Any
    event: threading.Event | None = None


class LocalHost:
    """One client's access to a shared ledger.

    Args:
        shared: the ledger.
        owner: the client: its claims are released when it closes.
        on_close: called once.
    """

    durable = False

    def __init__(self, shared: SharedLedger, owner: str, on_close: Callable[[], None] = lambda: None) -> None:
        self._shared = shared
        self._owner = owner
        self._on_close = on_close
        self._closed = False

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """See ``Host``."""
        handle = Handle() if handle is None else handle
        deadline = None if wait_s is None else time.monotonic() + wait_s
        with self._locked():
            self._check(handle)
            call = handle.call = self._begin(operation, arguments, wait_s, handle)
        return call.found if call.event is None else self._wait(call.found, call.event, deadline, handle)

    def _begin(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None, handle: Handle) -> _Call:
        shared = self._shared
        now = time.monotonic()
        shared.ledger.expire(now)
        until = shared.ledger.next_deadline()
        if operation in WAITING:
            arguments = {**shared.latencies.begin(handle, arguments), "timeout_s": wait_s}
        try:
            found = perform(shared.ledger, operation, arguments, now, wait=wait_s is None or wait_s > 0)
        except BaseException:
            shared.latencies.drop(handle)
            raise
        if shared.ledger.next_deadline() < until:
            self._wake_all()  # waiting threads must wake up earlier
        event = None
        if isinstance(found, Waiter):
            event = shared.events[found.number] = threading.Event()
        else:
            shared.latencies.end(handle, waited=False)
            if operation == "delete":
                shared.latencies.forget(arguments["partition_id"])
            elif operation == "stats":
                found = shared.latencies.add_to(found)
        self._settle()
        return _Call(operation, arguments, found, event)

    def _wait(self, waiter: Waiter, event: threading.Event, deadline: float | None, handle: Handle) -> Any:
        """Wait by event. Waiting threads also end the leases and waits whose time is over."""
        shared = self._shared
        while True:
            with self._locked():
                now = time.monotonic()
                shared.ledger.expire(now)
                self._settle()
                if waiter.settled:
                    break
                if self._closed or handle.abandoned:
                    self._give_up(waiter, handle)
                    self._check(handle)
                until = shared.ledger.next_deadline()
                event.clear()
            until = until if deadline is None else min(until, deadline)
            event.wait(max(0.0, min(until - now, threading.TIMEOUT_MAX)))
        with self._locked():
            if isinstance(waiter.outcome, DataPlaneError):
                shared.latencies.drop(handle)
            else:
                shared.latencies.end(handle, waited=True)
        return outcome_of(waiter)

    def abandon(self, handle: Handle) -> bool:
        """See ``Host``."""
        with self._locked():
            handle.abandoned = True
            self._shared.latencies.drop(handle)
            call: _Call | None = handle.call
            if call is None:
                return False
            got = call.found
            if isinstance(got, Waiter):
                if not got.settled:
                    self._give_up(got, handle)
                if not got.settled or isinstance(got.outcome, DataPlaneError):
                    return False
                got = outcome_of(got)
            if call.operation == "claim":
                ledger, now = self._shared.ledger, time.monotonic()
                release_rest(lambda held: perform(ledger, "release", held, now), call.arguments, got)
            self._settle()
            return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone at the ledger, and not interrupted by Ctrl-C in the middle of a change."""
        with _interrupts_deferred(), self._shared.lock:
            yield

    def _check(self, handle: Handle) -> None:
        if self._closed:
            raise ClosedError("the client is closed")
        if handle.abandoned:
            raise ClosedError("the call was given up")

    def _give_up(self, waiter: Waiter, handle: Handle) -> None:
        shared = self._shared
        shared.ledger.give_up(waiter, time.monotonic())
        shared.latencies.drop(handle)
        event = shared.events.pop(waiter.number, None)
        if event is not None:
            event.set()
        self._settle()

    def _settle(self) -> None:
        """After a change: wake the calls that are done waiting, and free bytes."""
        for waiter in self._shared.ledger.take_settled():
            event = self._shared.events.pop(waiter.number, None)
            if event is not None:
                event.set()
        freed = self._shared.ledger.take_freed()
        if freed:
            self._shared.storage.free(freed)

    def _wake_all(self) -> None:
        for event in self._shared.events.values():
            event.set()

    def close(self) -> None:
        """See ``Host``."""
        with self._locked():
            if self._closed:
                return
            self._closed = True
            self._shared.ledger.owner_gone(self._owner, time.monotonic())
            self._settle()
            self._wake_all()
        self._on_close()


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


def open_plane(address: str, *, make: bool, linger_s: float) -> Plane:  # noqa: ARG001 - it has no process
    """The backend of ``memory://name``: see ``tunegym.dataplane.connect.Opener``."""
    if not address:
        raise SpecError("memory:// needs a name", hint="write for example memory://rollouts")
    shared = SHARED.join(address, make=make)
    if shared is None:
        raise NoPlaneError(
            f"there is no plane memory://{address} in this process", hint="connect() makes one, attach() only joins"
        )
    owner = uuid.uuid4().hex
    host = LocalHost(shared, owner, lambda: SHARED.leave(address, shared))
    return Plane(host, shared.storage, owner)
