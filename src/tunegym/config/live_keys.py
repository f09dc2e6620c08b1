"""Which keys belong to live experiments, and which of the others mean nothing there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from tunegym.config.findings import Findings
from tunegym.config.schema import LIVE_KEYS, recording, server_place

WORKLOAD = "live"
LIVE_RL_MODE = "live_rl_mode"

MEANINGLESS = {
    "constraints": (
        "constraints refuse settings, and the server's own action space is what the agent chooses from",
        "remove constraints, and let the server refuse what it can't do",
    ),
    "objectives": (
        "a live experiment is judged by its reward alone",
        "remove objectives, or write an agent_reward_function over agent_metrics",
    ),
    "pruner": ("a step of a live server is not ended early", "remove pruner"),
    "metrics": (
        "the metrics of a live server are the numbers in its info",
        "remove the metrics table, and name them in agent_metrics",
    ),
    "repeats": ("a step of a live server can't be made again under the same conditions", "remove repeats"),
    "cache": ("a live server has a state of its own, so that no answer of it is served twice", "remove cache"),
    "keep": (
        "a step of a live server has no folder that could be kept",
        "remove keep; record says which steps are written down",
    ),
    "isolate": ("isolate is for the python workload", 'remove isolate; server = "process" isolates a live server'),
    "timeout_s": (
        "timeout_s is for jobs, and a live experiment runs none",
        'write step_timeout_s and server = "process" instead',
    ),
    "episode_steps": ("a live server ends its episodes itself", "remove episode_steps"),
    "stop_after_no_improvement": (
        "the steps of a live server are no settings of which one could be the best",
        "remove it, and write agent_steps or max_time",
    ),
    "num_nodes": ("num_nodes is for jobs, and a live experiment runs none", "remove num_nodes"),
    "extra_env_vars": (
        "extra_env_vars are for jobs, and a live experiment runs none",
        "give them to the class as arguments in cmd_args, or set them where tunegym is started",
    ),
}
"""What to say of a key in a live experiment, and what to do instead."""

_HARMLESS: dict[str, Any] = {"repeats": 1, "cache": "off"}
"""Values that say what is the case anyway."""

_MISPLACED: dict[str, Callable[[str], object]] = {"server": server_place, "record": recording}
"""Keys of the experiment that may be a class's argument as well: what is valid for the key is taken as meant so."""


def refuse_meaningless(raw: Mapping[str, Any], findings: Findings) -> None:
    """Refuse what a live experiment would not use."""
    broken = findings.broken()
    for key, (what, hint) in MEANINGLESS.items():
        if key in raw and key not in broken and not _harmless(key, raw[key]):
            findings.at(key).add(what, found=raw[key], hint=hint)


def _harmless(key: str, value: Any) -> bool:
    return key in _HARMLESS and type(value) is type(_HARMLESS[key]) and value == _HARMLESS[key]


def refuse_live_keys(raw: Mapping[str, Any], findings: Findings) -> None:
    """Refuse what only a live experiment would use."""
    for key in LIVE_KEYS:
        if key in raw and key not in findings.broken():
            what = f"{key} is for live experiments, and this one runs jobs"
            hint = f'remove {key}, or write workload = "{WORKLOAD}"'
            findings.at(key).add(what, found=raw[key], hint=hint)


def refuse_misplaced(arguments: dict[str, Any], taken: Set[str], findings: Findings) -> None:
    """Take the live experiment's own keys out of ``cmd_args``, unless the class takes an argument of the name."""
    for key in LIVE_KEYS:
        if key in arguments and key not in taken and (key not in _MISPLACED or _valid(key, arguments[key])):
            hint = f"move {key} out of cmd_args, below [[experiments]]"
            what = f"{key} is a key of the experiment, not an argument"
            findings.at(key).add(what, found=arguments.pop(key), hint=hint)


def _valid(key: str, value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(_MISPLACED[key](value))
    except ValueError:
        return False
