"""Every outcome of a trial through the whole path."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.app.conftest import Write
from tests.conftest import Cli
from tests.soundness import assert_sound

RESULTS = Path("results")

WORK = """
import os, time
def value(x, load):
    if x == 3:
        raise RuntimeError("three")
    if x == 4:
        time.sleep(1000 if load > 10 else 0)
    if x == 5 and load > 10:
        os.abort()
    return x + load
"""


@pytest.mark.slow
def test_all_outcomes_in_one_experiment(tunegym: Cli, write: Write, write_scenario: Write) -> None:
    write("work.py", WORK)
    limits = {"timeout_s": 0.3, "constraints": ["x != 2"], "isolate": True, "agent_reward_function": "negative"}
    args = {"callable": "work:value", "x": [1, 2, 3, 4, 5], "load": [10, 20, 30]}
    keys = {"agent": "random_search", "agent_steps": 40, "env_params": {"load": {"weights": [0.7, 0.2, 0.1]}}}
    done = tunegym("run", write_scenario(seed=4, slots=3, args=args, **limits, **keys))
    assert done.returncode == 0, done.stderr
    (results,) = assert_sound(RESULTS).values()
    assert {trial.status for trial in results.trials} == {"measured", "infeasible", "failed", "timed_out"}
    worst = min(trial.reward for trial in results.trials if trial.measured)
    assert all(trial.reward < worst for trial in results.trials if not trial.measured)
    assert {trial.context["load"] for trial in results.trials} == {10, 20, 30}
    rows, drawn = (list(csv.DictReader((results.folder / name).open())) for name in ("trajectory.csv", "env.csv"))
    assert list(rows[0]) == [
        *("step", "status", "cached", "reward", "action.x", "context.load", "observation.value", "duration_s"),
    ]
    for trial, row, draw in zip(results.trials, rows, drawn, strict=True):
        assert row["action.x"] == str(trial.action["x"])
        assert draw == {"step": str(trial.number), "load": str(trial.context["load"])}
        assert (row["step"], row["context.load"]) == (draw["step"], draw["load"])
        assert row["observation.value"] == (str(trial.metrics["value"]) if trial.measured else "")
    by_number = {trial.number: trial for trial in results.trials}
    served = [trial for trial in results.trials if trial.cached_from]
    assert served
    for trial in served:
        origin = by_number[trial.cached_from or 0]
        assert (origin.action, origin.context, origin.status) == (trial.action, trial.context, "measured")
    assert "load=10" in done.stdout
    assert " more reason" in done.stdout
