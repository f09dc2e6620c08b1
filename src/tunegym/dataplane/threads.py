"""Calls that wait, awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_a_thread(call: Callable[[], T], abandon: Callable[[], Any]) -> T:
    """Await a call that may wait for long. If that is cancelled, ``abandon`` is, before the cancellation goes on.

    Each has a thread of its own, and not one of a pool: whoever waits must not keep those from running that it waits
    for. None of them keeps the interpreter from ending.
    """
    waiting = _started(call)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        waiting.add_done_callback(lambda done: done.exception())  # nobody else looks
        await asyncio.shield(_started(abandon))
        raise


def _started(call: Callable[[], T]) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            value = call()
        except BaseException as error:  # whoever awaits it gets it
            _tell(loop, future.set_exception, error)
        else:
            _tell(loop, future.set_result, value)

    threading.Thread(target=run, name="tunegym-dataplane", daemon=True).start()
    return future


def _tell(loop: asyncio.AbstractEventLoop, tell: Callable[[Any], None], what: Any) -> None:
    try:
        loop.call_soon_threadsafe(tell, what)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
