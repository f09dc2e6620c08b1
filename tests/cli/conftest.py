"""Scenarios for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Cli

from tunegym.core.files import dump_toml

__all__ = ["Cli", "experiment", "live"]


def experiment(name: str = "e", *, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """An experiment that measures x of its three trials; ``None`` removes a key."""
    defaults = {
        "workload": "command",
        "agent": "grid_search",
        "agent_metrics": ["value"],
        "cmd_args": {"command": "echo value={x}", "x": [1, 2, 3], **(args or {})},
        "metrics": {"value": {"regex": "value=([0-9.]+)"}},
        "agent_reward_function": None if "objectives" in keys else "identity",
    }
    return {"name": name, **{key: value for key, value in (defaults | keys).items() if value is not None}}


def live(name: str = "pole", *, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A live experiment on CartPole."""
    server = {"env_class": "tunegym.servers:GymnasiumServer", "env_id": "CartPole-v1"}
    defaults = {"workload": "live", "agent": "random_search", "agent_steps": 400, "cmd_args": args or server}
    return {"name": name, **defaults, **keys}


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    """Write a scenario of experiments; without any, of ``experiment(**keys)``."""

    def write(*experiments: dict[str, Any], file: str = "scenario.toml", seed: int = 1, **keys: Any) -> Path:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"name": "s", "seed": seed, "experiments": list(experiments) or [experiment(**keys)]}
        path.write_text(dump_toml(document), encoding="utf-8")
        return path

    return write
