"""A call to a ledger host that is not answered yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.dataplane.errors import ClaimTimeoutError
from tunegym.dataplane.hosts.frames import pack

GRACE_S = 5.0
"""How long after its end the wait of a claim is the host's to end."""


@dataclass
class PendingCall:
    """A call under way.

    Attributes:
        number: 0 before it is sent.
        kept: the host must not forget its answer yet.
        until: when its wait ends; None for never.
        gives_up: another call, that nobody waits for any more, as nobody does for this one.
        nudged: wakes up its thread if that waits for another one to read: made when it has to, as few ever do.
    """

    operation: str
    arguments: Mapping[str, Any]
    number: int = 0
    pending: list[int] = field(default_factory=list)
    until: float | None = None
    gives_up: PendingCall | None = None
    done: bool = False
    reply: Any = None
    kept: bool = False
    nudged: threading.Event | None = None

    def frame(self) -> bytes:
        """What is sent, with what is left of its wait."""
        left = None if self.until is None else max(0.0, self.until - time.monotonic())
        return pack([self.number, self.pending, self.operation, self.arguments, left])

    def overdue(self) -> bool:
        """Whether the host should have ended its wait long ago. A put that may have taken effect is waited for."""
        return self.operation == "claim" and self.until is not None and time.monotonic() > self.until + GRACE_S

    def finish(self) -> None:
        """Its thread need wait no more."""
        self.done = True
        self.nudge()

    def nudge(self) -> None:
        """Its thread looks again."""
        if self.nudged is not None:
            self.nudged.set()

    def wait(self, seconds: float) -> None:
        """Wait for a nudge, unless it is done by now; ``nudged`` is there."""
        assert self.nudged is not None
        # Looked at after ``nudged`` was made: whoever finishes it looks at them the other way round.
        if not self.done:
            self.nudged.wait(seconds)
        self.nudged.clear()

    def given_up(self) -> dict[str, Any]:
        """What the host needs to know to give it up."""
        given = {"partition_id": self.arguments["partition_id"], "task_name": self.arguments.get("task_name")}
        return {**given, "operation": self.operation, "number": self.number}


def silent() -> ClaimTimeoutError:
    """What to say when a call is overdue."""
    return ClaimTimeoutError(
        f"the plane's host did not answer within {GRACE_S:g} s after the end of the wait",
        hint="it is stopped, or can't keep up; if the claim got something, that is given back",
    )
