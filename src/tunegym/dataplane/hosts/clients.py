"""Who talks to a ledger host: what each asked last, so that a call that is repeated takes effect once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from tunegym.core.processes import boot_id, process_start_time


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

    def forget(self, below: int) -> None:
        """It has all replies up to here."""
        if self.replies and min(self.replies) < below:
            self.replies = {number: reply for number, reply in self.replies.items() if number >= below}

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
