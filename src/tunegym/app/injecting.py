"""Scenarios whose server is an object that somebody gives in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunegym.config.files import content
from tunegym.tuning.model.live import INJECTED


def with_injected(source: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The same scenario as plain data, whose live experiments take the server that they are given."""
    if isinstance(source, Mapping):
        document = dict(source)
    else:
        path = Path(source)
        document = {"scenario_dir": str(path.absolute().parent), **content(path)}
    experiments = document.get("experiments")
    if isinstance(experiments, list | tuple):
        document["experiments"] = [_injected(one) for one in experiments]
    return document


def _injected(experiment: Any) -> Any:
    """Whatever is wrong with it is left for the checks to say."""
    if not isinstance(experiment, Mapping):
        return experiment
    arguments = experiment.get("cmd_args", {})
    live = isinstance(arguments, Mapping) and (
        experiment.get("workload") == "live" or arguments.get("live_rl_mode") is True
    )
    return {**experiment, "cmd_args": {**arguments, "env_class": INJECTED}} if live else experiment
