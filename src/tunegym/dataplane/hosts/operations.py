"""The operations that a client may ask of a ledger's host, as JSON data: the same for every host."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol

from tunegym.dataplane import errors
from tunegym.dataplane.errors import DataPlaneError, SpecError
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.partition import Histogram
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.model import PartitionSpec
from tunegym.dataplane.predicate import Predicate, TagOrder, from_plain

Arguments = Mapping[str, Any]
BEGAN = "began"
"""The argument of a put or claim with the time of the client's call, by the clock that all processes share."""
MESSAGE_BYTES = 256 << 20
"""The limit of a message between client and host: the metadata of about a million samples."""
LOOKS = frozenset({"locate", "consumed", "epoch", "list_samples", "specs", "stats"})
"""Operations that change nothing; a journal needs all others."""
WAITING = frozenset({"put", "claim"})
"""Operations that may wait."""
GIVE_UP = "give_up"
"""The call that ends an earlier put or claim, or releases what the claim got."""
BYE = "bye"
"""The last call of a client: its claims are released."""
_CLAIM = tuple(name for name in Claim._fields if name not in ("where", "order"))
_FINEST = (0.0001, 0.0003)
"""Histogram buckets for calls, below those of all other histograms."""


class Handle:
    """Identifies one call, so that another thread can abandon it.

    Attributes:
        abandoned: the answer is not wanted any more.
        call: what the host knows about the call; None before it has begun.
    """

    def __init__(self) -> None:
        self.abandoned = False
        self.call: Any = None


