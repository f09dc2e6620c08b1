"""``init``, ``verify``, ``dry-run``, ``list`` and ``status``, and the command line itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, experiment, live
from tests.soundness import assert_sound

import tunegym as library
from tunegym.app.catalog import Catalog
from tunegym.tuning.reports.results import find_run

Scenario = Callable[..., Path]
DRAWN = {"load": [0.1, 0.2], "command": "echo value={x} {word} {{literal}} {load}", "word": "two words"}
DRAWN_KEYS = {"agent": "random_search", "agent_steps": 4, "constraints": ["x < 3"]}


@pytest.fixture
def drawn(scenario: Scenario) -> Path:
    """Trials under a drawn load, with a constraint."""
    return scenario(args=DRAWN, env_params={"load": {"weights": [0.25, 0.75]}}, **DRAWN_KEYS)


def test_verify_checks_every_file(scenario: Scenario, cli: Cli, tmp_path: Path) -> None:
    scenario(file="good.toml")
    for name in ("b", "a", "deep/c"):
        scenario(file=f"folder/{name}.toml")
    run = "folder/results/s/2026-01-01_00-00-00"
    files = ["folder/notes.txt", "folder/.hidden/d.toml", "folder/deep/.git/e.toml"]  # not looked for
    for name in (*files, *(f"{run}/{file}" for file in ("scenario.toml", "e/best.toml", "e/journal.jsonl"))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    scenario({"name": "e", "workload": "command", "agent_steps": 3, "cmd_args": {"command": "true"}}, file="plain.toml")
    done = cli("verify", "good.toml", "folder", "plain.toml", "good.toml", code=0)
    assert done.stdout.splitlines() == [
        "ok: good.toml (1 experiment)",
        *(f"ok: folder/{name}.toml (1 experiment)" for name in ("a", "b", "deep/c")),
        "ok: plain.toml (1 experiment)",
    ]
    assert done.stderr == (
        "warning: plain.toml: experiment 'e' has no knob: it runs once, and agent_steps is not used\n"
    )
    assert cli("verify", run, "folder/notes.txt").stderr.splitlines()[-1] == "3 of 3 are bad"
    scenario(file="bad.toml", agent_stesp=4)
    (tmp_path / "broken.toml").write_text("name = \n")
    (tmp_path / "empty").mkdir()
    done = cli("verify", "bad.toml", "empty", "broken.toml", "missing.toml", "good.toml")
    assert (done.returncode, done.stdout) == (2, "ok: good.toml (1 experiment)\n")
    for told in ('did you mean "agent_steps"', "empty: no scenario", "broken.toml", "missing.toml"):
        assert told in done.stderr
    assert done.stderr.splitlines()[-1] == "4 of 5 are bad"


def test_dry_run_shows_what_would_run(drawn: Path, cli: Cli) -> None:
    done = cli("dry-run", drawn, "--count", 4, "--slots", 2, code=0)
    lines = done.stdout.splitlines()
    assert lines[0] == "e: random_search, 4 trials over 3 combinations, 2 at a time on local, 1 sample each"
    assert "  x = [1, 2, 3]" in lines
    assert "  load = [0.1, 0.2] with weights [0.25, 0.75], drawn per trial" in lines
    assert sum(line.startswith("  trial ") for line in lines) == 4
    assert any("'two words' {literal} 0." in line for line in lines)
    assert "infeasible" not in done.stdout
    changes = ["--set", "experiments.e.agent=grid_search", "--set", "experiments.e.agent_steps=6"]
    grid = cli("dry-run", drawn, "--count", 6, *changes, code=0)
    assert '    infeasible: constraint "x < 3" (x = 3)' in grid.stdout
    assert not Path("results").exists()


def test_dry_run_as_json_is_what_runs(drawn: Path, cli: Cli) -> None:
    (plan,) = json.loads(cli("dry-run", drawn, "--count", 9, "--json").stdout)["experiments"]
    assert (plan["name"], plan["agent"], plan["trials"], plan["combinations"]) == ("e", "random_search", 4, 3)
    assert library.run(drawn) == 0
    trials = library.load("results").experiments["e"].trials
    assert [(one["step"], one["action"], one["context"]) for one in plan["first"]] == [
        (trial.number, trial.action, trial.context) for trial in trials
    ]
    assert [one["infeasible"] is not None for one in plan["first"]] == [t.status == "infeasible" for t in trials]


def test_dry_run_of_long_commands_and_huge_grids(scenario: Scenario, cli: Cli) -> None:
    done = cli("dry-run", scenario(args={"command": "\n  echo one\n  echo value={x}\n"}), "--count", 1)
    assert done.stdout.splitlines()[-4:-1] == ["  trial 1:", "    echo one", "    echo value=1"]
    huge = {"low": 1, "high": 1e9, "step": 1}
    path = scenario(args={"command": "echo value={x} {y}", "x": huge, "y": huge})
    assert "1,000,000,000,000,000,000 trials over 1,000,000,000,000,000,000 combinations" in cli("dry-run", path).stdout
    assert cli("dry-run", path, "--json").returncode == 0


SERVER = """
class Server:
    def __init__(self, size, limits=None): raise AssertionError("it was started")
    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...
    def close(self): ...
    def apply_env_params(self, params): ...
