"""Every command but run and resume, as a user or a script calls it."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.soundness import assert_sound

import tunegym as library
from tunegym.app.catalog import Catalog
from tunegym.tuning.reports.results import find_run

pytestmark = pytest.mark.slow  # every test starts the command anew

Cli = Callable[..., subprocess.CompletedProcess[str]]

GOOD = """
name = "good"
seed = 1
[[experiments]]
name = "e"
workload = "command"
agent = "random_search"
agent_steps = 4
agent_metrics = ["value"]
constraints = ["x < 3"]
  [experiments.cmd_args]
  command = "echo value={x} {word} {{literal}} {load}"
  x = [1, 2, 3]
  word = "two words"
  load = [0.1, 0.2]
  [experiments.env_params]
  load = { weights = [0.25, 0.75] }
  [experiments.metrics]
  value = { regex = 'value=([0-9]+)' }
"""

BAD = GOOD.replace("agent_steps", "agent_stesp")


@pytest.fixture
def good(write: Callable[..., Path]) -> Path:
    return write("good.toml", GOOD)


# verify -----------------------------------------------------------------------------------------------


def test_verify_files_and_folders(good: Path, write: Callable[..., Path], tunegym: Cli) -> None:
    write("folder/a.toml", GOOD)
    write("folder/deep/b.toml", GOOD)
    done = tunegym("verify", "good.toml", "folder")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "ok: good.toml (1 experiment)",
        "ok: folder/a.toml (1 experiment)",
        "ok: folder/deep/b.toml (1 experiment)",
    ]


def test_verify_goes_on_past_bad_ones(good: Path, write: Callable[..., Path], tunegym: Cli) -> None:
    write("bad.toml", BAD)
    write("broken.toml", "name = \n")
    Path("empty").mkdir()
    done = tunegym("verify", "bad.toml", "empty", "broken.toml", "missing.toml", "good.toml")
    assert done.returncode == 2
    assert done.stdout == "ok: good.toml (1 experiment)\n"
    for told in ("agent_stesp", "agent_steps", "empty: no scenario", "broken.toml", "missing.toml"):
        assert told in done.stderr
    assert done.stderr.splitlines()[-1] == "4 of 5 are bad"
    assert not Path("results").exists()


def test_verify_shows_warnings(write: Callable[..., Path], tunegym: Cli) -> None:
    text = 'name = "p"\n[[experiments]]\nname = "e"\nworkload = "command"\nagent_steps = 3\ncmd_args.command = "true"'
    done = tunegym("verify", write("plain.toml", text))
    assert done.returncode == 0
    assert "warning: " in done.stderr
    assert "agent_steps is not used" in done.stderr


# dry-run ----------------------------------------------------------------------------------------------


def test_dry_run_shows_what_would_run(good: Path, tunegym: Cli) -> None:
    done = tunegym("dry-run", good, "--count", 4, "--slots", 2)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "e: random_search, 4 trials over 3 combinations, 2 at a time on local, 1 sample each"
    assert "  x = [1, 2, 3]" in lines
    assert "  load = [0.1, 0.2] with weights [0.25, 0.75], drawn per trial" in lines
    assert sum(line.startswith("  trial ") for line in lines) == 4
    assert any("'two words' {literal} 0." in line for line in lines)
    assert "    infeasible: " in done.stdout
    assert not Path("results").exists()


def test_dry_run_as_json_is_what_runs(good: Path, tunegym: Cli) -> None:
    done = tunegym("dry-run", good, "--count", 9, "--json")
    assert done.returncode == 0
    (plan,) = json.loads(done.stdout)["experiments"]
    assert (plan["name"], plan["agent"], plan["trials"], plan["combinations"]) == ("e", "random_search", 4, 3)
    assert library.run(good) == 0
    trials = library.load("results").experiments["e"].trials
    assert [(one["step"], one["action"], one["context"]) for one in plan["first"]] == [
        (trial.number, trial.action, trial.context) for trial in trials
    ]
    assert [one["infeasible"] is not None for one in plan["first"]] == [t.status == "infeasible" for t in trials]


def test_dry_run_indents_long_commands(write: Callable[..., Path], tunegym: Cli) -> None:
    text = GOOD.replace('command = "echo', "command = '''\n  echo one\n  echo").replace('{load}"', "{load}\n  '''")
    done = tunegym("dry-run", write("long.toml", text), "--count", 1)
    assert done.returncode == 0, done.stderr
    trial = done.stdout[done.stdout.index("  trial 1") :].splitlines()
    assert trial[0].endswith("]:")
    assert trial[1] == "    echo one"
    assert trial[2].startswith("    echo value=")


def test_dry_run_of_a_huge_grid(write: Callable[..., Path], tunegym: Cli) -> None:
    text = GOOD.replace("random_search", "grid_search").replace("x = [1, 2, 3]", "x = {low = 1, high = 1e9, step = 1}")
    text = text.replace("agent_steps = 4\n", "").replace("load = [0.1, 0.2]", "load = {low = 1, high = 1e9, step = 1}")
    text = text[: text.index("  [experiments.env_params]")] + text[text.index("  [experiments.metrics]") :]
    path = write("huge.toml", text)
    done = tunegym("dry-run", path)
    assert done.returncode == 0, done.stderr
    assert "1,000,000,000,000,000,000 trials over 1,000,000,000,000,000,000 combinations" in done.stdout
    assert tunegym("dry-run", path, "--json").returncode == 0


# status -----------------------------------------------------------------------------------------------


def test_status_of_every_state(
    write: Callable[..., Path],
    tunegym: Cli,
    start_tunegym: Callable[..., subprocess.Popen[str]],
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    text = GOOD.replace("echo value", "while test {x} -eq 2 -a ! -d {scenario_dir}/go; do sleep 0.02; done; echo value")
    text = text.replace("random_search", "grid_search")
    text = text[: text.index("  [experiments.env_params]")] + text[text.index("  [experiments.metrics]") :]
    text = text.replace("load = [0.1, 0.2]", "load = 0.1")
    second = text[text.index("[[experiments]]") :].replace('"e"', '"f"')
    path = write("states.toml", text + second)

    def states() -> list[str]:
        done = tunegym("status", "results", "--json")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return [one["state"] for one in json.loads(done.stdout)["experiments"]]

    process = start_tunegym("run", path, log=tmp_path / "log.txt")
    wait_until(lambda: list(tmp_path.glob("results/*/*/e/trials/000002/*")), "the second trial")
    assert states() == ["running", "not started"]
    shown = tunegym("status", "results").stdout
    assert "running" in shown
    assert "1/3" in shown
    assert "\x1b" not in shown
    process.terminate()
    assert process.wait(60) == 130
    assert states() == ["interrupted", "not started"]
    (tmp_path / "go").mkdir()
    assert tunegym("resume", "results").returncode == 0
    assert states() == ["finished", "finished"]
    (first, _) = json.loads(tunegym("status", "results", "--json").stdout)["experiments"]
    assert (first["total"], first["done"], first["open"]) == (3, 3, 0)
    assert first["statuses"] == {"measured": 2, "infeasible": 1}
    assert first["best"] == {"step": 2, "reward": 2.0, "action": {"x": 2}, "context": {}}
    assert first["ended"] == "the agent ended"


def test_status_of_a_killed_run_and_of_odd_failure_files(good: Path, tunegym: Cli) -> None:
    assert library.run(good) == 0
    run = find_run(Path("results"))
    lines = (run / "e" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "e" / "journal.jsonl").write_bytes(b"".join(lines[:-1]) + b'{"record": "en')
    for content in (b"", b"\xff\xfe\n", b"2026: experiment e was ended\nmore"):
        (run / "dse_failure.txt").write_bytes(content)
        done = tunegym("status", run)
        assert done.returncode == 0, done.stderr
        assert "interrupted" in done.stdout
        assert "failure: " in done.stdout
    assert "more" not in done.stdout


# list -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Catalog().kinds())
def test_list(kind: str, tunegym: Cli) -> None:
    done = tunegym("list", kind)
    assert done.returncode == 0
    names = Catalog().names(kind)
    assert [line.split()[0] for line in done.stdout.splitlines()] == names
    assert all(len(line.split()) > 3 for line in done.stdout.splitlines()), "something is not described"
    rows = json.loads(tunegym("list", kind, "--json").stdout)
    assert [row["name"] for row in rows] == names
    assert all(":" in row["reference"] for row in rows)


def test_list_of_something_else(tunegym: Cli) -> None:
    done = tunegym("list", "agent")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "agents, workloads, runners, rewards, encodings, pruners" in done.stderr


# init -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["command", "python"])
def test_a_starter_runs_as_it_is(kind: str, tunegym: Cli) -> None:
    done = tunegym("init", "--workload", kind)
    assert done.returncode == 0, done.stderr
    path = Path("scenario.toml")
    assert "tunegym run scenario.toml" in done.stdout
    assert path.read_text().count("#") > 8, "a starter is commented"
    assert tunegym("verify", path).returncode == 0
    assert tunegym("dry-run", path).returncode == 0
    ran = tunegym("run", path)
    assert ran.returncode == 0, ran.stderr
    (results,) = assert_sound("results").values()
    assert {trial.status for trial in results.trials} <= {"measured", "infeasible"}
    assert "best" in tomllib.loads((results.folder / "best.toml").read_text())


def test_init_overwrites_nothing(tunegym: Cli, write: Callable[..., Path]) -> None:
    own = write("workload.py", "mine = True\n")
    done = tunegym("init", "--workload", "python")
    assert done.returncode == 1
    assert "workload.py exists already" in done.stderr
    assert "--force" in done.stderr
    assert own.read_text() == "mine = True\n"
    assert not Path("scenario.toml").exists()
    assert tunegym("init", "--workload", "python", "--force").returncode == 0
    assert "def measure" in own.read_text()


@pytest.mark.parametrize("given", ["new", "new/", "new/scenario.toml", "old"])
def test_init_into_a_folder(given: str, tunegym: Cli) -> None:
    Path("old").mkdir()
    done = tunegym("init", given, "--workload", "python")
    assert done.returncode == 0, done.stderr
    folder = Path(given.partition("/")[0])
    assert sorted(path.name for path in folder.iterdir()) == ["scenario.toml", "workload.py"]
    assert f"tunegym run {folder}/scenario.toml" in done.stdout


def test_init_of_an_unknown_workload(tunegym: Cli) -> None:
    done = tunegym("init", "--workload", "slurm")
    assert done.returncode == 2
    assert "command, python" in done.stderr
    assert list(Path().iterdir()) == []


# the rest ---------------------------------------------------------------------------------------------


def test_version(tunegym: Cli) -> None:
    done = tunegym("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tunegym {library.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["bogus"], ["run"], ["run", "--bogus"], ["status", "a", "b"]])
def test_a_wrong_command_line(arguments: list[str], tunegym: Cli) -> None:
    done = tunegym(*arguments)
    assert done.returncode == 2
    assert "Usage: " in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["run", "dry-run", "list"])
def test_a_reader_that_leaves(command: str, good: Path, command_line: list[str]) -> None:
    """`tunegym run ... | head -1`: no complaint, and the run comes to its end."""
    read, write_end = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*command_line, command, "agents" if command == "list" else str(good)],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(write_end)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    if command == "run":
        assert done.returncode == 0
        assert_sound("results")


def test_a_log_that_is_closed_does_not_end_the_run(good: Path, command_line: list[str]) -> None:
    read, write_end = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*command_line, "run", str(good)], stdout=subprocess.PIPE, stderr=write_end, timeout=60)
    finally:
        os.close(write_end)
    assert done.returncode == 0
    assert b"best settings" in done.stdout
    assert_sound("results")
