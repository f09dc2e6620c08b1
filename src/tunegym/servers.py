"""Ready-made live systems, and the protocol for your own.

A scenario names one as ``env_class = "tunegym.servers:GymnasiumServer"``, which is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunegym.tuning.ports import GymServer

if TYPE_CHECKING:
    from tunegym.tuning.servers.gymnasium_server import GymnasiumServer

__all__ = ["GymServer", "GymnasiumServer"]


def __getattr__(name: str) -> Any:
    if name != "GymnasiumServer":
        raise AttributeError(f"module 'tunegym.servers' has no attribute {name!r}")
    from tunegym.tuning.servers.gymnasium_server import GymnasiumServer

    return GymnasiumServer


def __dir__() -> list[str]:
    return __all__