"""


def test_dry_run_of_a_live_experiment_starts_no_server(
    scenario: Scenario, cli: Cli, write: Callable[..., Path]
) -> None:
    write("my_live.py", SERVER)
    args = {"env_class": "my_live:Server", "size": 3, "limits": {"most": "x"}, "load": [10, 20]}
    params = {"load": {"weights": [0.25, 0.75], "encoding": "minmax"}, "noise": {"draw": "step"}}
    keys = {"server": "process", "step_timeout_s": 2, "record": "every:100", "max_time": "1m", "env_params": params}
    noise = {"low": 0.0, "high": 1.0}
    planned = scenario(live("e", args={**args, "noise": noise}, agent_metrics=["latency_s"], **keys))
    done = cli("dry-run", planned)
    assert done.stdout.splitlines()[:-1] == [
        "e: random_search, 400 steps of one live server",
        "  ends after 1 min 00 s",
        "  server: my_live:Server, in its own process, 2 s to answer, up to 5 restarts in a row",
        "  size = 3",
        '  limits.most = "x"',
        "  load = [10, 20] with weights [0.25, 0.75], drawn per episode, shown to the agent",
        '  noise = {low = 0.0, high = 1.0, dtype = "float"}, drawn per step',
        "  reward: the server's own; latency_s of its info are recorded",
        '  record = "every:100"',
    ]
    (plan,) = json.loads(cli("dry-run", planned, "--json", "--slots", 2).stdout)["experiments"]
    assert (plan["trials"], plan["combinations"], plan["first"]) == (400, None, [])
    assert plan["live"]["arguments"] == {"size": 3, "limits": {"most": "x"}}
    assert plan["live"]["env_params"]["noise"]["draw"] == "step"
    bad = cli("dry-run", planned, "--set", "experiments.e.cmd_args.sise=3")
    assert (bad.returncode, "Server() doesn't take this argument" in bad.stderr) == (2, True)
    for change, expected in {
        "server=tcp://a:7000": "at tcp://a:7000, 2 s to answer, up to 5 restarts in a row",
        "server_restarts=1": "in its own process, 2 s to answer, up to 1 restart in a row",
        "server_restarts=0": "in its own process, 2 s to answer, never restarted",
        "agent_reward_function=negative": "  reward: negative of latency_s in the server's info",
    }.items():
        shown = cli("dry-run", planned, "--set", f"experiments.e.{change}", "--slots", 3).stdout
        assert expected in shown
        assert "400 steps of 3 live servers" in shown


def test_status_of_every_state_and_of_odd_failure_files(
    scenario: Scenario, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = experiment(constraints=["x < 3"])
    assert library.run(scenario(one, {**one, "name": "f"})) == 0
    run = find_run(Path("results"))

    def told() -> list[dict[str, Any]]:
        return json.loads(cli("status", run, "--json").stdout)["experiments"]

    first, second = told()
    assert (first["state"], second["state"]) == ("finished", "finished")
    assert (first["total"], first["done"], first["open"], first["ended"]) == (3, 3, 0, "every setting was tried")
    assert first["statuses"] == {"measured": 2, "infeasible": 1}
    best = first["best"]
    assert (best["trial"], best["reward"], best["action"], best["confirmed"]) == (2, 2.0, {"x": 2}, False)
    assert best["answer"].startswith("Use x=2: value 2")
    shutil.rmtree(run / "f")
    lines = (run / "e" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "e" / "journal.jsonl").write_bytes(b"".join(lines[:-1]) + b'{"record": "en')
    assert [one["state"] for one in told()] == ["interrupted", "not started"]
    for content in (b"", b"\xff\xfe\n", b"2026: experiment e was ended\nmore"):
        (run / "dse_failure.txt").write_bytes(content)
        done = cli("status", run, code=0)
        assert ("interrupted" in done.stdout, "3/3" in done.stdout, "\x1b" in done.stdout) == (True, True, False)
        assert "failure: " in done.stdout
    assert "\nmore" not in done.stdout
    monkeypatch.setattr("tunegym.tuning.reports.results.living_writer", lambda folder: 1)
    assert [one["state"] for one in told()] == ["running", "not started"]


@pytest.mark.parametrize("kind", Catalog().kinds())
def test_list(kind: str, cli: Cli) -> None:
    lines = cli("list", kind).stdout.splitlines()
    names = Catalog().names(kind)
    assert [line.split()[0] for line in lines] == names
    assert all(len(line.split()) > 3 for line in lines), "each has a description"
    rows = json.loads(cli("list", kind, "--json").stdout)
    assert [row["name"] for row in rows] == names
    assert all(":" in row["reference"] for row in rows)


def test_unknown_choices(cli: Cli) -> None:
    done = cli("list", "agent")
    assert (done.returncode, done.stdout) == (2, "")
    assert "agents, workloads, runners, rewards, encodings, pruners" in done.stderr
    done = cli("init", "--workload", "slurm")
    assert (done.returncode, list(Path().iterdir())) == (2, [])
    assert "command, python" in done.stderr


@pytest.mark.parametrize("kind", ["command", "python", "live"])
def test_a_starter_runs_as_it_is(kind: str, cli: Cli) -> None:
    done = cli("init", "--workload", kind, code=0)
    assert "tunegym run scenario.toml" in done.stdout
    assert Path("scenario.toml").read_text().count("#") > 8, "a starter is commented"
    assert cli("verify", "scenario.toml").returncode == 0
    cli("dry-run", "scenario.toml", code=0)
    assert cli("run", "scenario.toml").returncode == 0
    (results,) = assert_sound("results").values()
    if kind == "live":
        assert results.steps == 2000
        return
    assert {trial.status for trial in results.trials} <= {"measured", "infeasible"}
    assert "best" in tomllib.loads((results.folder / "best.toml").read_text())


def test_init_into_folders_overwrites_nothing(cli: Cli, write: Callable[..., Path]) -> None:
    own = write("workload.py", "mine = True\n")
    done = cli("init", "--workload", "python", code=1)
    assert "workload.py exists already\nhint: choose another path, or use --force" in done.stderr
    assert own.read_text() == "mine = True\n"
    assert not Path("scenario.toml").exists()
    assert cli("init", "--workload", "python", "--force").returncode == 0
    assert "def measure" in own.read_text()
    for _ in range(2):  # an unchanged starter is no obstacle
        assert cli("init", "mine.toml").returncode == 0
    done = cli("init", "my", "scenario")
    assert (done.returncode, "hint: write tunegym init 'my scenario/scenario.toml'\n" in done.stderr) == (2, True)
    assert cli("init", "any.name").returncode == cli("verify", "any.name").returncode == 0
    assert sorted(path.name for path in Path().iterdir()) == ["any.name", "mine.toml", "scenario.toml", "workload.py"]
    for given in ("new", "other/", "third/scenario.toml", "v1.2/"):
        folder = Path(given.partition("/")[0])
        assert f"tunegym run {folder}/scenario.toml" in cli("init", given, "--workload", "python").stdout
        assert sorted(path.name for path in folder.iterdir()) == ["scenario.toml", "workload.py"]


@pytest.mark.parametrize("command", ["--help", "status -h", "list agents", "list agents --json", "run scenario.toml"])
def test_stdout_that_can_not_be_written(command: str, scenario: Scenario, command_line: list[str]) -> None:
    scenario()
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command_line, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "error: stdout can't be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


BROKEN = {
    "absent": ("import no_such_module", "No module named 'no_such_module'"),
    "keyed": ("{}['key']", "KeyError: 'key'"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "on_demand": ("def __getattr__(name): raise KeyError(name)", "KeyError: '"),
}


@pytest.mark.parametrize("module", BROKEN)
def test_a_broken_plugin_is_named(
    module: str, scenario: Scenario, cli: Cli, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its package and its exception, and it hides no other."""
    code, error = BROKEN[module]
    write(f"site/{module}.py", code)
    write("site/fancy_agents-1.0.dist-info/METADATA", "Name: fancy-agents\nVersion: 1.0\n")
    write("site/fancy_agents-1.0.dist-info/entry_points.txt", f"[tunegym.agents]\nfancy = {module}:Agent\n")
    monkeypatch.syspath_prepend("site")
    told = "the plugin 'fancy' of the package fancy-agents can't be used: "
    done = cli("verify", scenario(agent="fancy"))
    assert (done.returncode, told in done.stderr, error in done.stderr) == (2, True, True), done.stderr
    assert "hint: update or uninstall fancy-agents" in done.stderr
    done = cli("list", "agents", code=0)
    assert all(text in done.stdout for text in (told, error, "grid_search"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "command"), [("stdout", "run"), ("stdout", "dry-run"), ("stdout", "list"), ("stderr", "run")]
)
def test_a_reader_that_leaves(closed: str, command: str, scenario: Scenario, command_line: list[str]) -> None:
    """`tunegym run ... | head -1`: no complaint, and the run comes to its end."""
    path = scenario()
    read, write_end = os.pipe()
    os.close(read)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: write_end}
    try:
        arguments = [*command_line, command, "agents" if command == "list" else str(path)]
        done = subprocess.run(arguments, text=True, timeout=60, check=False, **streams)
    finally:
        os.close(write_end)
    told = (done.stdout or "") + (done.stderr or "")
    assert "Traceback" not in told
    assert "BrokenPipe" not in told
    if command == "run":
        assert done.returncode == 0
        assert_sound("results")


@pytest.mark.parametrize("command", ["", "bake", "run", "plane bake"])
def test_a_missing_or_unknown_command_shows_the_usage(command: str, cli: Cli) -> None:
    assert "Usage: " in cli(*command.split(), code=2).stderr
