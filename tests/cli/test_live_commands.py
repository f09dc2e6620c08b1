"""A live experiment as the command line shows it: while it goes, cut off, and afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tunegym as library
from tunegym.tuning.reports.results import find_run

Cli = Callable[..., subprocess.CompletedProcess[str]]

SCENARIO = """
name = "cart"
seed = 1
[[experiments]]
name = "pole"
workload = "live"
agent = "random_search"
agent_steps = {steps}
  [experiments.cmd_args]
  env_class = "{server}"
  env_id = "CartPole-v1"
  gravity = [9.8, 20.0]
  [experiments.env_params]
  gravity = {{}}
"""

FLAKY = """
from tunegym.servers import GymnasiumServer
class Flaky:
    def __init__(self, env_id: str) -> None:
        self._inner = GymnasiumServer(env_id)
        self.action_space, self.observation_space = self._inner.action_space, self._inner.observation_space
        self._steps = 0
    def apply_env_params(self, params): self._inner.apply_env_params(params)
    def reset(self, *, seed=None, options=None): return self._inner.reset(seed=seed, options=options)
    def close(self): self._inner.close()
    def step(self, action):
        self._steps += 1
        if self._steps % 500 == 0:
            raise RuntimeError(f"stumbled after {self._steps}")
        return self._inner.step(action)
"""


STEEP = """
from gymnasium import spaces
class Steep:
    action_space, observation_space = spaces.Discrete(2), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.at = 0
        return 0, {}
    def step(self, action):
        self.at += 1
        return 0, -1e308, self.at == 2, False, {}
    def close(self): pass
