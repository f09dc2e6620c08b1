"""The process of the service: HTTP on a port of loopback that the system chose, and knobs over the control channel."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tunegym.tuning.servers.http_service.batching import Costs, Service
from tunegym.tuning.servers.http_service.channel import answer_parent, say
from tunegym.tuning.servers.http_service.knobs import Knobs
from tunegym.tuning.servers.http_service.wire import Connection

BACKLOG = 512


class Control:
    """What the parent may ask of a running service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Forget the cache, turn knobs, and count: now, or before and after a window."""
        service = self._service
        if message.get("forget"):
            service.forget()
        if "knobs" in message:
            service.turn(Knobs(**message["knobs"]))
        if "window" not in message:
            return service.counts()
        begin, end = message["window"]
        loop = asyncio.get_running_loop()
        await asyncio.sleep(begin - loop.time())
        before = service.counts()
        await asyncio.sleep(end - loop.time())
        return {"before": before, "after": service.counts()}


async def serve(parent: int, costs: Costs) -> None:
    """Listen, say where, and serve until the parent is gone."""
    service = Service(costs)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(service.ask), "127.0.0.1", 0, backlog=BACKLOG
    )
    say({"port": server.sockets[0].getsockname()[1]})
    await answer_parent(Control(service).handle, parent)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Costs(float(sys.argv[2]), float(sys.argv[3]))))
