"""The ledger with its journal, for many clients: a change is in the journal before its answer, and takes effect once.

The journal records calls that succeeded, in order, with the time of each; replaying them gives the same ledger. The
answers to a client's latest calls are kept, so that a call that is repeated after a broken connection is only answered
again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from tunegym.core.processes import boot_id, process_start_time
from tunegym.dataplane.errors import ClosedError, DataPlaneError, LostError, StorageError, UnknownPartitionError
from tunegym.dataplane.hosts.journal import RESERVE, LedgerJournal
from tunegym.dataplane.hosts.operations import (
    GIVE_UP,
    LOOKS,
    WAITING,
    Begun,
    Latencies,
    as_plain,
    claim_again,
    new_ledger,
    outcome_of,
    perform,
)
from tunegym.dataplane.ledger.requests import Waiter
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.model import few
from tunegym.dataplane.storage import BlockUsage

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""At least so often ``pass_time`` is called."""
PAUSE_S = 1.0
"""A host that looks so much later than it meant to was paused."""
ABSENT_S = 10.0
"""How long a client in another container may be without a connection before its claims are released."""
RETURN_S = 20.0
"""How much longer a client on another node has to connect again after the host was restarted."""
IDLE_S = 600.0
"""The same for a client in another container, which connects again at its next call only."""
_FOR_ROOM = RESERVE // 2
"""The part of the journal's reserve that only acks, clears and commits may use."""


class Call(NamedTuple):
    """A call of a client.

    Attributes:
        name: the client.
        number: of the call, in the order in which the client made them.
        pending: earlier calls whose answers the client did not have when it made this one.
        begun: of a put or claim.
    """

    name: str
    number: int
    pending: Sequence[int]
    operation: str
    arguments: Mapping[str, Any]
    begun: Begun | None = None


Reply = tuple[Call, Any]
"""A call, and its answer: ``{"value": ...}`` or an error."""


@dataclass
class Caller:
    """One client, over all of its connections."""

    name: str
    pid: int  # pid, start, boot: identify its process
    start: str
    boot: str
    # answers to calls that took effect, by number, while the client may ask again
    replies: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)  # its calls that wait, by number
    left: float = math.inf  # when its connection to this host ended
    lost: dict[str, list[str]] = field(default_factory=dict)  # by partition, its samples that it must be told are lost

    def alive(self) -> bool:
        """Whether its process lives. In another container or node (no boot) the end of its connection decides."""
        if self.boot == boot_id():
            return process_start_time(self.pid) == self.start
        if self.boot and self.boot.partition("/")[0] != boot_id().partition("/")[0]:
            return False  # the machine was restarted since
        return time.monotonic() - self.left < ABSENT_S

    def forget(self, number: int, pending: Sequence[int]) -> None:
        """When the client made this call, it had the answers to all earlier calls but ``pending``."""
        for one in [one for one in self.replies if one < number and one not in pending]:
            del self.replies[one]

    def tell(self, number: int, partition_id: str) -> LostError:
        """Answer a put with its samples that are lost; the answer is kept like one that took effect."""
        lost = self.lost.pop(partition_id)
        what = f"{len(lost)} samples of this producer are lost with the node that held them: {few(lost)}"
        error = LostError(what, hint="produce others in their place, and put these again", sample_ids=lost)
        self.replies[number] = as_plain(error)
        return error

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        kept = [[number, reply] for number, reply in self.replies.items()]
        more = {"replies": kept, "lost": self.lost}
        return {"name": self.name, "pid": self.pid, "start": self.start, "boot": self.boot, **more}


def _caller_of(plain: Mapping[str, Any]) -> Caller:
    replies = {int(number): reply for number, reply in plain.get("replies", ())}
    pid, start, boot = int(plain["pid"]), str(plain["start"]), str(plain["boot"])
    left = time.monotonic() + (IDLE_S if boot else RETURN_S)  # it connects again, if it lives
    return Caller(plain["name"], pid, start, boot, replies, left=left, lost=plain.get("lost", {}))


