"""The load generator: requests come as a Poisson process, whether or not earlier ones were answered.

A request's latency counts from the moment it was due, so a service that stalls can't slow down its own load and look
good. ``POST /window`` sets the knobs of the service and the rate, observes a window and returns what happened in it;
``POST /reset`` waits for open requests, clears the service's cache and starts a new stream of keys.

Run as ``python load.py SERVICE_PORT KEYS``: prints its port, and ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

import aiohttp
from aiohttp import web
from service import serve

CONNECTIONS = 400
"""More than the service accepts at once, so that the service's own limit counts."""
MOST_OPEN = 4000
"""Requests without an answer; further ones fail at once."""
IDLE_S = 1.0
"""The load goes on for this long after a window."""
DRAIN_S = 2.0


@dataclass
class Window:
    """Counts the requests that were due in a window, and the answers that arrived in it."""

    begin: float
    end: float
    target_s: float
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("offered", "in_time", "refused", "failed", "completed"), 0)
    )
    latencies: list[float] = field(default_factory=list)
    late_s: float = 0.0
    waiting: dict[int, float] = field(default_factory=dict)

    def due(self, number: int, due: float, now: float) -> None:
        if self.begin <= due < self.end:
            self.counts["offered"] += 1
            self.late_s = max(self.late_s, now - due)
            self.waiting[number] = due

    def done(self, number: int, status: int, now: float) -> None:
        if status == 200 and self.begin <= now < self.end:
            self.counts["completed"] += 1
        due = self.waiting.pop(number, None)
        if due is None:
            return
        if status == 200:
            self.counts["in_time"] += now - due <= self.target_s
            self.latencies.append(now - due)
        else:
            self.counts["refused" if status == 503 else "failed"] += 1

    def summary(self, now: float) -> dict[str, Any]:
        """A request without an answer counts with the time that it has waited so far."""
        latencies = sorted([*self.latencies, *(now - due for due in self.waiting.values())])
        return {
            **self.counts,
            "late_s": self.late_s,
            "p50_s": quantile(latencies, 0.5),
            "p99_s": quantile(latencies, 0.99),
        }


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of them don't exceed; 0 if there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


class Load:
    """Sends requests to the service and observes windows."""

    def __init__(self, session: aiohttp.ClientSession, keys: int) -> None:
        self._session = session
        self._keys = keys
        self._number = 0
        self._open: set[asyncio.Task[None]] = set()
        self._window: Window | None = None
        self._until = 0.0
        self._flow: asyncio.Task[None] | None = None
        self._rate = 1.0
        self._start(0, 0.0)

    def _start(self, seed: int, skew: float) -> None:
        """Start new streams of arrival times and keys; popularity follows Zipf's law."""
        self._times, self._choices = Random(f"times {seed}"), Random(f"keys {seed}")
        self._set_skew(skew)

    def _set_skew(self, skew: float) -> None:
        self._skew = skew
        self._edges = list(accumulate((rank + 1) ** -skew for rank in range(self._keys)))

    async def reset(self, request: web.Request) -> web.Response:
        """``POST /reset`` with ``{"seed": int}``."""
        asked = await request.json()
        if self._flow is not None:
            self._flow.cancel()
            self._flow = None
        if self._open:
            await asyncio.wait(self._open, timeout=DRAIN_S)
        self._start(asked["seed"], self._skew)
        return web.json_response({"open": len(self._open), "counts": await self._control({"forget": True})})

    async def window(self, request: web.Request) -> web.Response:
        """``POST /window`` with the knobs, rate, skew, settle_s, window_s and target_s."""
        asked = await request.json()
        if asked["skew"] != self._skew:
            self._set_skew(asked["skew"])
        self._rate = asked["rate"]
        await self._control({"knobs": asked["knobs"]})
        begin = time.monotonic() + asked["settle_s"]
        end = begin + asked["window_s"]
        self._window = window = Window(begin, end, asked["target_s"])
        self._until = end + window.target_s + IDLE_S
        if self._flow is None or self._flow.done():
            self._flow = asyncio.create_task(self._arrive())
        await asyncio.sleep(begin - time.monotonic())
        before = await self._control({})
        await asyncio.sleep(end - time.monotonic())
        after = await self._control({})
        await asyncio.sleep(end + window.target_s - time.monotonic())
        now = time.monotonic()
        window.late_s = max(window.late_s, now - end - window.target_s)
        self._window = None
        return web.json_response({**window.summary(now), "before": before, "after": after})

    async def _control(self, asked: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post("/control", json=asked) as answer:
            return await answer.json()

    async def _arrive(self) -> None:
        due = time.monotonic()
        while (now := time.monotonic()) < self._until:
            due = max(due, now - 1.0)  # a generator that was held up makes up for at most a second
            while due <= now:
                self._send(due, now)
                due += self._times.expovariate(self._rate)
            await asyncio.sleep(due - now)

    def _send(self, due: float, now: float) -> None:
        self._number += 1
        key = f"k{bisect_left(self._edges, self._choices.random() * self._edges[-1])}"
        if self._window is not None:
            self._window.due(self._number, due, now)
        if len(self._open) >= MOST_OPEN:
            self._done(self._number, 0)
            return
        task = asyncio.create_task(self._request(self._number, key))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _request(self, number: int, key: str) -> None:
        status = 0
        try:
            async with self._session.get("/work", params={"key": key}) as answer:
                await answer.read()
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # counts as failed
        self._done(number, status)

    def _done(self, number: int, status: int) -> None:
        if self._window is not None:
            self._window.done(number, status, time.monotonic())


async def main(port: int, keys: int) -> None:
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
        load = Load(session, keys)
        await serve([web.post("/reset", load.reset), web.post("/window", load.window)])


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
