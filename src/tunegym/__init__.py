"""Tune real systems with learning agents, and never lie about what was measured.

Names are imported when they are first used, so that ``tunegym --help`` stays instant.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunegym.app.environment import make, make_vec
    from tunegym.app.run import as_scenario as scenario
    from tunegym.app.run import resume, run
    from tunegym.tuning.agents.base import AgentConfig, BaseAgent
    from tunegym.tuning.reports.results import load, recommend

__version__ = "0.1.0"

_EXPORTS = {
    "AgentConfig": "tunegym.tuning.agents.base",
    "BaseAgent": "tunegym.tuning.agents.base",
    "load": "tunegym.tuning.reports.results",
    "make": "tunegym.app.environment",
    "make_vec": "tunegym.app.environment",
    "recommend": "tunegym.tuning.reports.results",
    "resume": "tunegym.app.run",
    "run": "tunegym.app.run",
    "scenario": "tunegym.app.run",
}
_RENAMED = {"scenario": "as_scenario"}

__all__ = ["AgentConfig", "BaseAgent", "load", "make", "make_vec", "recommend", "resume", "run", "scenario"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tunegym' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])


if hasattr(sys.modules.get("gymnasium"), "register"):
    import_module("tunegym.envs")
