"""Resume: what it continues, what it refuses, and what it leaves alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.soundness import assert_sound

import tunegym as library
from tunegym.core.errors import StoreError
from tunegym.core.stop import Stop
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader

pytestmark = pytest.mark.slow  # every test runs a scenario more than once

Cli = Callable[..., subprocess.CompletedProcess[str]]
RESULTS = Path("results")

SCENARIO = """
name = "again"
seed = 5

[[experiments]]
name = "shell"
workload = "command"
agent = "random_search"
agent_steps = 4
agent_metrics = ["value"]
  [experiments.cmd_args]
  command = "sh {scenario_dir}/run.sh {x} {load}"
  x = [1, 2]
  load = [0, 100]
  [experiments.env_params]
  load = {}
  [experiments.metrics]
  value = { regex = 'value=([0-9]+)' }

[[experiments]]
name = "call"
workload = "python"
agent = "random_search"
agent_steps = 4
agent_metrics = ["value"]
isolate = false
  [experiments.cmd_args]
  callable = "work:value"
  x = [1, 2]
"""


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Path:
    write("here/run.sh", "echo value=$(( $1 + $2 ))")
    write("here/work.py", "from base import factor\ndef value(x): return x * factor")
    write("here/base.py", "factor = 1")
    return write("here/scenario.toml", SCENARIO)


@pytest.fixture
def finished(scenario: Path) -> Path:
    """The folder of a run that came to its end."""
    assert library.run(scenario) == 0
    return find_run(RESULTS)


class StopAfter:
    """Watches a run, and stops it when the first experiment has ``count`` trials."""

    def __init__(self, count: int) -> None:
        self.stop = Stop()
        self._left = count

    def trial_closed(self, trial: object) -> None:
        self._left -= 1
        if not self._left:
            self.stop.request()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def interrupted(scenario: Path, after: int) -> Path:
    watch = StopAfter(after)
    assert library.run(scenario, watch=watch, stop=watch.stop) == 130  # type: ignore[arg-type]
    return find_run(RESULTS)


def trials(run: Path, name: str) -> list[tuple[int, object, object, str, int | None]]:
    results = TrialResults(name, run / name)
    return [(t.number, t.context, t.action, t.status, t.cached_from) for t in results.trials]


def test_finished_run_is_left_alone_or_extended(finished: Path, tunegym: Cli) -> None:
    files = [*finished.glob("*.toml"), *finished.glob("*/*.csv"), *finished.glob("*/best.toml")]
    assert len(files) == 7
    before = {file: file.read_bytes() for file in files}
    old = {name: trials(finished, name) for name in ("shell", "call")}
    done = tunegym("resume", finished)
    assert done.returncode == 0, done.stderr
    assert "best settings" in done.stdout
    refused = tunegym("resume", finished, "--agent-steps", 3)
    assert refused.returncode == 1
    assert "shell has used 4 trials already, --agent-steps 3 is less" in refused.stderr
    assert "hint: give 4 or more" in refused.stderr
    assert tunegym("resume", finished).returncode == 0, "the refused change was kept"
    assert {file: file.read_bytes() for file in files} == before
    done = tunegym("resume", finished, "--agent-steps", 7)
    assert done.returncode == 0, done.stderr
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
    file: str, text: str, named: str, scenario: Path, tunegym: Cli, write: Callable[..., Path]
) -> None:
    run = interrupted(scenario, after=6)
    journals = {path: path.read_bytes() for path in run.glob("*/journal.jsonl")}
    assert len(journals) == 2
    write(f"here/{file}", text)
    done = tunegym("resume", run)
    assert done.returncode == 1
    assert named in done.stderr
    assert "--force" in done.stderr
    assert done.stdout == ""
    assert {path: path.read_bytes() for path in journals} == journals


def test_force_warns_and_serves_nothing_old(finished: Path, tunegym: Cli, write: Callable[..., Path]) -> None:
    old = trials(finished, "shell")
    write("here/run.sh", "echo value=$(( $1 + $2 + 1000 ))")
    done = tunegym("resume", finished, "--force", "--agent-steps", 40)
    assert done.returncode == 0, done.stderr
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
    run = interrupted(scenario, after=2)
    shutil.rmtree(scenario.parent)
    done = tunegym("resume", run)
    assert done.returncode == 2
    assert "scenario_dir: there is no such folder" in done.stderr
    assert str(scenario.parent) in done.stderr
    assert "Traceback" not in done.stderr
    assert tunegym("status", run).returncode == 0


def test_resume_at_another_width(scenario: Path, tunegym: Cli) -> None:
    assert library.run(scenario, output="calm") == 0
    calm = trials(find_run(Path("calm")), "shell")
    run = interrupted(scenario, after=2)
    done = tunegym("resume", run, "--slots", 3)
    assert done.returncode == 0, done.stderr
    assert_sound(run)
    assert [(number, context, action) for number, context, action, *_ in trials(run, "shell")] == [
        (number, context, action) for number, context, action, *_ in calm
    ]
    sessions = reader.scan(run / "shell" / reader.JOURNAL).sessions
    assert [session["slots"] for session in sessions] == [1, 3]


def test_plain_job_has_no_steps_to_add(tunegym: Cli, write: Callable[..., Path]) -> None:
    path = write(
        "plain.toml",
        """
        name = "plain"
        [[experiments]]
        name = "e"
        workload = "command"
          [experiments.cmd_args]
          command = "true"
        """,
    )
    assert library.run(path) == 0
    assert tunegym("resume", RESULTS).returncode == 0
    (results,) = assert_sound(RESULTS).values()
    assert len(results.trials) == 1
    done = tunegym("resume", RESULTS, "--agent-steps", 5)
    assert done.returncode == 1
    assert "plain job" in done.stderr


def test_living_run_is_left_alone(
    start_tunegym: Callable[..., subprocess.Popen[str]],
    tunegym: Cli,
    write: Callable[..., Path],
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    path = write(
        "waits.toml",
        """
        name = "waits"
        [[experiments]]
        name = "e"
        workload = "command"
        agent_metrics = ["duration_s"]
          [experiments.cmd_args]
          command = "while test ! -d {scenario_dir}/go; do sleep 0.02; done; echo {x}"
          x = [1, 2, 3]
        """,
    )
    process = start_tunegym("run", path, log=tmp_path / "log.txt")
    wait_until(lambda: list(tmp_path.glob("results/*/*/e/trials/*")), "the first trial")
    run = find_run(RESULTS)
    copy = (run / "scenario.toml").read_bytes()
    done = tunegym("resume", run, "--slots", 2, "--agent-steps", 2)
    assert done.returncode == 1
    assert f"is being written by process {process.pid} on " in done.stderr
    assert done.stdout == ""
    assert (run / "scenario.toml").read_bytes() == copy
    with pytest.raises(StoreError, match=f"process {process.pid}"):
        library.resume(run)
    (tmp_path / "go").mkdir()
    assert process.wait(60) == 0
    (results,) = assert_sound(run).values()
    assert len(results.trials) == 3
    assert all(trial.measured for trial in results.trials)