class Host(Protocol):
    """Holds the ledger and answers calls. Any thread may call it.

    Attributes:
        durable: whether acknowledged changes outlive the host's process.
    """

    durable: bool

    def call(
        self, operation: str, arguments: Arguments, wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """The result of ``perform``. A put or claim waits for up to ``wait_s``, None for forever.

        A caller that passes a handle abandons it if the call ends with neither a result nor a ``DataPlaneError``.

        Raises:
            DataPlaneError: of the ledger, or the host can't be reached.
        """
        ...

    def abandon(self, handle: Handle) -> bool:
        """The answer to a put or claim is not wanted any more; whether it had taken effect.

        A call that waits, or has not begun, ends with a ``ClosedError``. Claimed samples are released; a put that took
        effect stays. Any thread may call this, also after the call.
        """
        ...

    def close(self) -> None:
        """Close, and release all claims of this client. Calling it twice is fine."""
        ...


# performing -------------------------------------------------------------------------------------------


def new_owner() -> str:
    """The name of a client at its host, which begins with its process: ``stats`` lists the oldest leases by owner."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


def new_ledger() -> Ledger:
    """An empty ledger. Its leases start at a random number, so that a lease of one plane is no lease of another."""
    return Ledger(secrets.randbelow(2**48))


def perform(ledger: Ledger, operation: str, arguments: Arguments, now: float, *, wait: bool = False) -> Any:
    """Perform an operation: JSON data, or a ``Waiter`` if it has to wait and may.

    Raises:
        DataPlaneError: nothing was changed.
    """
    match operation:
        case "put" | "claim":
            return _ask(ledger, operation, arguments, now, wait)
        case "ack" | "release" | "end_lease" | "extend" | "seal" | "write_tags" | "commit" | "clear":
            return getattr(ledger, operation)(**arguments, now=now)
        case "delete" | "consumed" | "locate" | "epoch":
            return getattr(ledger, operation)(**arguments)
        case "register":
            return ledger.register(PartitionSpec(**arguments["spec"]))
        case "rewind":
            back, orphaned = ledger.rewind(**arguments, now=now)
            return {"given_back": back, "orphaned": orphaned, "epoch": ledger.epoch(arguments["partition_id"])}
        case "specs":
            return [asdict(one.spec) for one in ledger.partitions.values()]
        case "list_samples":
            return ledger.list_samples(**{**arguments, "where": _where_of(arguments)})
        case "stats":
            return ledger.stats(now)
    raise SpecError(f"unknown operation {operation!r:.60}", hint="use the same version of tunegym everywhere")


def outcome_of(waiter: Waiter) -> Any:
    """The result of a settled waiter as JSON data. Raises its ``DataPlaneError``."""
    if isinstance(waiter.outcome, DataPlaneError):
        raise waiter.outcome
    if isinstance(waiter.request, Put):
        return {"epoch": waiter.request.epoch}
    return None if waiter.outcome is None else waiter.outcome._asdict()


def claim_again(ledger: Ledger, arguments: Arguments, got: Sequence[Any], now: float) -> Any:
    """Repeat a claim from a journal, with the lease and the samples that it got."""
    lease, sample_ids = got
    return ledger.claim_again(_claim_of(arguments), lease, sample_ids, now)._asdict()


def _ask(ledger: Ledger, operation: str, arguments: Arguments, now: float, wait: bool) -> Any:
    given = dict(arguments)
    seconds = given.pop("timeout_s", None)
    deadline = None if seconds is None else now + seconds
    if operation == "put":
        waiter = ledger.put(Put(**given), now, deadline, wait=wait)
        return {"epoch": ledger.epoch(given["partition_id"])} if waiter is None else waiter
    found = ledger.claim(_claim_of(given), now, deadline, wait=wait)
    return found._asdict() if isinstance(found, Grant) else found


def _claim_of(given: Arguments) -> Claim:
    order = given.get("order", "oldest")
    plain: dict[str, Any] = {name: given[name] for name in _CLAIM}
    plain["order"] = order if isinstance(order, str) else TagOrder(order[1], order[0] == "desc")
    return Claim(**plain, where=_where_of(given))


def _where_of(given: Arguments) -> Predicate | None:
    return None if given.get("where") is None else from_plain(given["where"])


# errors -----------------------------------------------------------------------------------------------


def as_plain(error: DataPlaneError) -> dict[str, Any]:
    """An error as JSON data."""
    plain = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return {**plain, "sample_ids": error.sample_ids} if error.sample_ids else plain


def as_error(plain: Mapping[str, Any]) -> DataPlaneError:
    """The error of ``as_plain``."""
    kind = getattr(errors, str(plain.get("error")), DataPlaneError)
    return kind(str(plain.get("message")), hint=plain.get("hint"), sample_ids=plain.get("sample_ids", ()))


# latencies --------------------------------------------------------------------------------------------


class Begun(NamedTuple):
    """A put or claim under way: its partition and task, when the client made it, and when the host got it."""

    partition_id: str
    task_name: str | None
    began: float
    received: float


class Latencies:
    """Histograms of successful puts and claims since the host started. One thread at a time calls it.

    A latency is from the client's call to the ledger's answer, waiting included, without the way back. The wait is the
    part of it without room for the put, or with too few samples for the claim.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], tuple[Histogram, Histogram]] = {}

    @staticmethod
    def begin(arguments: dict[str, Any]) -> Begun:
        """A put or claim arrives. Takes ``BEGAN`` out of its arguments."""
        now = time.monotonic()
        began = min(float(arguments.pop(BEGAN, now)), now)
        return Begun(arguments["partition_id"], arguments.get("task_name"), began, now)

    def end(self, call: Begun, *, waited: bool) -> None:
        """The call succeeded."""
        now = time.monotonic()
        latency, wait = self._of(call.partition_id, call.task_name)
        latency.add_one(now - call.began)
        wait.add_one(now - call.received if waited else 0.0)

    def _of(self, partition_id: str, task_name: str | None) -> tuple[Histogram, Histogram]:
        place = partition_id, task_name
        if place not in self._known:
            self._known[place] = Histogram(_FINEST), Histogram(_FINEST)
        return self._known[place]

    def forget(self, partition_id: str) -> None:
        """A partition is deleted."""
        self._known = {place: one for place, one in self._known.items() if place[0] != partition_id}

    def add_to(self, stats: dict[str, Any]) -> None:
        """Add these latencies to a ledger's stats."""
        for name, partition in stats.items():
            partition |= self._plain(name, None, "put")
            for task, one in partition["tasks"].items():
                one |= self._plain(name, task, "claim")

    def _plain(self, partition_id: str, task_name: str | None, what: str) -> dict[str, Any]:
        latency, wait = self._of(partition_id, task_name)
        return {f"{what}_latency": latency.plain(), f"{what}_wait": wait.plain()}
