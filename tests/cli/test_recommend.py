"""``tunegym recommend`` as a user or a script calls it."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import tunegym as library
from tunegym.tuning.agents import policies
from tunegym.tuning.agents.policies import PolicyChoice, PolicyTable

pytestmark = pytest.mark.slow  # every test starts the command anew

Cli = Callable[..., subprocess.CompletedProcess[str]]

SCENARIO = """
name = "r"
seed = 2
[[experiments]]
name = "e"
workload = "command"
agent = "random_search"
agent_steps = 40
agent_metrics = ["seconds"]
agent_reward_function = "negative"
cache = "off"
  [experiments.cmd_args]
  command = "test {pool.size}{load} != 3high && echo seconds=$(({pool.size} * 2)) # {word} {load}"
  word = "two words"
  pool = { size = [1, 2, 3] }
  load = ["low", "high"]
  [experiments.env_params]
  load = {}
  [experiments.metrics]
  seconds = { regex = 'seconds=([0-9]+)' }
"""


@pytest.fixture
def results(write: Callable[..., Path], tmp_path: Path) -> Path:
    assert library.run(write("r.toml", SCENARIO), output=tmp_path / "out") == 0
    (folder,) = (tmp_path / "out" / "r").iterdir()
    return folder


def test_a_table_and_how_sure_one_can_be(results: Path, tunegym: Cli) -> None:
    done = tunegym("recommend", results, "--context", "load=low")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "e: settings to use at load=low"
    assert any("pool.size" in line and "1" in line for line in lines)
    assert lines[-1].startswith("seconds 2, from ")
    assert done.stderr == ""


def test_json(results: Path, tunegym: Cli) -> None:
    done = tunegym("recommend", results, "--json")
    found = json.loads(done.stdout)
    assert found == library.recommend(results).as_dict()
    assert found["action"] == {"pool.size": 1}
    assert (found["context"], found["source"], found["mean"]) == ({}, "trials", {"seconds": 2.0})
    assert done.stderr == ""


@pytest.mark.parametrize("cut", [False, True])
def test_toml_has_what_best_toml_has(results: Path, tunegym: Cli, cut: bool) -> None:
    best = tomllib.loads((results / "e" / "best.toml").read_text())["best"]
    if cut:  # a killed run has none
        (results / "e" / "best.toml").unlink()
    done = tunegym("recommend", results, "--toml")
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout)["best"] == {**best, "source": "trials"}
    assert best["fixed"]["word"] == "two words"
    found = tomllib.loads(tunegym("recommend", results, "--toml", "--context", 'load="high"').stdout)["best"]
    assert found["context"] == {"load": "high"}
    assert found["settings"] == {"pool": {"size": 1}}


def test_what_speaks_against_it(write: Callable[..., Path], tunegym: Cli) -> None:
    text = SCENARIO.replace("agent_steps = 40", "agent_steps = 1").replace("test {pool.size}{load} != 3high && ", "")
    path = write("once.toml", text)
    assert library.run(path, output="once") == 0
    done = tunegym("recommend", "once")
    assert "warning: it was measured only once" in done.stderr
    (trial,) = library.load("once").experiments["e"].trials
    other = "low" if trial.context["load"] == "high" else "high"
    done = tunegym("recommend", "once", "--context", f"load={other}", "--json")
    assert f'note: load="{other}" was never measured: this is the best over all contexts' in done.stderr
    assert json.loads(done.stdout)["note"].startswith(f'load="{other}" was never measured')


def test_settings_that_also_failed(write: Callable[..., Path], tunegym: Cli) -> None:
    text = SCENARIO.replace("size = [1, 2, 3]", "size = [3, 4]")
    text = text.replace("seconds=$((", "seconds=$((0 * ")
    assert library.run(write("f.toml", text), output="f") == 0
    found = library.recommend("f")
    done = tunegym("recommend", "f")
    assert ("these settings also failed" in done.stderr) == bool(found.failed)
    low = tunegym("recommend", "f", "--context", "load=low")
    assert "failed" not in low.stderr


OBJECTIVES = """
name = "o"
[[experiments]]
name = "e"
workload = "command"
agent = "grid_search"
objectives = [{ metric = "seconds", goal = "min", limit = LIMIT }, { metric = "mb", goal = "min" }]
  [experiments.cmd_args]
  command = "echo seconds=$((10 - {x})) mb={x}"
  x = [1, 2, 3]
  [experiments.metrics]
  seconds = { regex = 'seconds=([0-9]+)' }
  mb = { regex = 'mb=([0-9]+)' }
