"""Ready-made live systems, and the protocol for your own.

A scenario names one as ``env_class = "tunegym.servers:GymnasiumServer"``. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunegym.tuning.ports import GymServer
    from tunegym.tuning.servers.gymnasium_server import GymnasiumServer

__all__ = ["GymServer", "GymnasiumServer"]

_EXPORTS = {"GymServer": "tunegym.tuning.ports", "GymnasiumServer": "tunegym.tuning.servers.gymnasium_server"}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tunegym.servers' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(_EXPORTS)
