"""What a client may ask of a host, as plain data: the same for every host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunegym.dataplane import errors
from tunegym.dataplane.errors import DataPlaneError, LeaseLostError, SpecError
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.placing import Run
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter, plain_tickets, tickets_of
from tunegym.dataplane.model import PartitionSpec
from tunegym.dataplane.predicate import from_plain

Arguments = Mapping[str, Any]
_CLAIM = tuple(name for name in Claim._fields if name != "where")

CHANGES = frozenset(
    {
        "register",
        "delete",
        "seal",
        "put",
        "write_tags",
        "claim",
        "ack",
        "release",
        "extend",
        "commit",
        "rewind",
        "clear",
    }
)
"""Those that a journal must have; all others only look."""

WAITING = frozenset({"put", "claim"})
"""Those that may have to wait."""


def perform(ledger: Ledger, operation: str, arguments: Arguments, now: float, *, wait: bool = False) -> Any:
    """Do what is asked: plain data, or a ``Waiter`` if it has to wait, and may.

    Raises:
        DataPlaneError: it can't be done; nothing was changed.
    """
    handler = _HANDLERS.get(operation)
    if handler is None:
        raise SpecError(f"a plane has no operation {operation!r:.60}", hint="use the same version everywhere")
    return handler(ledger, arguments, now, wait)


def told(outcome: Grant | None) -> Any:
    """What a waiter came to, as plain data."""
    return None if outcome is None else outcome.plain()


def release_rest(release: Callable[[Arguments], Any], claimed: Arguments) -> Arguments | None:
    """Give back those samples of a claim that are still held: what was given back, or None for nothing.

    Args:
        release: does it, or raises a ``DataPlaneError``.
        claimed: what it is given, for the whole claim.
    """
    claimed = _with_tickets(claimed)
    while claimed["sample_ids"]:
        try:
            release({**claimed, "leases": plain_tickets(claimed["leases"])})
        except LeaseLostError as error:
            lost = frozenset(error.sample_ids)
            held = [at for at, name in enumerate(claimed["sample_ids"]) if name not in lost]
            if len(held) == len(claimed["sample_ids"]):
                return None
            rest = {key: [claimed[key][at] for at in held] for key in ("sample_ids", "leases")}
            claimed = {**claimed, **rest}
        except DataPlaneError:  # the partition is gone, or the host
            return None
        else:
            return {**claimed, "leases": plain_tickets(claimed["leases"])}
    return None


def as_plain(error: DataPlaneError) -> dict[str, Any]:
    """An error as plain data."""
    plain = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return {**plain, "sample_ids": error.sample_ids} if isinstance(error, LeaseLostError) else plain


def as_error(plain: Mapping[str, Any]) -> DataPlaneError:
    """The error again."""
    kind = getattr(errors, str(plain.get("error")), DataPlaneError)
    if not (isinstance(kind, type) and issubclass(kind, DataPlaneError)):
        kind = DataPlaneError
    message, hint = str(plain.get("message")), plain.get("hint")
    if issubclass(kind, LeaseLostError):
        return kind(message, hint=hint, sample_ids=plain.get("sample_ids", ()))
    return kind(message, hint=hint)


def spec_of(plain: Mapping[str, Any]) -> PartitionSpec:
    """A partition's spec from plain data."""
    known = {**plain, "fields": tuple(plain["fields"]), "tasks": tuple(plain["tasks"])}
    return PartitionSpec(**known)


# each operation ---------------------------------------------------------------------------------------


def _register(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del now, wait
    spec = spec_of(given["spec"])
    ledger.register(spec)
    return {"epoch": ledger.epoch(spec.partition_id)}


def _delete(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del now, wait
    ledger.delete(given["partition_id"])


def _seal(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    ledger.seal(given["partition_id"], now)


def _put(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    shapes = {name: (kind, rank) for name, (kind, rank) in given["shapes"].items()}
    request = Put(**{**_without(given, "timeout_s"), "shapes": shapes})
    return ledger.put(request, now, _deadline(given, now), wait=wait)


def _claim(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    found = ledger.claim(_claim_of(given), now, _deadline(given, now), wait=wait)
    return found if isinstance(found, Waiter) else found.plain()


def _claim_of(given: Arguments) -> Claim:
    where = given.get("where")
    known = {name: given[name] for name in _CLAIM}
    return Claim(**known, where=None if where is None else from_plain(where))


def claim_again(ledger: Ledger, arguments: Arguments, leases: Any, now: float) -> Any:
    """Repeat a claim of which one knows what it got, as plain data."""
    return ledger.claim_again(_claim_of(arguments), tickets_of(leases), now).plain()


def _write_tags(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    ledger.write_tags(given["partition_id"], given["sample_ids"], given["tags"], now)


def _ack(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    ledger.ack(**_with_tickets(given), now=now)


def _release(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    ledger.release(**_with_tickets(given), now=now)


def _extend(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    ledger.extend(**_with_tickets(given), now=now)


def _commit(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    return ledger.commit(**given, now=now)


def _rewind(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    back, orphaned = ledger.rewind(**given, now=now)
    return {"given_back": back, "orphaned": orphaned, "epoch": ledger.epoch(given["partition_id"])}


def _clear(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del wait
    return ledger.clear(**given, now=now)


def _locate(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del now, wait
    partition_id = given["partition_id"]
    found = ledger.locate(partition_id, given["sample_ids"], given["fields"])
    shared = list({id(runs): runs for runs in found.values()}.values())  # fields in the same places have one list
    blocks = sorted({block for runs in shared for block, _ in runs})
    return {
        "fields": {name: next(at for at, one in enumerate(shared) if one is runs) for name, runs in found.items()},
        "runs": [[_plain_run(run) for run in runs] for runs in shared],
        "blocks": [[block, ledger.location(partition_id, block)] for block in blocks],
    }


def _plain_run(run: Run) -> list[Any]:
    block, places = run
    return [block, places.start, places.stop] if isinstance(places, range) else [block, places]


def runs_of(plain: Sequence[Sequence[Any]]) -> list[Run]:
    """The runs of a ``locate``, from plain data."""
    return [(one[0], range(one[1], one[2]) if len(one) == 3 else one[1]) for one in plain]


def _consumed(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del now, wait
    return ledger.consumed(given["partition_id"], given["task_names"])


def _specs(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del given, now, wait
    return [{**asdict(spec), "epoch": ledger.epoch(spec.partition_id)} for spec in ledger.specs()]


def _stats(ledger: Ledger, given: Arguments, now: float, wait: bool) -> Any:
    del given, wait
    return ledger.stats(now)


_HANDLERS: Mapping[str, Callable[[Ledger, Arguments, float, bool], Any]] = {
    "register": _register,
    "delete": _delete,
    "seal": _seal,
    "put": _put,
    "claim": _claim,
    "write_tags": _write_tags,
    "ack": _ack,
    "release": _release,
    "extend": _extend,
    "commit": _commit,
    "rewind": _rewind,
    "clear": _clear,
    "locate": _locate,
    "consumed": _consumed,
    "specs": _specs,
    "stats": _stats,
}


def _with_tickets(given: Arguments) -> Arguments:
    return {**given, "leases": tickets_of(given["leases"])}


def _without(given: Arguments, *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


def _deadline(given: Arguments, now: float) -> float | None:
    seconds = given.get("timeout_s")
    return None if seconds is None else now + seconds