class LedgerService:
    """Drives a ledger for many clients. One thread calls it; ``take_replies`` returns what may be sent.

    Args:
        journal: of the plane.
        segments: the usage of the plane's bytes.
    """

    def __init__(self, journal: LedgerJournal, segments: BlockUsage) -> None:
        self.ledger = new_ledger()
        self.callers: dict[str, Caller] = {}
        self._journal = journal
        self.segments = segments
        self._waiting: dict[int, Call] = {}  # by the number of the waiter
        self._replies: list[Reply] = []
        self._latencies = Latencies()
        self._moves: Iterator[Mapping[str, Any]] | None = None
        self._behind = 0.0
        self._last = 0.0
        self._seen = 0.0
        self._due = math.inf

    def recover(self) -> int:
        """Restore the state of the last host; the number of replayed changes. Raises ``StorageError``."""
        count = self._journal.recover(self._restore, self._replay)
        self._behind = self._last - time.monotonic()
        self.ledger.take_freed()
        missing = self.segments.recover(self.ledger.locations())
        if missing:
            logger.error("bytes are missing, and the samples in them: %s", ", ".join(missing[:5]))
        return count

    def now(self) -> float:
        """The ledger's time. It stands still while the host does not run: stopped, suspended, or between two hosts.

        So no lease ends because its owner found no host to extend it.
        """
        seen = time.monotonic()
        if seen > self._due + PAUSE_S:
            self._behind -= seen - self._seen
            self._due = seen
        self._seen = seen
        return seen + self._behind

    # calls --------------------------------------------------------------------------------------------

    def join(self, plain: Mapping[str, Any]) -> Caller:
        """A client introduces itself, perhaps again. Raises ``StorageError`` if the journal is full."""
        known = self.callers.get(str(plain.get("name")))
        if known is None:
            self._journal.check_room(_FOR_ROOM)
            known = _caller_of(plain)
            self._journal.add(["join", self.now(), known.plain()])
            self.callers[known.name] = known
        return known

    def call(self, call: Call, wait_s: float | None) -> None:
        """A client calls. The answer is among the replies, now or at the end of its wait."""
        caller = self.callers[call.name]
        caller.forget(call.number, call.pending)
        if call.number in caller.replies:
            self._replies.append((call, caller.replies[call.number]))
            return
        if call.number in caller.waiting:  # repeated, and still waiting
            return
        now = self.now()
        if call.operation == GIVE_UP:
            self._give_up(caller, call, now)
            return
        if call.operation in WAITING:
            arguments = {**call.arguments, "owner": call.name, "timeout_s": wait_s}
            call = call._replace(begun=Latencies.begin(arguments), arguments=arguments)
        try:
            if call.operation == "put":
                self._journal.check_room()
                self.segments.keep(call.arguments["location"])
                if (partition_id := call.arguments["partition_id"]) in caller.lost:
                    self._journal.add(["told", now, caller.name, call.number, partition_id])
                    raise caller.tell(call.number, partition_id)
            elif call.operation == "claim":
                self._journal.check_room(_FOR_ROOM)
            found = perform(self.ledger, call.operation, call.arguments, now, wait=wait_s is None or wait_s > 0)
        except DataPlaneError as error:
            self._refuse(call, error)
            return
        if isinstance(found, Waiter):
            self._waiting[found.number] = call
            caller.waiting[call.number] = found
            return
        if call.operation == "stats":
            self._latencies.add_to(found)
        elif call.operation == "delete":
            self._latencies.forget(call.arguments["partition_id"])
        self._answer(caller, call, found, now)
        self._settle(now)

    def _give_up(self, caller: Caller, call: Call, now: float) -> None:
        """End the wait of an earlier put or claim, or release what the claim got; whether it had taken effect."""
        number = call.arguments["number"]
        waiter, reply = caller.waiting.pop(number, None), caller.replies.get(number, {"error": "none yet"})
        took_effect = "error" not in reply
        if waiter is not None:
            self.ledger.give_up(waiter, now)
            self._refuse(self._waiting.pop(waiter.number), ClosedError("the call was given up"))
        elif took_effect and call.arguments["operation"] == "claim":
            given = {"partition_id": call.arguments["partition_id"], "lease": reply["value"]["lease"]}
            with contextlib.suppress(UnknownPartitionError):  # it was deleted meanwhile
                perform(self.ledger, "end_lease", given, now)
                self._journal.add(["ended", now, given])
        answer = caller.replies[call.number] = {"value": took_effect}
        self._replies.append((call, answer))
        self._settle(now)

    def _refuse(self, call: Call, error: DataPlaneError) -> None:
        """Nothing was changed; free the bytes of a put."""
        if call.operation == "put":
            self.segments.free([call.arguments["location"]])
        self._replies.append((call, as_plain(error)))

    def _answer(self, caller: Caller, call: Call, found: Any, now: float, *, waited: bool = False) -> None:
        reply = {"value": found}
        if call.begun is not None:
            self._latencies.end(call.begun, waited=waited)
        if call.operation not in LOOKS:
            caller.replies[call.number] = reply
            head = now, call.name, call.number, call.pending
            if call.operation == "claim":  # its result depends on more than its arguments
                self._journal.add(["claimed", *head, call.arguments, [found["lease"], found["sample_ids"]]])
            else:
                self._journal.add(["do", *head, call.operation, call.arguments])
        self._replies.append((call, reply))

    def _settle(self, now: float) -> None:
        """Answer the calls that are done waiting."""
        for waiter in self.ledger.take_settled():
            call = self._waiting.pop(waiter.number)
            caller = self.callers[call.name]
            del caller.waiting[call.number]
            try:
                found = outcome_of(waiter)
            except DataPlaneError as error:
                self._refuse(call, error)
            else:
                self._answer(caller, call, found, now, waited=True)

    # time and clients ---------------------------------------------------------------------------------

    def pass_time(self) -> float:
        """End the leases and waits whose time is over; in how many seconds to call this again, at the latest."""
        now = self.now()
        deadline = self.ledger.next_deadline()
        if deadline <= now:
            self._journal.add(["time", now])
            self.ledger.expire(now)
            self._settle(now)
            deadline = self.ledger.next_deadline()
        pause = min(deadline - now, LOOK_S)
        self._due = self._seen + pause
        return pause

    def leave(self, name: str) -> None:
        """A client is gone: release its claims."""
        caller = self.callers.pop(name, None)
        if caller is None:
            return
        for waiter in caller.waiting.values():
            call = self._waiting.pop(waiter.number)
            if call.operation == "put":
                self.segments.free([call.arguments["location"]])
        now = self.now()
        self._journal.add(["leave", now, name])
        self.ledger.owner_gone(name, now)
        self._settle(now)

    def sweep(self) -> None:
        """Every now and then: free what dead producers left, and begin to move rows out of mostly dead segments."""
        self.segments.sweep()
        self._give_back()
        for name in [one for one in self.ledger.short_of_bytes() if self.ledger.partitions[one].retained]:
            self._journal.add(["drop", self.now(), name])
            self.ledger.drop_retained(name)
        self._moves = self._moves or self.segments.moves(self.ledger)

    def move(self) -> bool:
        """Move a few rows: they are copied, this is written, then the old ones are freed. Whether there may be more."""
        move = None
        try:
            if self._moves is not None:
                self._journal.check_room(_FOR_ROOM)
                move = next(self._moves, None)
        except StorageError as error:
            logger.warning("rows can't be moved: %s", error)
        if move is None:
            self._moves = None
            return False
        self._journal.add(["move", self.now(), move])
        self.ledger.move(**move)
        return True

    def lose(self, where: Mapping[str, Any], again: float | None = None) -> None:
        """The bytes at locations with these entries are gone: clear their samples, and tell their producers."""
        now = self.now() if again is None else again
        if again is None:
            self._journal.add(["lose", now, where])
        for owner, partition_id, ids in self.ledger.lose(where, now):
            if owner in self.callers:
                self.callers[owner].lost.setdefault(partition_id, []).extend(ids)
        self._settle(now)

    def take_replies(self) -> list[Reply]:
        """Answers that may be sent: what they rest on is written first. Raises ``StorageError``."""
        self._journal.write()
        while freed := self.ledger.take_freed():
            self.segments.free(freed)
            self._give_back()
            self._journal.write()
        replies, self._replies = self._replies, []
        if self._journal.due:
            try:
                self._journal.rotate(self._snapshot())
            except (StorageError, MemoryError) as error:  # the changes are written, and the replies need no more
                self._journal.put_off()
                logger.error("the snapshot failed: %s", error)  # noqa: TRY400 - the message is complete
        return replies

    def _give_back(self) -> None:
        """Freed bytes may be gone by now: there may be room for puts."""
        now = self.now()
        self.ledger.given_back(self.segments.dead_bytes, now)
        self._settle(now)

    def unanswered(self) -> list[tuple[str, int]]:
        """Calls that wait, or whose answers may not be sent because the journal can't be written."""
        calls = [*(call for call, _ in self._replies), *self._waiting.values()]
        return [(call.name, call.number) for call in calls]

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    # recovery -----------------------------------------------------------------------------------------

    def _snapshot(self) -> bytes:
        head = {"now": self.now(), "callers": [caller.plain() for caller in self.callers.values()]}
        text = orjson.dumps(head)
        return len(text).to_bytes(8, "big") + text + snapshot(self.ledger)

    def _restore(self, data: bytes) -> None:
        length = int.from_bytes(data[:8], "big")
        head = orjson.loads(data[8 : 8 + length])
        self._last = head["now"]
        self.callers = {one["name"]: _caller_of(one) for one in head["callers"]}
        self.ledger = restore(data[8 + length :])

    def _replay(self, change: Any) -> None:
        kind, now, *rest = change
        self._last = max(self._last, now)
        if kind in ("do", "claimed"):
            name, number, pending, what, given = rest
            again = perform if kind == "do" else claim_again
            found = again(self.ledger, what, given, now)
            caller = self.callers.get(name)
            if caller is not None:
                caller.forget(number, pending)
                caller.replies[number] = {"value": found}
        elif kind == "ended":
            perform(self.ledger, "end_lease", rest[0], now)
        elif kind == "join":
            self.callers[rest[0]["name"]] = _caller_of(rest[0])
        elif kind == "leave":
            self.callers.pop(rest[0], None)
            self.ledger.owner_gone(rest[0], now)
        elif kind == "move":
            self.ledger.move(**rest[0])
        elif kind == "drop":
            self.ledger.drop_retained(rest[0])
        elif kind == "told":
            self.callers[rest[0]].tell(*rest[1:])
        elif kind == "lose":
            self.lose(rest[0], now)
        elif kind == "time":
            self.ledger.expire(now)
        self.ledger.take_settled()
        self.ledger.given_back({}, now)  # a put that was taken in had room
