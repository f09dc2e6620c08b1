"""The HTTP service that is tuned: a cache, a queue with a limit, batches, and workers that answer them.

``GET /work?key=KEY`` answers with a digest of the key: at once from the cache, with 503 if too many requests wait, or
after a worker has taken it in a batch and waited for a backend. ``POST /control`` changes the knobs while it serves and
returns counters. Every accepted request is answered, whatever knob changes.

Run as ``python service.py BACKEND_S ITEM_S``: prints its port, and ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiohttp import web

BATCH_ROUNDS = 1500
ITEM_ROUNDS = 150
"""Rounds of SHA-256 per batch and per request: CPU work beside the waiting."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """One setting of the service; these are the defaults.

    Attributes:
        workers: batches that are processed at once.
        batch_size: most requests in a batch.
        batch_wait_ms: how long a free worker waits for a batch to fill.
        queue_limit: requests that may wait; further ones are refused with 503.
        cache_size: answers that are kept (least recently used go first).
    """

    workers: int = 2
    batch_size: int = 4
    batch_wait_ms: int = 5
    queue_limit: int = 64
    cache_size: int = 64


class Service:
    """Answers keys. All methods run in the event loop's thread; batches run in worker threads."""

    def __init__(self, backend_s: float, item_s: float) -> None:
        self.knobs = Knobs()
        self._backend_s, self._item_s = backend_s, item_s
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(32)
        self._cache: OrderedDict[str, str] = OrderedDict()
        self._queue: deque[tuple[str, float, asyncio.Future[str]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._busy = 0
        self._counts = dict.fromkeys(("received", "hits", "refused", "answered", "batches", "items"), 0)
        self._queue_seconds, self._queue_since = 0.0, time.monotonic()

    async def work(self, request: web.Request) -> web.Response:
        """``GET /work?key=KEY``."""
        key = request.query.get("key", "")
        if not 0 < len(key) <= 200:
            raise web.HTTPBadRequest(text="use /work?key=KEY")
        self._counts["received"] += 1
        if key in self._cache:
            self._cache.move_to_end(key)
            self._counts["hits"] += 1
            answer = self._cache[key]
        elif len(self._queue) >= self.knobs.queue_limit:
            self._counts["refused"] += 1
            raise web.HTTPServiceUnavailable(text="the queue is full")
        else:
            waiting: asyncio.Future[str] = self._loop.create_future()
            self._note_queue()
            self._queue.append((key, time.monotonic(), waiting))
            self._dispatch()
            answer = await waiting
        self._counts["answered"] += 1
        return web.Response(text=answer)

    async def control(self, request: web.Request) -> web.Response:
        """``POST /control`` with ``{"knobs": {...}, "forget": bool}``, both optional; returns the counters."""
        asked: dict[str, Any] = await request.json()
        if asked.get("forget"):
            self._cache.clear()
        if "knobs" in asked:
            self.knobs = Knobs(**asked["knobs"])
            self._trim()
            self._dispatch()
        self._note_queue()
        now = {"at": time.monotonic(), "cpu_s": time.process_time(), "queue_seconds": self._queue_seconds}
        return web.json_response({**self._counts, **now, "queued": len(self._queue), "cached": len(self._cache)})

    def _dispatch(self) -> None:
        """Give free workers the batches that are full or have waited long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._busy < self.knobs.workers:
            left = self._queue[0][1] + self.knobs.batch_wait_ms / 1000 - time.monotonic()
            if len(self._queue) < self.knobs.batch_size and left > 0:
                self._timer = self._loop.call_later(left, self._dispatch)
                return
            self._note_queue()
            batch = [self._queue.popleft() for _ in range(min(self.knobs.batch_size, len(self._queue)))]
            self._busy += 1
            work = self._loop.run_in_executor(self._pool, self._digests, [key for key, _, _ in batch])
            work.add_done_callback(lambda done, batch=batch: self._deliver(batch, done.result()))

    def _digests(self, keys: list[str]) -> list[str]:
        """Process one batch in a worker thread; neither sleeping nor hashing holds Python's lock."""
        time.sleep(self._backend_s + self._item_s * len(keys))
        hashlib.pbkdf2_hmac("sha256", b"batch", b"salt", BATCH_ROUNDS)
        return [hashlib.pbkdf2_hmac("sha256", key.encode(), b"salt", ITEM_ROUNDS).hex() for key in keys]

    def _deliver(self, batch: list[tuple[str, float, asyncio.Future[str]]], digests: list[str]) -> None:
        self._busy -= 1
        self._counts["batches"] += 1
        self._counts["items"] += len(batch)
        for (key, _, waiting), digest in zip(batch, digests, strict=True):
            self._cache[key] = digest
            self._cache.move_to_end(key)
            if not waiting.done():  # its client may have disconnected
                waiting.set_result(digest)
        self._trim()
        self._dispatch()

    def _trim(self) -> None:
        while len(self._cache) > self.knobs.cache_size:
            self._cache.popitem(last=False)

    def _note_queue(self) -> None:
        now = time.monotonic()
        self._queue_seconds += len(self._queue) * (now - self._queue_since)
        self._queue_since = now


async def serve(routes: list[web.RouteDef]) -> None:
    """Serve on a free port of loopback and print it; end the process when standard input closes."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=512).start()
    asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 1) or os._exit(0))
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def main(backend_s: float, item_s: float) -> None:
    service = Service(backend_s, item_s)
    await serve([web.get("/work", service.work), web.post("/control", service.control)])


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), float(sys.argv[2])))
