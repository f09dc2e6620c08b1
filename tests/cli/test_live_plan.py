"""``tunegym dry-run`` and ``verify`` of a live scenario: its server is never started."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tunegym.app.catalog import Catalog
from tunegym.app.kinds import kind_of
from tunegym.config.load import load

pytestmark = pytest.mark.slow  # every test starts the command anew

Cli = Callable[..., subprocess.CompletedProcess[str]]

MODULE = """
from tunegym.tuning.agents.base import BaseAgent


class Live(BaseAgent):
    supports_variable_environment = True


class Driver(BaseAgent):
    kinds = {"trials": None, "live": "my_live:Live"}


class Server:
    def __init__(self, size, limits=None):
        raise AssertionError("it was started")

    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...
    def close(self): ...
    def apply_env_params(self, params): ...
"""

SCENARIO = """
name = "live"
[[experiments]]
name = "e"
workload = "live"
agent = "my_live:Driver"
agent_steps = 2000
max_time = "1m"
agent_metrics = ["latency_s"]
server = "process"
step_timeout_s = 2
record = "every:100"
  [experiments.cmd_args]
  env_class = "my_live:Server"
  size = 3
  limits.most = "x"
  load = [10, 20]
  noise = { low = 0.0, high = 1.0 }
  [experiments.env_params]
  load = { weights = [0.25, 0.75], encoding = "minmax" }
  noise = { draw = "step" }
"""


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Path:
    write("my_live.py", MODULE)
    return write("live.toml", SCENARIO)


def test_dry_run_says_what_would_be_driven(scenario: Path, tunegym: Cli) -> None:
    done = tunegym("dry-run", scenario)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "e: my_live:Driver, 2,000 steps of one live server",
        "  ends after 60 s",
        "  server: my_live:Server, in its own process, 2 s to answer, up to 5 restarts in a row",
        "  size = 3",
        '  limits.most = "x"',
        "  load = [10, 20] with weights [0.25, 0.75], drawn per episode, shown to the agent",
        '  noise = {low = 0.0, high = 1.0, dtype = "float"}, drawn per step',
        "  reward: the server's own; latency_s of its info are recorded",
        '  record = "every:100"',
    ]


def test_dry_run_as_json(scenario: Path, tunegym: Cli) -> None:
    done = tunegym("dry-run", scenario, "--json", "--slots", 2)
    (plan,) = json.loads(done.stdout)["experiments"]
    assert (plan["trials"], plan["combinations"], plan["first"]) == (2000, None, [])
    assert plan["live"]["env_class"] == "my_live:Server"
    assert plan["live"]["arguments"] == {"size": 3, "limits": {"most": "x"}}
    assert plan["live"]["record"] == "every:100"
    assert plan["live"]["env_params"]["noise"]["draw"] == "step"


PROCESS = "  server: my_live:Server, in its own process, 2 s to answer"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("server=in_process", "  server: my_live:Server, in this process"),
        (
            "server=tcp://a:7000",
            "  server: my_live:Server, at tcp://a:7000, 2 s to answer, up to 5 restarts in a row",
        ),
        ("server_restarts=1", f"{PROCESS}, up to 1 restart in a row"),
        ("server_restarts=0", f"{PROCESS}, never restarted"),
        ("record=episodes", '  record = "episodes"'),
        ("agent_reward_function=negative", "  reward: negative of latency_s in the server's info"),
    ],
)
def test_dry_run_of_other_settings(change: str, expected: str, scenario: Path) -> None:
    if change == "server=in_process":
        scenario.write_text(SCENARIO.replace("step_timeout_s = 2\n", ""))
    checked = load(scenario, Catalog(), [f"experiments.e.{change}", "system.slots=3"])
    (experiment,) = checked.experiments
    lines = kind_of(experiment).plan(checked, experiment, 3).lines
    assert "2,000 steps of 3 live servers" in lines[0]
    assert expected in lines


def test_verify(scenario: Path, tunegym: Cli) -> None:
    done = tunegym("verify", scenario)
    assert (done.returncode, done.stdout) == (0, f"ok: {scenario} (1 experiment)\n")
    bad = tunegym("dry-run", scenario, "--set", "experiments.e.cmd_args.sise=3")
    assert bad.returncode == 2
    assert "Server() doesn't take this argument" in bad.stderr


def test_the_starter_is_right(tunegym: Cli) -> None:
    assert tunegym("init", "--workload", "live").returncode == 0
    assert Path("scenario.toml").read_text().count("#") > 8, "a starter is commented"
    done = tunegym("dry-run", "scenario.toml")
    assert done.returncode == 0, done.stderr
    assert "cartpole: ppo, 20,000 steps of one live server" in done.stdout
