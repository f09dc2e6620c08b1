"""How many modules of ours a trial, a live step and a put pass. CONTRIBUTING describes the walks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from tests.cli.conftest import experiment, live

import tunegym
from tunegym import dataplane
from tunegym.core.files import dump_toml
from tunegym.tuning.stores.views import TrialViews

SOURCE = str(Path(tunegym.__file__).parent)
SORT = experiment(
    agent="random_search",
    agent_steps=1,
    agent_reward_function="negative",
    constraints=["x < 9"],
    args={"command": "echo value={x} {size}", "size": [3, 4]},
    env_params={"size": {"weights": [0.5, 0.5]}},
)


def walk(call: Callable[[], Any], last: Callable[..., Any] | None = None) -> set[str]:
    """The modules of ours with a function that ran, in any thread, until ``last`` was called."""
    found: set[str] = set()
    over = []

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and not over and frame.f_code.co_filename.startswith(SOURCE):
            found.add(frame.f_code.co_filename)
            if last is not None and frame.f_code is last.__code__:
                over.append(True)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {str(Path(name).relative_to(SOURCE)) for name in found}


def test_a_trial_passes_at_most_40_modules(tmp_path: Path) -> None:
    from tunegym.cli.main import app

    (tmp_path / "scenario.toml").write_text(dump_toml({"name": "walk", "seed": 1, "experiments": [SORT]}))
    command = ["run", str(tmp_path / "scenario.toml"), "--output", str(tmp_path)]

    def run() -> None:
        assert app(command, standalone_mode=False) in (None, 0)

    run()  # the first time also imports
    passed = walk(run, last=TrialViews.add)
    assert {"cli/main.py", "config/load.py", "core/processes.py", "tuning/stores/views.py"} <= passed
    assert len(passed) <= 40, sorted(passed)


def test_a_live_step_passes_at_most_12_modules(tmp_path: Path) -> None:
    env = tunegym.make({"name": "walk", "seed": 1, "experiments": [live()]}, output=tmp_path)
    try:
        env.reset(seed=1)
        env.step(0)
        passed = walk(lambda: env.step(1))
    finally:
        env.close()
    assert "tuning/envs/live/engine.py" in passed
    assert len(passed) <= 12, sorted(passed)


def test_a_put_in_memory_passes_at_most_12_modules() -> None:
    plane = dataplane.connect("memory://walk")
    try:
        plane.register_partition("rollouts", ["tokens"], ["train"])

        def put(name: str) -> None:
            plane.put_samples("rollouts", [name], {"tokens": [np.arange(3)]}, tags={"weight_version": 1})

        put("first")
        passed = walk(lambda: put("second"))
    finally:
        plane.close()
    assert "dataplane/ledger/partition.py" in passed
    assert len(passed) <= 12, sorted(passed)