"""


def test_limits_that_are_exceeded(write: Callable[..., Path], tunegym: Cli) -> None:
    assert library.run(write("o.toml", OBJECTIVES.replace("LIMIT", "5")), output="o") == 0
    done = tunegym("recommend", "o", "--json")
    assert done.returncode == 0
    assert "warning: these settings exceed the objectives' limits" in done.stderr
    assert "note: no measured setting keeps the limits" in done.stderr
    found = json.loads(done.stdout)
    assert found["violation"] == pytest.approx(0.4)
    assert "(seconds is 7, the limit 5)" in found["note"]
    shown = tunegym("compare", "o")
    assert "limits exceeded" in shown.stdout
    assert "keeps the limits" in shown.stderr


def test_one_of_a_pareto_set(write: Callable[..., Path], tunegym: Cli) -> None:
    assert library.run(write("o.toml", OBJECTIVES.replace("LIMIT", "20")), output="o") == 0
    done = tunegym("recommend", "o")
    assert done.returncode == 0
    assert "note: one of 3 settings on the Pareto set, the one with the highest reward: see best.toml" in done.stderr
    assert "limits" not in done.stderr
    shown = tunegym("compare", "o")
    assert ("limits exceeded" in shown.stdout, shown.stderr) == (False, "")


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--context", "laod=low"], 2, "did you mean load?"),
        (["--context", "load=lwo"], 2, "hint: write load=low"),
        (["--context", "load"], 2, "this is not KEY=VALUE"),
        (["--context", "load=low", "--context", "load=high"], 2, "it is given twice"),
        (["--experiment", "f"], 2, "there is no such experiment"),
        (["--toml", "--json"], 2, "not both"),
    ],
)
def test_wrong_questions(results: Path, tunegym: Cli, options: list[str], code: int, told: str) -> None:
    done = tunegym("recommend", results, *options)
    assert done.returncode == code
    assert told in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


def test_nothing_to_recommend(write: Callable[..., Path], tunegym: Cli, tmp_path: Path) -> None:
    text = SCENARIO.replace("test {pool.size}{load} != 3high", "false")
    assert library.run(write("no.toml", text), output="no") == 1
    done = tunegym("recommend", "no")
    assert done.returncode == 1
    assert "no trial was measured" in done.stderr
    assert "hint: " in done.stderr
    assert tunegym("recommend", tmp_path / "missing").returncode == 1


@pytest.fixture
def with_policy(results: Path) -> Callable[..., Path]:
    def save(low: int, trials: int = 40) -> Path:
        choices = tuple(PolicyChoice({"pool.size": low}, 0.5, {"load": load}) for load in ("low", "high"))
        policies.save(results / "e", PolicyTable("contextual_bandit", trials, choices))
        return results

    return save


def test_what_the_policy_chooses(with_policy: Callable[..., Path], tunegym: Cli) -> None:
    folder = with_policy(2, trials=30)
    done = tunegym("recommend", folder, "--context", "load=low")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "e: settings to use at load=low, as its policy chooses them"
    assert lines[-1].startswith("seconds 4, from ")
    assert "note: the policy was saved after 30 of 40 trials; pool.size=1 was measured better there" in done.stderr
    found = tomllib.loads(tunegym("recommend", folder, "--context", "load=low", "--toml").stdout)["best"]
    assert (found["source"], found["settings"], found["fixed"]["word"]) == (
        "policy",
        {"pool": {"size": 2}},
        "two words",
    )
    found = json.loads(tunegym("recommend", folder, "--json").stdout)
    assert found["source"] == "trials"
    assert "so give load too" in found["note"]


def test_what_nobody_measured(with_policy: Callable[..., Path], results: Path, tunegym: Cli) -> None:
    """Of three values, the policy chooses one that no trial there had."""
    folder = with_policy(2)
    journal = results / "e" / "journal.jsonl"
    numbers = {trial.number for trial in library.load(folder).experiments["e"].trials if trial.action["pool.size"] == 2}
    kept = [line for line in journal.read_text().splitlines() if json.loads(line).get("number") not in numbers]
    journal.write_text("".join(f"{line}\n" for line in kept))
    done = tunegym("recommend", folder, "--context", "load=low")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "never measured at load=low"
    assert "warning: these settings were never measured at load=low: measure them before you use them" in done.stderr
    found = tomllib.loads(tunegym("recommend", folder, "--context", "load=low", "--toml").stdout)["best"]
    assert (found["measured"], found["settings"]) == (0, {"pool": {"size": 2}})
    assert not {"reward", "trial", "spread"} & found.keys()
    found = json.loads(tunegym("recommend", folder, "--context", "load=low", "--json").stdout)
    assert (found["measured"], found["mean"], found["spread"]) == (0, {}, {})


def test_a_damaged_policy(results: Path, tunegym: Cli) -> None:
    (results / "e" / "policy").mkdir()
    (results / "e" / "policy" / "policy.json").write_text("{")
    done = tunegym("recommend", results, "--context", "load=low", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["source"] == "trials"
    assert "policy.json is damaged" in done.stderr
    assert "resume the run" in done.stderr
