"""Running a scenario: options, budgets, folders, and which experiments may be in it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write, experiment
from tests.conftest import Cli
from tests.soundness import assert_sound

from tunegym.app.run import as_scenario
from tunegym.tuning.reports.results import find_run, load

RESULTS = Path("results")


@pytest.fixture
def scenario(write: Write, write_scenario: Write) -> Path:
    write("work.py", "def value(x): return x")
    args = {"callable": "work:value", "x": {"low": 1, "high": 9, "dtype": "int"}}
    return write_scenario(name="small", agent="random_search", agent_steps=5, args=args)


def changes(**keys: object) -> list[str]:
    return [part for key, value in keys.items() for part in ("--set", f"experiments.e.{key}={value}")]


def test_a_changed_scenario_keeps_its_file(scenario: Path) -> None:
    changed = as_scenario(as_scenario(scenario), ["seed=3"])
    assert (changed.seed, changed.file) == (3, str(scenario))


def test_data_on_stdout_progress_on_stderr(scenario: Path, cli: Cli) -> None:
    done = cli("run", scenario, code=0)
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
    done = cli("run", scenario, "--output", tmp_path / "a b" / "c", "--slots", 3, *more, code=0)
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
        (["--slots", "0"], "--slots"),
    ],
)
def test_a_bad_configuration_starts_nothing(change: list[str], told: str, scenario: Path, cli: Cli) -> None:
    done = cli("run", scenario, *change)
    assert (done.returncode, done.stdout, RESULTS.exists()) == (2, "", False)
    assert told in done.stderr


def test_memory_of_small_programs(cli: Cli, write_scenario: Write) -> None:
    """It is their own, not that of the process that starts them."""
    args = {"command": "sleep {x}", "x": [0, 0.001]}
    keys = {"agent_metrics": ["max_rss_mb"], "agent_reward_function": None, "metrics": None}
    cli("run", write_scenario(args=args, **keys), code=0)
    peaks = [trial.metrics["max_rss_mb"] for trial in load(RESULTS).experiments["e"].trials]
    assert len(peaks) == 2
    assert all(0 < peak < 4 for peak in peaks)


def test_a_plain_job_runs_once(cli: Cli, write_scenario: Write) -> None:
    plain = {"agent": None, "agent_metrics": None, "metrics": None}
    build = experiment("build", args={"command": "echo ran >> {scenario_dir}/ran.txt"}, **plain)
    measure = experiment("measure", args={"command": "echo value={size}", "size": 12}, agent=None)
    path = write_scenario(build, measure)
    cli("run", path, code=0)
    assert cli("resume", RESULTS).returncode == 0
    assert path.with_name("ran.txt").read_text() == "ran\n"
    results = assert_sound(RESULTS)
    assert [len(one.trials) for one in results.values()] == [1, 1]
    assert results["measure"].trials[0].metrics["value"] == 12
    done = cli("resume", RESULTS, "--agent-steps", 5)
    assert (done.returncode, "plain job" in done.stderr) == (1, True)
    done = cli("run", path, "--set", "experiments.build.cmd_args.command=echo no >&2; exit 3", "--output", "failed")
    assert (done.returncode, "1 x failed: exited with 3: no" in done.stdout) == (1, True)


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


def test_a_users_agent_with_settings(scenario: Path, cli: Cli, write: Write) -> None:
    write("mine.py", CLIMBER)
    more = changes(agent="mine:Climber")
    cli("run", scenario, *more, *changes(agent_config="{ step = 2 }"), code=0)
    with (find_run(RESULTS) / "e" / "trajectory.csv").open() as file:
        assert [row["action.x"] for row in csv.DictReader(file)] == ["3", "5", "7", "9", "9"]
    done = cli("run", scenario, *more, *changes(agent_config="{ stpe = 2 }"))
    assert (done.returncode, "did you mean" in done.stderr) == (2, True)


PLAIN = """
class Plain:
    def __init__(self, env, config, seed):
        self.env, self.given = env, (config.random_seed, seed)

    def run(self):
        assert self.given == (7, 0)
        while True:  # the end of the budget ends it
            self.env.observe()
            self.env.begin({"x": 1})
            self.env.next_finished()

    def close(self):
        open("closed", "a").write("x")


class Steps(Plain):
    def run(self):
        assert self.given == (7, 5)
        while True:
            self.env.reset()
            over = False
            while not over:
                _, _, terminated, truncated, _ = self.env.step(0)
                over = terminated or truncated
"""


def test_an_agent_without_a_base_class(cli: Cli, write: Write, write_scenario: Write, live: Any) -> None:
    """Of both kinds: built as ``Class(env, config, seed)``, with ``run`` and ``close``. A lost server is a failure."""
    write("mine.py", PLAIN)
    settings = {"agent_config": {"random_seed": 7}}
    write_scenario(agent="mine:Plain", args={"command": "echo value={x}", "x": [1, 2]}, agent_steps=3, **settings)
    cli("run", "scenario.toml", code=0)
    fine, doomed = live.experiment("fine", **settings), live.experiment("doomed", **settings)
    doomed["cmd_args"]["faults"] = "reset@3+=raise"
    for one in (fine, doomed):
        one["agent"] = "mine:Steps"
    done = cli("run", live.write(doomed, fine), "--output", "steps", code=1)
    assert "the server failed" in done.stderr
    results = assert_sound("steps")
    assert (results["fine"].steps, results["doomed"].steps) == (40, 14)
    assert len(Path("closed").read_text()) == 3


@pytest.mark.parametrize("agent", ["grid_search", "optuna"])
def test_a_search_that_has_tried_everything_says_so(agent: str, write_scenario: Write, cli: Cli) -> None:
    args = {"command": "echo value={x}", "x": [1, 2]}
    done = cli("run", write_scenario(agent=agent, agent_steps=9, args=args))
    assert "e: ended, every setting was tried" in done.stderr
    assert load("results").experiments["e"].ended == "every setting was tried"
