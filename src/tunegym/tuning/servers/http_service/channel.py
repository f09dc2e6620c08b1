"""The end of a control channel in a process of the service: a line of JSON asks, and another answers.

The process ends with its parent: at the end of its standard input, and should somebody else hold the other end of that,
once it has another parent.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_LOOK_S = 0.5
"""Between two looks at who the parent is."""


async def answer_parent(handle: Handler, parent: int) -> None:
    """Answer what the parent asks, in order, until it is gone; does not return."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Queue[bytes] = asyncio.Queue()
    rest = b""

    def readable() -> None:
        nonlocal rest
        found = os.read(0, 65536)
        if not found:
            _leave()
        *lines, rest = (rest + found).split(b"\n")
        for line in lines:
            asked.put_nowait(line)

    def look() -> None:
        if os.getppid() != parent:
            _leave()
        loop.call_later(_LOOK_S, look)

    loop.add_reader(0, readable)
    look()
    while True:
        told = await handle(json.loads(await asked.get()))
        say(told)


def say(message: dict[str, Any]) -> None:
    """A line to the parent."""
    try:
        os.write(1, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        _leave()


def _leave() -> None:
    """Without waiting for threads: nobody is left who could want their answers."""
    os._exit(0)
