"""The service itself: a cache, a queue with a limit, batches, and workers that answer them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunegym.tuning.servers.http_service.knobs import CHOICES, Knobs

Answer: TypeAlias = Callable[[int, bytes], None]
"""Called once with a status of HTTP and a body."""

BATCH_ROUNDS = 1500
ITEM_ROUNDS = 150
"""Of SHA-256, per batch and per request in it: work that is done rather than waited for."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a batch waits for its backend: once, and for every request in it."""

    batch_s: float
    item_s: float


@dataclass(slots=True)
class _Waiting:
    key: bytes
    answer: Answer
    since: float


class Service:
    """Answers keys with their digests. One thread, that of the running event loop, calls it.

    Whatever ``turn`` changes, every request that was accepted is answered: a lower limit only refuses further ones, and
    fewer workers finish what they have.
    """

    def __init__(self, costs: Costs, clock: Callable[[], float] = time.monotonic) -> None:
        self.knobs = Knobs()
        self._costs = costs
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(max(CHOICES["workers"]))
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._queue: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._busy = 0
        self._received = self._hits = self._refused = self._answered = self._failed = 0
        self._batches = self._items = 0
        self._queue_seconds = 0.0
        self._queue_since = clock()

    def ask(self, key: bytes, answer: Answer) -> None:
        """Answer ``key``: at once from the cache, with 503 if too many wait, or later."""
        self._received += 1
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            self._hits += 1
            self._answered += 1
            answer(200, found)
        elif len(self._queue) >= self.knobs.queue_limit:
            self._refused += 1
            answer(503, b"the queue is full")
        else:
            self._note_queue()
            self._queue.append(_Waiting(key, answer, self._clock()))
            self._dispatch()

    def turn(self, knobs: Knobs) -> None:
        """Go on with these knobs."""
        self.knobs = knobs
        self._trim()
        self._dispatch()

    def forget(self) -> None:
        """Empty the cache."""
        self._cache.clear()

    def counts(self) -> dict[str, Any]:
        """Everything that is counted, since the beginning; whoever wants rates takes differences."""
        self._note_queue()
        return {
            "at": self._clock(),
            "cpu_s": time.process_time(),
            "received": self._received,
            "hits": self._hits,
            "refused": self._refused,
            "answered": self._answered,
            "failed": self._failed,
            "batches": self._batches,
            "items": self._items,
            "queue_seconds": self._queue_seconds,
            "queued": len(self._queue),
            "busy": self._busy,
            "cached": len(self._cache),
        }

    # batches ----------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give free workers the batches that are full, or have waited for long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._busy < self.knobs.workers:
            left = self._queue[0].since + self.knobs.batch_wait_ms / 1000 - self._clock()
            if len(self._queue) < self.knobs.batch_size and left > 0:
                self._timer = self._loop.call_later(left, self._dispatch)
                return
            self._note_queue()
            batch = [self._queue.popleft() for _ in range(min(self.knobs.batch_size, len(self._queue)))]
            self._busy += 1
            keys = [waiting.key for waiting in batch]
            work = self._loop.run_in_executor(self._pool, _digests, keys, self._costs)
            work.add_done_callback(lambda done, batch=batch: self._deliver(batch, done))

    def _deliver(self, batch: list[_Waiting], done: asyncio.Future[list[bytes]]) -> None:
        self._busy -= 1
        self._batches += 1
        self._items += len(batch)
        error = done.exception()
        if error is not None:
            self._failed += len(batch)
            for waiting in batch:
                waiting.answer(500, str(error).encode())
        else:
            self._answered += len(batch)
            for waiting, digest in zip(batch, done.result(), strict=True):
                self._cache[waiting.key] = digest
                self._cache.move_to_end(waiting.key)
                waiting.answer(200, digest)
            self._trim()
        self._dispatch()

    def _trim(self) -> None:
        while len(self._cache) > self.knobs.cache_size:
            self._cache.popitem(last=False)

    def _note_queue(self) -> None:
        now = self._clock()
        self._queue_seconds += len(self._queue) * (now - self._queue_since)
        self._queue_since = now


def _digests(keys: list[bytes], costs: Costs) -> list[bytes]:
    """The work of one batch, in a worker's thread; neither the waiting nor the hashing holds Python's lock."""
    time.sleep(costs.batch_s + costs.item_s * len(keys))
    hashlib.pbkdf2_hmac("sha256", b"batch", b"salt", BATCH_ROUNDS)
    return [hashlib.pbkdf2_hmac("sha256", key, b"salt", ITEM_ROUNDS).hex().encode() for key in keys]
