"""Who talks to a ledger host: what each asked last, so that a call that is repeated takes effect once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tunegym.core.processes import boot_id, process_start_time


class Call(NamedTuple):
    """What a client asks.

    Attributes:
        name: whose it is.
        number: which of its calls; they are numbered as it makes them.
        pending: the earlier ones that it had no answer to when it made this one.
    """

    name: str
    number: int
    pending: Sequence[int]
    operation: str
    arguments: Mapping[str, Any]


@dataclass
class Caller:
    """One client, through all of its connections.

    Attributes:
        pid, start, boot: name its process.
        replies: to calls that took effect, by their number, as long as it may ask again.
        waiting: numbers of its calls that wait.
    """

    name: str
    pid: int
    start: str
    boot: str
    replies: dict[int, Any] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)

    def alive(self) -> bool:
        """Whether its process still is."""
        if self.boot != boot_id():
            return False
        return process_start_time(self.pid) == self.start

    def forget(self, number: int, pending: Sequence[int]) -> None:
        """When it made this call it had all replies but these. Of later calls, that says nothing: it may be sent again.

        So there are never more replies than calls that the client has under way at once.
        """
        for one in [one for one in self.replies if one < number and one not in pending]:
            del self.replies[one]

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        kept = [[number, reply] for number, reply in self.replies.items()]
        return {"name": self.name, "pid": self.pid, "start": self.start, "boot": self.boot, "replies": kept}


def caller_of(plain: dict[str, Any]) -> Caller:
    """The client that plain data describes."""
    replies = {int(number): reply for number, reply in plain.get("replies", ())}
    return Caller(plain["name"], int(plain["pid"]), str(plain["start"]), str(plain["boot"]), replies)


def myself(name: str) -> dict[str, Any]:
    """This process, as a client introduces itself."""
    pid = os.getpid()
    return {"name": name, "pid": pid, "start": process_start_time(pid) or "", "boot": boot_id()}
