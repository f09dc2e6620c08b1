"""Searching with Optuna's samplers through whole runs: killed, and with several objectives."""

from __future__ import annotations

import signal
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.soundness import assert_sound

import tunegym
from tunegym.core.errors import ConfigError
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader

pytestmark = pytest.mark.slow  # whole searches

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

SLOW_BOWL = """
import time
def value(x, y, mode):
    time.sleep(0.05)
    if mode == "broken" and x > 0:
        raise ValueError("crashed")
    return -(x - 0.7) ** 2 - (y - 20) ** 2 / 400 - (mode == "slow")
"""

KILLED = """
name = "killed"
seed = 5
[[experiments]]
name = "e"
workload = "python"
agent = "optuna"
agent_steps = 40
agent_metrics = ["value"]
constraints = ["y != 3"]
  [experiments.cmd_args]
  callable = "work:value"
  x = {{ low = -2.0, high = 2.0, dtype = "float" }}
  y = {{ low = 1, high = 60, dtype = "int", log = true }}
  mode = ["fast", "slow", "broken"]
  [experiments.agent_config]
  sampler = "{sampler}"
  {more}
"""


def actions(folder: Path) -> dict[int, dict[str, Any]]:
    (results,) = assert_sound(find_run(folder)).values()
    return {trial.number: dict(trial.action) for trial in results.trials}


@pytest.mark.invariant
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii", "qmc", "random"])
def test_a_killed_run_proposes_as_the_uninterrupted_one(
    sampler: str, tmp_path: Path, write: Any, tunegym: Cli, start_tunegym: Start, wait_until: Callable[..., None]
) -> None:
    write("work.py", SLOW_BOWL)
    more = "population = 6" if sampler in ("nsgaii", "cmaes") else ""
    scenario = write("scenario.toml", KILLED.format(sampler=sampler, more=more))
    whole = tunegym("run", scenario, "--output", "whole")
    assert whole.returncode == 0, whole.stderr
    log = tmp_path / "log.txt"
    process = start_tunegym("run", scenario, "--output", "killed", log=log)
    for count in (8, 22):
        wait_until(lambda count=count: closed(tmp_path / "killed") >= count, f"{count} trials, {log.read_text()}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert closed(tmp_path / "killed") < 40
        process = start_tunegym("resume", tmp_path / "killed", log=log)
    assert process.wait(120) == 0, log.read_text()
    assert actions(tmp_path / "killed") == actions(tmp_path / "whole")


def closed(folder: Path) -> int:
    found = list(folder.glob(f"*/*/e/{reader.JOURNAL}"))
    return reader.scan(found[0]).closed if found else 0


# several objectives -----------------------------------------------------------------------------------

SCHAFFER = "def f(x, y):\n    return {'a': x * x + y * y, 'b': (x - 2) ** 2 + y * y}\n"
"""The front is y = 0 and x from 0 to 2: sqrt(b) = 2 - sqrt(a)."""


def search(folder: Path, objectives: list[dict[str, Any]], sampler: str, steps: int, **more: Any) -> TrialResults:
    (folder / "known_front.py").write_text(SCHAFFER)
    experiment = {
        "name": "e",
        "workload": "python",
        "agent": "optuna",
        "agent_steps": steps,
        "isolate": False,
        "objectives": objectives,
        "cmd_args": {
            "callable": "known_front:f",
            "x": {"low": -4.0, "high": 4.0, "dtype": "float"},
            "y": {"low": -4.0, "high": 4.0, "dtype": "float"},
        },
        "agent_config": {"sampler": sampler, **more},
    }
    document = {"name": "front", "seed": 2, "scenario_dir": str(folder), "experiments": [experiment]}
    assert tunegym.run(document, output=folder / "results") == 0
    return tunegym.load(folder / "results").experiments["e"]


@pytest.mark.parametrize(("sampler", "steps"), [("tpe", 250), ("nsgaii", 900)])
def test_the_front_is_right_where_it_is_known(tmp_path: Path, sampler: str, steps: int) -> None:
    """Two objectives and a limit: everything in the set keeps the limit, is undominated, and lies by the true front."""
    limit = 1.0
    objectives = [{"metric": "a", "goal": "min", "limit": limit}, {"metric": "b", "goal": "min"}]
    results = search(tmp_path, objectives, sampler, steps, **({"population": 30} if sampler == "nsgaii" else {}))
    found = [setting.metrics() for setting in results.pareto]
    assert len(found) >= 10
    assert all(metrics["a"] <= limit for metrics in found)
    # Of all measured trials that keep the limit, exactly these are dominated by none.
    kept = {(t.metrics["a"], t.metrics["b"]) for t in results.trials if t.metrics["a"] <= limit}
    best = {p for p in kept if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in kept)}
    assert {(metrics["a"], metrics["b"]) for metrics in found} == best
    # And they are where the front is: along it, and not beside it.
    beside = sorted(metrics["b"] ** 0.5 - (2 - metrics["a"] ** 0.5) for metrics in found)
    assert beside[0] >= -1e-9, "nothing lies beyond the front"
    assert beside[len(beside) // 2] < 0.1
    along = sorted(metrics["a"] ** 0.5 for metrics in found)
    assert along[0] < 0.25, "it reaches from the one end"
    assert along[-1] > 0.75, "to the limit"
    document = tomllib.loads((results.folder / "best.toml").read_text())
    assert {entry["trial"] for entry in document["pareto"]} == {setting.first for setting in results.pareto}
    assert document["best"]["trial"] in {entry["trial"] for entry in document["pareto"]}
    assert all("violation" not in entry for entry in document["pareto"])


def test_a_sampler_of_one_number_gets_the_weighted_sum(tmp_path: Path, tunegym: Cli) -> None:
    """In units of the first trial, also after a resume."""
    objectives = [{"metric": "a", "goal": "min", "weight": 3.0}, {"metric": "b", "goal": "min"}]
    results = search(tmp_path, objectives, "random", 6)
    extended = tunegym("resume", results.folder.parent, "--agent-steps", "9")
    assert extended.returncode == 0, extended.stderr
    assert "Pareto set of" in extended.stdout
    trials = TrialResults("e", results.folder).trials
    unit = trials[0].metrics
    for trial in trials:
        expected = -(3.0 * trial.metrics["a"] / unit["a"] + trial.metrics["b"] / unit["b"]) / 4.0
        assert trial.reward == pytest.approx(expected)


def test_a_missing_optuna_is_named(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else find(name, *rest)
    )
    write("work.py", SLOW_BOWL)
    with pytest.raises(ConfigError, match=r"(?s)needs the package optuna.*pip install 'tunegym\[optuna\]'"):
        tunegym.scenario(write("s.toml", KILLED.format(sampler="tpe", more="")))
