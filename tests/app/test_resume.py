"""Resume: what it continues, what it refuses, and what it leaves alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write, experiment, run_until
from tests.conftest import Cli
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader

pytestmark = pytest.mark.slow  # every test runs a scenario more than once

RESULTS = Path("results")


@pytest.fixture
def scenario(write: Write, write_scenario: Write) -> Path:
    write("here/run.sh", "echo value=$(( $1 + $2 ))")
    write("here/work.py", "from base import factor\ndef value(x): return x * factor")
    write("here/base.py", "factor = 1")
    command = {"command": "sh {scenario_dir}/run.sh {x} {load}", "x": [1, 2], "load": [0, 100]}
    random: Any = {"agent": "random_search", "agent_steps": 4}
    shell = experiment("shell", args=command, env_params={"load": {}}, **random)
    call = experiment("call", args={"callable": "work:value", "x": [1, 2]}, **random)
    return write_scenario(shell, call, file="here/scenario.toml", seed=5)


@pytest.fixture
def finished(scenario: Path) -> Path:
    """The folder of a run that came to its end."""
    assert library.run(scenario) == 0
    return find_run(RESULTS)


def trials(run: Path, name: str) -> list[tuple[int, object, object, str, int | None]]:
    results = TrialResults(name, run / name)
    return [(t.number, t.context, t.action, t.status, t.cached_from) for t in results.trials]


def test_finished_run_is_left_alone_or_extended(finished: Path, tunegym: Cli) -> None:
    files = [*finished.glob("*.toml"), *finished.glob("*/*.csv"), *finished.glob("*/best.toml")]
    assert len(files) == 7
    before = {file: file.read_bytes() for file in files}
    old = {name: trials(finished, name) for name in ("shell", "call")}
    done = tunegym("resume", finished, code=0)
    assert "best settings" in done.stdout
    refused = tunegym("resume", finished, "--agent-steps", 3, code=1)
    assert "shell has used 4 trials already, --agent-steps 3 is less" in refused.stderr
    assert "hint: give 4 or more" in refused.stderr
    assert tunegym("resume", finished).returncode == 0, "the refused change was kept"
    assert {file: file.read_bytes() for file in files} == before
    tunegym("resume", finished, "--agent-steps", 7, code=0)
    for name, results in assert_sound(finished).items():
        assert len(results.trials) == 7
        assert trials(finished, name)[:4] == old[name]
    assert "7/7" in tunegym("status", finished).stdout


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("run.sh", "echo value=7", "shell: what is measured has changed since the last session: file run.sh"),
        ("work.py", "def value(x): return 7", "call: what is measured has changed"),
        ("base.py", "factor = 7", "file base.py"),
    ],
)
def test_changed_workload_is_refused(
    file: str, text: str, named: str, scenario: Path, tunegym: Cli, write: Write
) -> None:
    run = run_until(6, scenario)
    journals = {path: path.read_bytes() for path in run.glob("*/journal.jsonl")}
    assert len(journals) == 2
    write(f"here/{file}", text)
    done = tunegym("resume", run, code=1)
    assert named in done.stderr
    assert "--force" in done.stderr
    assert done.stdout == ""
    assert {path: path.read_bytes() for path in journals} == journals


def test_force_warns_and_serves_nothing_old(finished: Path, tunegym: Cli, write: Write) -> None:
    old = trials(finished, "shell")
    write("here/run.sh", "echo value=$(( $1 + $2 + 1000 ))")
    done = tunegym("resume", finished, "--force", "--agent-steps", 40, code=0)
    assert "warning: shell: what is measured has changed" in done.stderr
    (shell, call) = assert_sound(finished).values()
    assert trials(finished, "shell")[:4] == old
    for trial in shell.trials[4:]:
        assert trial.metrics["value"] > 1000, "an old measurement was served"
        assert trial.cached_from is None or trial.cached_from > 4
    assert any(trial.cached_from for trial in shell.trials[4:])
    assert all(trial.cached_from for trial in call.trials[4:]), "unchanged, so what is known is not measured again"
    assert tunegym("resume", finished).returncode == 0, "the change was accepted once and for all"


def test_missing_scenario_folder_is_named(scenario: Path, tunegym: Cli) -> None:
    run = run_until(2, scenario)
    shutil.rmtree(scenario.parent)
    done = tunegym("resume", run, code=2)
    assert "scenario_dir: there is no such folder" in done.stderr
    assert str(scenario.parent) in done.stderr
    assert "Traceback" not in done.stderr
    assert tunegym("status", run).returncode == 0


def test_resume_at_another_width(scenario: Path, tunegym: Cli) -> None:
    assert library.run(scenario, output="calm") == 0
    calm = trials(find_run(Path("calm")), "shell")
    run = run_until(2, scenario)
    tunegym("resume", run, "--slots", 3, code=0)
    assert_sound(run)
    assert [(number, context, action) for number, context, action, *_ in trials(run, "shell")] == [
        (number, context, action) for number, context, action, *_ in calm
    ]
    sessions = reader.scan(run / "shell" / reader.JOURNAL).sessions
    assert [session.slots for session in sessions] == [1, 3]


def test_another_goal_is_refused(write_scenario: Write, tunegym: Cli) -> None:
    """Rewards of both goals would be compared."""
    own = experiment(args={"command": "echo {x}", "x": [1, 2]}, agent_metrics=["cpu_s"], agent_reward_function=None)
    run = run_until(1, write_scenario(own | {"metrics": {"cpu_s": {"goal": "min"}}}))
    scenario = run / "scenario.toml"
    scenario.write_text(scenario.read_text().replace('goal = "min"', 'goal = "max"'))
    assert "written with another `goals`: {'cpu_s': 'min'}, now {'cpu_s': 'max'}" in tunegym("resume", run).stderr
