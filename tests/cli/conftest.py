"""Scenarios for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app import conftest as app
from tests.conftest import Cli

from tunegym.core.files import dump_toml

__all__ = ["Cli", "experiment", "live"]


def experiment(name: str = "e", *, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """An experiment that measures x of its three trials; ``None`` removes a key."""
    return app.experiment(name, args={"command": "echo value={x}", "x": [1, 2, 3], **(args or {})}, **keys)


def live(name: str = "pole", *, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A live experiment on CartPole."""
    server = {"env_class": "tunegym.servers:GymnasiumServer", "env_id": "CartPole-v1"}
    defaults = {"workload": "live", "agent": "random_search", "agent_steps": 400, "cmd_args": args or server}
    return {"name": name, **defaults, **keys}


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Callable[..., Path]:
    """Write a scenario of experiments; without any, of ``experiment(**keys)``."""

    def make(*experiments: dict[str, Any], file: str = "scenario.toml", seed: int = 1, **keys: Any) -> Path:
        return write(file, dump_toml(app.document(*(experiments or [experiment(**keys)]), seed=seed)))

    return make
