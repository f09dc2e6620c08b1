"""The operations that a client may ask of a ledger's host, as JSON data: the same for every host."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol

from tunegym.dataplane import errors
from tunegym.dataplane.errors import DataPlaneError, LeaseLostError, SpecError
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.ledger.stats import Histogram
from tunegym.dataplane.model import PartitionSpec
from tunegym.dataplane.predicate import from_plain

Arguments = Mapping[str, Any]
BEGAN = "began"
"""The argument of a put or claim with the time of the client's call, by the clock that all processes share."""
MESSAGE_BYTES = 256 << 20
"""The limit of a message between client and host: the metadata of about a million samples."""
LOOKS = frozenset({"locate", "consumed", "specs", "stats"})
"""Operations that change nothing; a journal needs all others."""
WAITING = frozenset({"put", "claim"})
"""Operations that may wait."""
_CLAIM = tuple(name for name in Claim._fields if name != "where")
_FINEST = (0.0001, 0.0003)
"""Histogram buckets for calls, below those of all other histograms."""


_FOLD = 1000
"""Calls that are counted at once."""


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


def perform(ledger: Ledger, operation: str, arguments: Arguments, now: float, *, wait: bool = False) -> Any:
    """Perform an operation: JSON data, or a ``Waiter`` if it has to wait and may.

    Raises:
        DataPlaneError: nothing was changed.
    """
    match operation:
        case "put":
            return _put(ledger, arguments, now, wait)
        case "claim":
            return _claim(ledger, arguments, now, wait)
        case "ack" | "release" | "extend" | "seal" | "write_tags" | "commit" | "clear":
            return getattr(ledger, operation)(**arguments, now=now)
        case "delete" | "consumed" | "locate":
            return getattr(ledger, operation)(**arguments)
        case "register":
            return _register(ledger, arguments["spec"])
        case "rewind":
            back, orphaned = ledger.rewind(**arguments, now=now)
            return {"given_back": back, "orphaned": orphaned, "epoch": ledger.epoch(arguments["partition_id"])}
        case "specs":
            return [{**asdict(spec), "epoch": ledger.epoch(spec.partition_id)} for spec in ledger.specs()]
        case "stats":
            return ledger.stats(now)
    raise SpecError(f"unknown operation {operation!r:.60}", hint="use the same version of tunegym everywhere")


def outcome_of(waiter: Waiter) -> Any:
    """The result of a settled waiter as JSON data. Raises its ``DataPlaneError``."""
    if isinstance(waiter.outcome, DataPlaneError):
        raise waiter.outcome
    return None if waiter.outcome is None else waiter.outcome.plain()


def claim_again(ledger: Ledger, arguments: Arguments, got: Sequence[Any], now: float) -> Any:
    """Repeat a claim from a journal, with the lease and the samples that it got."""
    lease, sample_ids = got
    return ledger.claim_again(_claim_of(arguments), lease, sample_ids, now).plain()


def release_rest(release: Callable[[Arguments], Any], asked: Arguments, got: Arguments) -> Arguments | None:
    """Release the samples of a claim that are still held; the arguments of the release, None for nothing.

    Args:
        release: performs it, or raises a ``DataPlaneError``.
        asked: the arguments of the claim.
        got: its result.
    """
    held = dict.fromkeys(got["sample_ids"], got["lease"])
    while held:
        names = {name: asked[name] for name in ("partition_id", "task_name")}
        given = {**names, "sample_ids": [*held], "leases": [*held.values()]}
        try:
            release(given)
        except LeaseLostError as error:
            lost = [name for name in error.sample_ids if held.pop(name, None) is not None]
            if not lost:
                return None
        except DataPlaneError:  # the partition is deleted, or the host is gone
            return None
        else:
            return given
    return None


