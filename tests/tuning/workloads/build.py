"""Experiments for tests of workloads."""

from __future__ import annotations

from typing import Any

from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, EnvParams, Space


def experiment(workload: str, args: Any, knobs: Any = None, fixed: Any = None, env: Any = None, **more: Any) -> Any:
    """With the knob ``a`` and the metric ``rate``, unless it is told otherwise."""
    space = Space({"a": Choice((1, 2))} if knobs is None else knobs, fixed or {})
    more.setdefault("agent_metrics", ("rate",))
    return Experiment("e", workload, args, space, EnvParams(env or {}), "grid_search", None, **more)
