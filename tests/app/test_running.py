"""Running a scenario: options, budgets, folders, and which experiments may be in it."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.soundness import assert_sound

from tunegym.tuning.reports.results import find_run, load
from tunegym.tuning.stores import reader

RESULTS = Path("results")

SCENARIO = """
name = "small"
[[experiments]]
name = "e"
workload = "python"
agent = "random_search"
agent_steps = 5
agent_metrics = ["value"]
isolate = false
  [experiments.cmd_args]
  callable = "work:value"
  x = { low = 1, high = 9, dtype = "int" }
"""


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Path:
    write("work.py", "import time\ndef value(x, pause=0.0):\n    time.sleep(pause)\n    return x")
    return write("scenario.toml", SCENARIO)


def changes(**keys: object) -> list[str]:
    return [part for key, value in keys.items() for part in ("--set", f"experiments.e.{key}={value}")]


def test_data_on_stdout_progress_on_stderr(scenario: Path, cli: Cli) -> None:
    done = cli("run", scenario)
    assert done.returncode == 0
    run = find_run(RESULTS)
    assert "e: best settings" in done.stdout
    assert done.stdout.splitlines()[-2:] == [f"results: {run}", f"report: {run}/report.html"]
    assert done.stderr.splitlines()[0] == f"small: 1 experiment, results in {run.absolute()}"
    assert done.stderr.splitlines()[-1].startswith("e  5/5  failed 0  cached ")
    assert "\x1b" not in done.stdout + done.stderr
    assert sorted(path.name for path in run.iterdir()) == ["e", "report.html", "scenario.toml"]
    names = {path.name for path in (run / "e").iterdir()}
    assert names >= {"journal.jsonl", "trajectory.csv", "env.csv", "best.toml"}


def test_options(scenario: Path, cli: Cli, tmp_path: Path) -> None:
    more = ["--set", "seed=9", *changes(agent_steps=3, keep='"none"')]
    done = cli("run", scenario, "--output", tmp_path / "a b" / "c", "--slots", 3, *more)
    assert done.returncode == 0, done.stderr
    assert not RESULTS.exists()
    results = load(tmp_path / "a b" / "c" / "small")
    assert (results.scenario["seed"], results.scenario["system"]["slots"]) == (9, 3)
    assert results.scenario["experiments"][0]["keep"] == "none"
    assert len(results.experiments["e"].trials) == 3
    assert_sound(results.folder)
    assert str(results.folder.relative_to(tmp_path)) in done.stdout


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changes(agent_stesp=3), "experiments.e.agent_stesp"),
        (changes(agent="nobody"), 'there is no agent "nobody"'),
        (["--set", "experiments.other.agent_steps=3"], 'there is no experiment "other"'),
        (["--slots", "0"], "--slots"),
    ],
)
def test_a_bad_configuration_starts_nothing(change: list[str], told: str, scenario: Path, cli: Cli) -> None:
    done = cli("run", scenario, *change)
    assert (done.returncode, done.stdout, RESULTS.exists()) == (2, "", False)
    assert told in done.stderr


PLAIN = """
name = "plain"
[[experiments]]
name = "build"
workload = "command"
cmd_args.command = "echo ran >> {scenario_dir}/ran.txt"
[[experiments]]
name = "measure"
workload = "command"
agent_metrics = ["value"]
cmd_args = { command = "echo value={size}", size = 12 }
metrics.value = { regex = 'value=([0-9]+)' }
"""


def test_a_plain_job_runs_once(cli: Cli, write: Callable[..., Path]) -> None:
    path = write("plain.toml", PLAIN)
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    assert path.with_name("ran.txt").read_text() == "ran\n"
    results = assert_sound(RESULTS)
    assert [len(one.trials) for one in results.values()] == [1, 1]
    assert results["measure"].trials[0].metrics["value"] == 12
    done = cli("run", path, "--set", "experiments.build.cmd_args.command=echo no >&2; exit 3", "--output", "failed")
    assert (done.returncode, "1 x failed: exited with 3: no" in done.stdout) == (1, True)


TOGETHER = """
import sys, time, tunegym.app.run
from pathlib import Path
Path(f"ready-{sys.argv[1]}").mkdir()
while time.time() < float(Path("start").read_text() if Path("start").exists() else "inf"):
    time.sleep(0.001)
sys.exit(tunegym.run("scenario.toml"))
"""


@pytest.mark.slow
def test_runs_of_the_same_second_get_different_folders(
    scenario: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", TOGETHER, str(index)]) for index in range(4)]
    try:
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 4, "four processes at the start")
        fresh = tmp_path / "start.new"
        fresh.write_text(str(int(time.time()) + 1))  # the beginning of a second
        fresh.rename(tmp_path / "start")
        assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    tokens = set()
    for run in RESULTS.glob("small/*"):
        (results,) = assert_sound(run).values()
        assert len(results.trials) == 5
        head = reader.head_of(results.path)
        assert head is not None
        tokens.add(head["run"])
    assert len(tokens) == 4


CLIMBER = """
from dataclasses import dataclass
import tunegym

@dataclass(frozen=True, kw_only=True)
class Config(tunegym.AgentConfig):
    step: int = 1

class Climber(tunegym.BaseAgent):
    Config = Config
    best = (float("-inf"), 1)

    def select_action(self, observation):
        return {"x": min(9, self.best[1] + self.config.step)}

    def update_policy(self, feedback):
        self.best = max(self.best, (feedback.value, feedback.action["x"]))
"""


def test_a_users_agent_with_settings(scenario: Path, cli: Cli, write: Callable[..., Path]) -> None:
    write("mine.py", CLIMBER)
    more = changes(agent="mine:Climber")
    done = cli("run", scenario, *more, *changes(agent_config="{ step = 2 }"))
    assert done.returncode == 0, done.stderr
    with (find_run(RESULTS) / "e" / "trajectory.csv").open() as file:
        assert [row["action.x"] for row in csv.DictReader(file)] == ["3", "5", "7", "9", "9"]
    done = cli("run", scenario, *more, *changes(agent_config="{ stpe = 2 }"))
    assert (done.returncode, "did you mean" in done.stderr) == (2, True)
