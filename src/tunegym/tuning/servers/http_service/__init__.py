"""A real live system that everybody can run: an HTTP service on loopback, under load that is generated beside it.

``HttpService`` is imported when it is first used: the service's own processes need none of what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunegym.tuning.servers.http_service.server import HttpService

__all__ = ["HttpService"]


def __getattr__(name: str) -> Any:
    if name != "HttpService":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tunegym.tuning.servers.http_service.server import HttpService

    return HttpService
