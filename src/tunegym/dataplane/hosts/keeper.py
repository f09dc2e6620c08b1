"""The ledger with its journal: a change is written down before anybody hears of it, and takes effect once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tunegym.dataplane.errors import ClosedError, DataPlaneError, StorageError
from tunegym.dataplane.hosts.clients import Call, Caller, caller_of
from tunegym.dataplane.hosts.journal import RESERVE, LedgerJournal
from tunegym.dataplane.hosts.latencies import Latencies
from tunegym.dataplane.hosts.operations import CHANGES, WAITING, as_plain, claim_again, perform, release_rest, told
from tunegym.dataplane.ledger.leasing import any_lease
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Waiter
from tunegym.dataplane.storage.live import LiveSegments

logger = logging.getLogger(__name__)

Reply = tuple[Call, Any]
"""A call, and what comes back: ``{"value": ...}`` or an error."""


_FOR_ROOM = RESERVE // 2
"""Of what the journal holds on to, so much is for acks, clears and commits alone."""


class Keeper:
    """Drives a ledger for many clients. One thread calls it; ``take_replies`` gives what may be sent.

    Args:
        journal: of this plane.
        segments: keeps account of the bytes: told of every put before the ledger, and of what nobody wants any more.
        snapshot, restore: the whole of a ledger as bytes, and back.
    """

    def __init__(
        self,
        journal: LedgerJournal,
        segments: LiveSegments,
        snapshot: Callable[[Ledger], bytes],
        restore: Callable[[bytes], Ledger],
    ) -> None:
        self.ledger = Ledger(any_lease())
        self.callers: dict[str, Caller] = {}
        self._journal = journal
        self._segments = segments
        self._snapshot, self._restore = snapshot, restore
        self._waiters: dict[int, tuple[Waiter, Call]] = {}
        self._replies: list[Reply] = []
        self._latencies = Latencies()
        self._asked: set[tuple[str, str, tuple[str, ...]]] = set()
        self._behind = 0.0
        self._last = 0.0

    def recover(self) -> int:
        """Come to where the last host was; how many changes were repeated."""
        count = self._journal.recover(self._restored, self._repeat)
        self._behind = max(0.0, self._last - time.monotonic())
        self.ledger.take_freed()
        missing = self._segments.recover(self.ledger.locations())
        if missing:
            logger.error("segments are missing, and so are the samples in them: %s", ", ".join(missing[:5]))
        return count

    def now(self) -> float:
        """The ledger's time, which doesn't run back when the machine starts anew."""
        return time.monotonic() + self._behind

    # calls --------------------------------------------------------------------------------------------

    def join(self, plain: dict[str, Any]) -> Caller:
        """A client introduces itself, perhaps again. Raises ``StorageError`` if that can't be written down."""
        known = self.callers.get(str(plain.get("name")))
        if known is None:
            self._journal.check_room(_FOR_ROOM)
            known = caller_of(plain)
            self._journal.add(["join", self.now(), known.plain()])
            self.callers[known.name] = known
        return known

    def call(self, call: Call, wait_s: float | None) -> None:
        """A client asks. The answer is among the replies, now or when it need not wait any more."""
        name, number, operation, arguments = call.name, call.number, call.operation, call.arguments
        caller = self.callers[name]
        caller.forget(number, call.pending)
        if number in caller.replies:
            self._replies.append((call, caller.replies[number]))
            return
        if number in caller.waiting:  # it came back, and still waits
            return
        now = self.now()
        if operation == "give_up":
            self._give_up(caller, call, now)
            return
        if operation in WAITING:
            heard = self._latencies.heard((name, number), arguments)
            arguments = {**heard, "owner": name, "timeout_s": wait_s}
            call = Call(name, number, call.pending, operation, arguments)
        try:
            if operation == "put":
                self._journal.check_room()
                self._segments.keep(arguments["location"])
            elif operation == "claim":
                self._journal.check_room(_FOR_ROOM)
                self._ask(arguments, now)
            elif operation == "delete":
                self._asked.clear()
                self._latencies.forget(arguments["partition_id"])
            found = perform(self.ledger, operation, arguments, now, wait=wait_s is None or wait_s > 0)
        except DataPlaneError as error:
            self._refuse(call, error)
            return
        if isinstance(found, Waiter):
            self._waiters[found.number] = found, call
            caller.waiting.add(number)
            return
        if operation == "stats":
            found = self._latencies.added_to(found)
        self._latencies.answered((name, number), waited=False)
        self._answer(caller, call, found, now)
        self._settle(now)

    def _give_up(self, caller: Caller, call: Call, now: float) -> None:
        """A client wants no answer to an earlier put or claim: it waits no more, or its claim is given back.

        The answer says whether it had taken effect.
        """
        number = call.arguments["number"]
        reply = caller.replies.get(number)
        got = None if reply is None or "error" in reply else reply
        if number in caller.waiting:
            key = next(key for key, (_, one) in self._waiters.items() if (one.name, one.number) == (call.name, number))
            waiter, given_up = self._waiters.pop(key)
            caller.waiting.discard(number)
            self.ledger.give_up(waiter, now)
            self._refuse(given_up, ClosedError("the call was given up"))
        elif got is not None and call.arguments["operation"] == "claim":
            released = self._release(call.arguments, got["value"], now)
            if released is not None:
                self._journal.add(["released", now, released])
        answer = caller.replies[call.number] = {"value": got is not None}
        self._replies.append((call, answer))
        self._settle(now)

    def unsent(self, call: Call, error: DataPlaneError) -> None:
        """A reply can't be sent: the error is, instead, and what a claim got is given back."""
        caller = self.callers.get(call.name)
        if caller is None:
            return
        now, plain = self.now(), as_plain(error)
        reply = caller.replies.get(call.number)
        if call.operation == "claim" and reply is not None and "error" not in reply:
            released = self._release(call.arguments, reply["value"], now)
            caller.replies[call.number] = plain
            self._journal.add(["unsent", now, call.name, call.number, plain, released])
        self._replies.append((call, plain))
        self._settle(now)

    def _release(self, asked: Mapping[str, Any], got: Mapping[str, Any], now: float) -> Mapping[str, Any] | None:
        """Give back what is still held of a claim; the arguments of that, if it is anything."""
        claimed = {key: asked[key] for key in ("partition_id", "task_name")}
        claimed |= {key: got[key] for key in ("sample_ids", "leases")}
        return release_rest(lambda given: perform(self.ledger, "release", given, now), claimed)

    def _ask(self, arguments: Mapping[str, Any], now: float) -> None:
        """The first claim of its kind is a change, whatever comes of it: the order of what is ready begins with it."""
        kind = arguments["partition_id"], arguments["task_name"], tuple(arguments["fields"])
        if kind not in self._asked:
            self.ledger.ask(*kind)
            self._asked.add(kind)
            self._journal.add(["asked", now, *kind])

    def _refuse(self, call: Call, error: DataPlaneError) -> None:
        """Nothing was changed; the bytes of a put are nobody's."""
        if call.operation == "put":
            self._segments.free([call.arguments["location"]])
        self._latencies.refused((call.name, call.number))
        self._replies.append((call, as_plain(error)))

    def _answer(self, caller: Caller, call: Call, found: Any, now: float) -> None:
        reply = {"value": found}
        if call.operation in CHANGES:
            caller.replies[call.number] = reply
            head = now, call.name, call.number, call.pending
            if call.operation == "claim":  # what it got depends on more than what it asked for
                self._journal.add(["claimed", *head, call.arguments, found["leases"]])
            else:
                self._journal.add(["do", *head, call.operation, call.arguments])
        self._replies.append((call, reply))

    def _settle(self, now: float) -> None:
        """Those who need wait no more get their answers, and theirs are changes, too."""
        for waiter in self.ledger.take_settled():
            _, call = self._waiters.pop(waiter.number)
            caller = self.callers[call.name]
            caller.waiting.discard(call.number)
            if isinstance(waiter.outcome, DataPlaneError):
                self._refuse(call, waiter.outcome)
            else:
                self._latencies.answered((call.name, call.number), waited=True)
                self._answer(caller, call, told(waiter.outcome), now)

    def sweep(self) -> None:
        """Look for bytes that dead producers left."""
        self._segments.sweep()

    def pass_time(self) -> float:
        """Leases and waits that are over end; when the next one does."""
        now = self.now()
        deadline = self.ledger.next_deadline()
        if deadline <= now:
            self._journal.add(["time", now])
            self.ledger.expire(now)
            self._settle(now)
            deadline = self.ledger.next_deadline()
        return deadline - now

    def leave(self, name: str) -> None:
        """A client is gone: its claims are given back."""
        caller = self.callers.pop(name, None)
        if caller is None:
            return
        for key, (_, call) in list(self._waiters.items()):
            if call.name == name:
                del self._waiters[key]
                self._latencies.refused((name, call.number))
                if call.operation == "put":
                    self._segments.free([call.arguments["location"]])
        now = self.now()
        self._journal.add(["leave", now, name])
        self.ledger.owner_gone(name, now)  # none of its calls waits any more before others get what it had
        self._settle(now)

    def take_replies(self) -> list[Reply]:
        """What may be sent: everything that it rests on is written down first. Raises ``StorageError``."""
        self._journal.write()
        replies, self._replies = self._replies, []
        freed = self.ledger.take_freed()
        if freed:
            self._segments.free(freed)
        if self._journal.due:
            try:
                self._journal.rotate(self._whole())
            except (StorageError, MemoryError) as error:  # the changes are written, and the replies rest on them only
                self._journal.put_off()
                logger.error("there is no snapshot yet: %s", error)  # noqa: TRY400 - it says all there is to say
        return replies

    def unanswered(self) -> list[tuple[str, int]]:
        """Calls whose replies may not be sent, since what they rest on can't be written; and those that wait."""
        calls = [*(call for call, _ in self._replies), *(call for _, call in self._waiters.values())]
        return [(call.name, call.number) for call in calls]

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()

    # the past -----------------------------------------------------------------------------------------

    def _whole(self) -> bytes:
        head = {"now": self.now(), "callers": [caller.plain() for caller in self.callers.values()]}
        text = orjson.dumps(head)
        return len(text).to_bytes(8, "big") + text + self._snapshot(self.ledger)

    def _restored(self, data: bytes) -> None:
        length = int.from_bytes(data[:8], "big")
        head = orjson.loads(data[8 : 8 + length])
        self._last = head["now"]
        self.callers = {one["name"]: caller_of(one) for one in head["callers"]}
        self.ledger = self._restore(data[8 + length :])

    def _repeat(self, change: Any) -> None:
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
        elif kind == "released":
            perform(self.ledger, "release", rest[0], now)
        elif kind == "unsent":
            name, number, plain, released = rest
            if released is not None:
                perform(self.ledger, "release", released, now)
            if name in self.callers:
                self.callers[name].replies[number] = plain
        elif kind == "asked":
            self.ledger.ask(*rest)
        elif kind == "join":
            self.callers[rest[0]["name"]] = caller_of(rest[0])
        elif kind == "leave":
            self.callers.pop(rest[0], None)
            self.ledger.owner_gone(rest[0], now)
        elif kind == "time":
            self.ledger.expire(now)
        self.ledger.take_settled()