"""


@pytest.mark.slow
def test_returns_beyond_all_bounds_are_shown(write: Callable[..., Path], tunegym: Cli) -> None:
    """Their sum has no number, and their mean has."""
    write("steep.py", STEEP)
    one = """
    [[experiments]]
    name = "{name}"
    workload = "live"
    agent = "random_search"
    agent_steps = 20
      [experiments.cmd_args]
      env_class = "steep:Steep"
    """
    path = write("steep.toml", 'name = "steep"\n' + one.format(name="a") + one.format(name="b"))
    commands = [
        ("run", path, "--output", "out"),
        ("resume", "out", "--agent-steps", "30"),
        ("status", "out"),
        ("compare", "out", "out"),
        ("report", "out"),
    ]
    for command in commands:
        done = tunegym(*command)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert "-1.798e+308" in tunegym("status", "out").stdout
    told = json.loads(tunegym("report", "out", "--json").stdout)["experiments"]
    assert [one["episodes"]["mean_return"] < -1.79e308 for one in told] == [True, True]


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Callable[..., Path]:
    write("flaky.py", FLAKY)

    def make(steps: int = 2000, server: str = "tunegym.servers:GymnasiumServer") -> Path:
        return write("live.toml", SCENARIO.format(steps=steps, server=server))

    return make


@pytest.mark.slow
def test_a_run_from_start_to_report(scenario: Callable[..., Path], tunegym: Cli, tmp_path: Path) -> None:
    done = tunegym("run", scenario(), "--output", "runs")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"pole  2,000/2,000 steps  .* steps/s  episodes \d+  return [\d.]+ \(last \d+\)  failed 0  took", done.stderr
    )
    assert re.search(r"pole: 2,000 steps, \d+ episodes, mean return [\d.]+ in the last \d+\n", done.stdout)
    run = find_run(tmp_path / "runs")
    assert not (run / "pole" / "best.toml").exists()

    status = tunegym("status", run)
    assert "mean return" in status.stdout
    assert "2000/2000" in status.stdout
    (told,) = json.loads(tunegym("status", run, "--json").stdout)["experiments"]
    assert (told["state"], told["done"], told["best"]) == ("finished", 2000, None)
    assert told["live"]["unrecorded"] == 0
    assert told["live"]["mean_return"] > 5

    (facts,) = json.loads(tunegym("report", run, "--json").stdout)["experiments"]
    assert facts["live"]
    assert facts["episodes"]["mean_return"] == told["live"]["mean_return"]
    assert {one["group"] for one in facts["per_context"]} == {"gravity=9.8", "gravity=20.0"}
    assert (run / "report.html").stat().st_size < 300_000

    for more in ((), ("--json",), ("--toml",)):
        refused = tunegym("recommend", run, *more)
        assert refused.returncode == 1
        assert refused.stdout == ""
        assert "error: pole is a live experiment: it has no settings to recommend" in refused.stderr
        assert "hint: " in refused.stderr

    compared = tunegym("compare", run, run)
    assert compared.returncode == 0, compared.stderr
    assert "mean return" in compared.stdout
    entries = json.loads(tunegym("compare", run, "--json").stdout)["entries"]
    assert entries[0]["live"]["mean_return"] == told["live"]["mean_return"]

    results: Any = library.load(run).experiments["pole"]
    frame = pd.read_csv(run / "pole" / "trajectory.csv")
    assert results.to_pandas()["step"].tolist() == frame["step"].tolist() == list(range(1, 2001))
    assert len(pd.read_csv(run / "pole" / "episodes.csv")) == len(results.episodes)


@pytest.mark.slow
def test_steps_that_fail(scenario: Callable[..., Path], tunegym: Cli, tmp_path: Path) -> None:
    done = tunegym("run", scenario(server="flaky:Flaky"), "--output", "runs")
    assert done.returncode == 0, done.stderr
    assert "failed 4" in done.stderr
    assert "4 x failed: step: RuntimeError: stumbled after 500" in done.stdout
    (facts,) = json.loads(tunegym("report", find_run(tmp_path / "runs"), "--json").stdout)["experiments"]
    assert facts["steps"]["statuses"] == {"measured": 1996, "failed": 4}
    assert facts["reasons"] == [{"status": "failed", "reason": "step: RuntimeError: stumbled after 500", "count": 4}]


@pytest.fixture
def driver(scenario: Callable[..., Path], command_line: list[str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that takes its time, with a few thousand steps on record."""
    path = scenario(steps=10_000_000)
    process = subprocess.Popen(
        [*command_line, "run", str(path), "--output", "runs"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        wait_for(lambda: any(file.stat().st_size > 100_000 for file in tmp_path.rglob("journal.jsonl")), process)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_one_that_goes_on_and_is_cut_off(driver: subprocess.Popen[str], tunegym: Cli, tmp_path: Path) -> None:
    run = find_run(tmp_path / "runs")
    (going,) = json.loads(tunegym("status", run, "--json").stdout)["experiments"]
    assert going["state"] == "running"
    assert going["done"] > 0
    assert "not on record" not in tunegym("status", run).stdout
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    (cut,) = json.loads(tunegym("status", run, "--json").stdout)["experiments"]
    assert cut["state"] == "interrupted"
    assert cut["done"] >= going["done"]
    unrecorded = cut["live"]["unrecorded"]
    assert unrecorded > 0
    shown = tunegym("status", run).stdout
    assert f"pole: it was cut off: up to {unrecorded} steps may have been taken and are not on record" in shown
    assert f"a resume counts numbers {cut['done'] + 1} to {cut['done'] + unrecorded} as lost" in shown
    report = tunegym("report", run, "--json")
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["experiments"][0]["steps"]["unrecorded"] == unrecorded


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_it(driver: subprocess.Popen[str], tunegym: Cli, tmp_path: Path) -> None:
    assert driver.stderr is not None
    driver.stderr.close()
    run = find_run(tmp_path / "runs")

    def done() -> int:
        return json.loads(tunegym("status", run, "--json").stdout)["experiments"][0]["done"]

    time.sleep(3.0)  # a line is due every two seconds
    before = done()
    while done() == before:
        assert driver.poll() is None
    assert driver.poll() is None


def test_there_is_nothing_to_start_from(
    scenario: Callable[..., Path], write: Callable[..., Path], tunegym: Cli
) -> None:
    assert tunegym("run", scenario(steps=100), "--output", "runs").returncode == 0
    warm = write(
        "warm.toml",
        """
        name = "warm"
        [[experiments]]
        name = "pole"
        workload = "command"
        agent = "optuna"
        agent_steps = 2
        agent_metrics = ["value"]
          [experiments.agent_config]
          warm_start = "runs"
          [experiments.cmd_args]
          command = "echo value={x}"
          x = [1, 2]
          [experiments.metrics]
          value = { regex = 'value=([0-9]+)' }
        """,
    )
    refused = tunegym("run", warm, "--output", "other")
    assert refused.returncode == 1
    assert "has no trials to start from" in refused.stderr
    assert "Traceback" not in refused.stderr