def _put(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    known = {name: value for name, value in given.items() if name != "timeout_s"}
    known["shapes"] = {name: (kind, rank) for name, (kind, rank) in given["shapes"].items()}
    return ledger.put(Put(**known), now, _deadline(given, now), wait=wait)


def _claim(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    found = ledger.claim(_claim_of(given), now, _deadline(given, now), wait=wait)
    return found.plain() if isinstance(found, Grant) else found


def _claim_of(given: Arguments) -> Claim:
    where = given.get("where")
    return Claim(**{name: given[name] for name in _CLAIM}, where=None if where is None else from_plain(where))


def _deadline(given: Arguments, now: float) -> float | None:
    seconds = given.get("timeout_s")
    return None if seconds is None else now + seconds


def _register(ledger: Ledger, plain: Arguments) -> Any:
    spec = PartitionSpec(**{**plain, "fields": tuple(plain["fields"]), "tasks": tuple(plain["tasks"])})
    ledger.register(spec)
    return {"epoch": ledger.epoch(spec.partition_id)}


# errors -----------------------------------------------------------------------------------------------


def as_plain(error: DataPlaneError) -> dict[str, Any]:
    """An error as JSON data."""
    plain = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return {**plain, "sample_ids": error.sample_ids} if isinstance(error, LeaseLostError) else plain


def as_error(plain: Mapping[str, Any]) -> DataPlaneError:
    """The error of ``as_plain``."""
    kind = getattr(errors, str(plain.get("error")), DataPlaneError)
    if not (isinstance(kind, type) and issubclass(kind, DataPlaneError)):
        kind = DataPlaneError
    message, hint = str(plain.get("message")), plain.get("hint")
    if issubclass(kind, LeaseLostError):
        return kind(message, hint=hint, sample_ids=plain.get("sample_ids", ()))
    return kind(message, hint=hint)


# latencies --------------------------------------------------------------------------------------------


class _Begun(NamedTuple):
    """A call under way: its partition and task, when the client made it, and when the host got it."""

    place: tuple[str, str | None]
    began: float
    received: float


class Latencies:
    """Histograms of successful puts and claims since the host started. One thread at a time calls it.

    A latency is from the client's call to the ledger's answer, waiting included, without the way back. The wait is the
    part of it without room for the put, or with too few samples for the claim.
    """

    def __init__(self) -> None:
        self._begun: dict[Hashable, _Begun] = {}
        self._ended: list[tuple[tuple[str, str | None], float, float]] = []
        self._known: dict[tuple[str, str | None], tuple[Histogram, Histogram]] = {}

    def begin(self, key: Hashable, arguments: Arguments) -> dict[str, Any]:
        """A put or claim arrives; its arguments as the ledger takes them."""
        now = time.monotonic()
        plain = dict(arguments)
        began = float(plain.pop(BEGAN, now))
        self._begun[key] = _Begun((plain["partition_id"], plain.get("task_name")), min(began, now), now)
        return plain

    def end(self, key: Hashable, *, waited: bool) -> None:
        """The call succeeded."""
        call = self._begun.pop(key, None)
        if call is None:
            return
        now = time.monotonic()
        self._ended.append((call.place, now - call.began, now - call.received if waited else 0.0))
        if len(self._ended) >= _FOLD:
            self._fold()

    def _fold(self) -> None:
        for place, latency, wait in self._ended:
            known = self._known.setdefault(place, (Histogram(_FINEST), Histogram(_FINEST)))
            known[0].add_one(latency)
            known[1].add_one(wait)
        self._ended.clear()

    def drop(self, key: Hashable) -> None:
        """The call failed or was abandoned."""
        self._begun.pop(key, None)

    def forget(self, partition_id: str) -> None:
        """A partition is deleted."""
        self._fold()
        for place in [one for one in self._known if one[0] == partition_id]:
            del self._known[place]

    def add_to(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """A ledger's stats with these latencies."""
        self._fold()
        return {
            name: {
                **partition,
                **self._plain(name, None, "put"),
                "tasks": {
                    task: {**one, **self._plain(name, task, "claim")} for task, one in partition["tasks"].items()
                },
            }
            for name, partition in stats.items()
        }

    def _plain(self, partition_id: str, task_name: str | None, what: str) -> dict[str, Any]:
        latency, wait = self._known.get((partition_id, task_name)) or (Histogram(_FINEST), Histogram(_FINEST))
        return {f"{what}_latency": latency.plain(), f"{what}_wait": wait.plain()}
