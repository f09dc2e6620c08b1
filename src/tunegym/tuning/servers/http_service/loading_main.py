"""The process of the load."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tunegym.tuning.servers.http_service.arrivals import Arrivals
from tunegym.tuning.servers.http_service.channel import answer_parent, say
from tunegym.tuning.servers.http_service.loading import Load
from tunegym.tuning.servers.http_service.tally import Tally


class Control:
    """What the parent may ask of the load."""

    def __init__(self, load: Load, keys: int) -> None:
        self._load = load
        self._keys = keys

    async def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """``drain``, begin anew (``seed``), change (``rate``, ``skew``), watch a ``window``; then the counts."""
        load = self._load
        if "drain" in message:
            await load.drain(message["drain"])
        if "seed" in message:
            load.arrivals = Arrivals(message["seed"], self._keys, message["rate"], message["skew"])
        if "rate" in message:
            load.turn(message["rate"], message["skew"])
        seen: dict[str, Any] = {}
        if "window" in message:
            begin, end = message["window"]
            seen = await load.watch(Tally(begin, end, message["target_s"]))
        return {**seen, "counts": load.counts()}


async def generate(parent: int, port: int, keys: int) -> None:
    """Be ready, and send what the parent wants until it is gone."""
    load = Load(port, Arrivals(0, keys, 1.0, 0.0))
    say({})
    await answer_parent(Control(load, keys).handle, parent)


if __name__ == "__main__":
    asyncio.run(generate(*(int(argument) for argument in sys.argv[1:4])))
