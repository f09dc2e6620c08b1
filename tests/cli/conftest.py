"""Shared by the tests of the command line: scenarios, and the command called in this process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tunegym.cli.main import app
from tunegym.core.files import dump_toml

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli() -> Cli:
    """Call the command line in this process. An exception that it doesn't handle is raised."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(app, [str(one) for one in arguments], prog_name="tunegym")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return call


def experiment(name: str = "e", *, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """An experiment that measures x of its three trials; ``None`` removes a key."""
    defaults = {
        "workload": "command",
        "agent": "grid_search",
        "agent_metrics": ["value"],
        "cmd_args": {"command": "echo value={x}", "x": [1, 2, 3], **(args or {})},
        "metrics": {"value": {"regex": "value=([0-9.]+)"}},
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
