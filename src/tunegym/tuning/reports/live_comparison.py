"""A live experiment among others that it is compared with, as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from tunegym.tuning.reports.live import summarise_live
from tunegym.tuning.reports.live_results import LiveResults


def live_entry(results: LiveResults, declared: Mapping[str, Any]) -> dict[str, Any]:
    """What a comparison tells of it: under ``live`` the mean return of its last episodes. It has no best setting."""
    summary = summarise_live(results)
    facts = summary.facts
    head, spaces = results.past.head or {}, results.past.spaces or {}
    returns = list(results.past.returns)
    episodes = facts["episodes"]
    return {
        "experiment": facts["name"],
        "state": facts["state"],
        "agent": facts["agent"],
        "trials": facts["steps"]["done"],
        "measured": facts["steps"]["statuses"].get("measured", 0),
        "best": None,
        "total_s": facts["time"]["wall_s"],
        "metrics": facts["metrics"],
        "objectives": [],
        "reward": declared.get("agent_reward_function"),
        "knobs": {},
        "env_params": head.get("env_params", {}),
        "spaces": {key: spaces[key] for key in ("action", "observation") if key in spaces} or None,
        "live": {
            "episodes": episodes["over"],
            "mean_return": episodes["mean_return"],
            "mean_return_over": episodes["mean_return_over"],
            "return_spread": statistics.stdev(returns) if len(returns) > 1 else None,
            "steps_per_s": facts["time"]["steps_per_s"],
            "failed": facts["steps"]["done"]
            - sum(facts["steps"]["statuses"].get(one, 0) for one in ("measured", "cancelled")),
        },
        "curve": {"ends": summary.curves["ends"], "returns": summary.curves["returns"]["mean"]},
    }
