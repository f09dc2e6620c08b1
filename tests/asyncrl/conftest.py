"""The reference configuration, with the keys that a test names changed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.soundness import assert_sound

import tunegym

REFERENCE = Path(__file__).parents[2] / "examples" / "async" / "scenario.toml"
Change = Callable[..., dict[str, Any]]


@pytest.fixture
def reference() -> Change:
    """``reference(slots=2, agent_steps=500, batch=4)``: keys of ``[system]``, the experiment, or its settings."""

    def changed(slots: int = 2, **keys: Any) -> dict[str, Any]:
        document = tomllib.loads(REFERENCE.read_text(encoding="utf-8"))
        document["system"]["slots"] = slots
        (experiment,) = document["experiments"]
        for key, value in keys.items():
            known = ("agent_steps", "cmd_args", "env_params", "record", "seed", "server")
            (experiment if key in known else experiment["agent_config"])[key] = value
        return document

    return changed


def log_of(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of the versions that survived, and the account at the end."""
    kept: dict[int, dict[str, Any]] = {}
    account: dict[str, Any] = {}
    for line in (folder / "async.jsonl").read_text().splitlines():
        found = json.loads(line)
        if "session" in found:  # versions after its checkpoint were rewound
            kept = {version: one for version, one in kept.items() if version <= found["version"]}
        elif "account" in found:
            account = found["account"]
        else:
            kept[found["version"]] = found
    return list(kept.values()), account


def assert_balanced(folder: Path) -> dict[str, Any]:
    """Every rollout that was put was trained once, dropped, lost, or is left; returns the account."""
    versions, account = log_of(folder)
    gone = account["trained"] + sum(account["dropped"].values()) + account["lost"] + account["left"]
    assert account["produced"] == gone, account
    assert [line["version"] for line in versions] == list(range(1, account["version"] + 1))
    assert account["trained"] == sum(line["samples"] for line in versions)
    assert account["trained_steps"] == sum(line["steps"] for line in versions)
    return account


def experiment_of(results: Path) -> Path:
    return next(results.rglob("journal.jsonl")).parent


def run(document: dict[str, Any], results: Path) -> Path:
    """A whole run; returns the experiment's folder."""
    assert tunegym.run(document, output=results) == 0
    return experiment_of(results)


def sound(results: Path) -> Any:
    """The results of the only experiment: numbers, contexts and both views are as they must be."""
    (found,) = assert_sound(results).values()
    return found
