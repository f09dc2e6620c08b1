"""How long puts and claims take, as their callers see it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from tunegym.dataplane.ledger.measures import Histogram

BEGAN = "began"
"""The argument of a put or a claim that says when it was called, by the clock that all processes of a host share."""
FINEST = (0.0001, 0.0003)
"""Buckets below those of all other histograms: most calls end there."""


@dataclass(slots=True)
class _Call:
    """A call under way: whose numbers it belongs to, when it was called, and when the ledger heard of it."""

    place: tuple[str, str | None]
    began: float
    heard: float


class Latencies:
    """Counts, since it was made, the puts and claims that got what they wanted. One thread at a time calls it.

    A latency is from the call of the client to the ledger's answer: encoding and writing the bytes, the way to the
    ledger, and waiting included, the way back not. The wait is the part of it for which there was no room, or there
    were too few samples.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Call] = {}
        self._known: dict[tuple[str, str | None], tuple[Histogram, Histogram]] = {}

    def heard(self, key: Hashable, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A put or a claim arrives; its arguments as the ledger takes them."""
        now = time.monotonic()
        plain = dict(arguments)
        began = float(plain.pop(BEGAN, now))
        self._under_way[key] = _Call((plain["partition_id"], plain.get("task_name")), min(began, now), now)
        return plain

    def answered(self, key: Hashable, waited: bool) -> None:
        """It got what it wanted, at once or after it had to wait."""
        call = self._under_way.pop(key, None)
        if call is None:
            return
        known = self._known.get(call.place)
        if known is None:
            known = self._known[call.place] = Histogram(FINEST), Histogram(FINEST)
        now = time.monotonic()
        known[0].add_one(now - call.began)
        known[1].add_one(now - call.heard if waited else 0.0)

    def refused(self, key: Hashable) -> None:
        """It didn't, or nobody wants to know."""
        self._under_way.pop(key, None)

    def forget(self, partition_id: str) -> None:
        """A partition is deleted."""
        for place in [one for one in self._known if one[0] == partition_id]:
            del self._known[place]

    def added_to(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """A ledger's stats, and these."""
        return {
            name: {
                **partition,
                **self._of(name, None, "put"),
                "tasks": {task: {**one, **self._of(name, task, "claim")} for task, one in partition["tasks"].items()},
            }
            for name, partition in stats.items()
        }

    def _of(self, partition_id: str, task_name: str | None, what: str) -> dict[str, Any]:
        latency, wait = self._known.get((partition_id, task_name)) or (Histogram(FINEST), Histogram(FINEST))
        return {f"{what}_latency": latency.plain(), f"{what}_wait": wait.plain()}
