"""``recommend``, ``report`` and ``compare``, and live experiments in every command."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.cli.conftest import Cli, experiment, live
from tests.tuning.reports.live_journals import write_killed, write_live

import tunegym as library
from tunegym.tuning.agents import policies
from tunegym.tuning.agents.policies import PolicyChoice, PolicyTable
from tunegym.tuning.reports.results import find_run, load

Scenario = Callable[..., Path]

# which way is better --------------------------------------------------------------------------------------


def test_every_command_says_which_way_is_better(scenario: Scenario, cli: Cli) -> None:
    """Less is better by a goal, and without one for a built-in cost."""
    keys: dict[str, Any] = {"agent_reward_function": None}
    goal = experiment("goal", **keys, metrics={"value": {"regex": "value=([0-9.]+)", "goal": "min"}})
    cost = experiment("cost", **keys, agent_metrics=["duration_s", "value"])
    own = experiment("own", **keys | {"agent_reward_function": "inverse"})
    path, goals = scenario(goal, cost, own), [{"value": "min"}, {"duration_s": "min"}, {"value": "min"}]
    planned = [line for line in cli("dry-run", path).stdout.splitlines() if line.startswith(("  goal:", "results"))]
    assert planned == [
        *("  goal: value (min)", "  goal: duration_s (min)", "  goal: reward (max), which is inverse of value (min)"),
        f"results would go to {Path('results/s').absolute()}/<time>",
    ]
    ran = cli("run", path)
    assert "best value (min) 1 (x=1)" in ran.stderr
    assert "best duration_s (min) " in ran.stderr
    columns = [line for line in ran.stdout.splitlines() if "settings" in line and "┃" in line]
    assert [line.split("┃")[3].strip() for line in columns] == ["value (min)", "duration_s (min)", "value (min)"]
    assert "value (min) 1 (x=1)" in cli("status", "results").stdout
    assert "value (min) 1" in cli("compare", "results").stdout
    assert "x=1: value 1" in cli("recommend", "results", "--experiment", "goal").stdout
    for command, source in (("dry-run", path), ("status", "results"), ("report", "results"), ("compare", "results")):
        told = json.loads(cli(command, source, "--json").stdout)
        assert [one["goals"] for one in told["experiments" if command != "compare" else "entries"]] == goals
    told = json.loads(cli("recommend", "results", "--experiment", "goal", "--json").stdout)
    assert (told["action"], told["answer"]["goal"]) == ({"x": 1}, "min")
    trials = load("results").experiments["cost"].trials
    assert [trial.reward for trial in trials] == [-trial.metrics["duration_s"] for trial in trials]


# recommend ------------------------------------------------------------------------------------------------

COMMAND = "test {pool.size}{load} != 3high && echo value=$(({pool.size} * 2)) # {word} {load}"


def drawn(command: str = COMMAND, steps: int = 40) -> dict[str, Any]:
    """Smaller is better; the pool of 3 fails under a high load."""
    keys = {"agent": "random_search", "agent_steps": steps, "cache": "off", "agent_reward_function": "negative"}
    args = {"word": "two words", "pool": {"size": [1, 2, 3]}, "load": ["low", "high"]}
    return experiment(**keys, env_params={"load": {}}, cmd_args={"command": command, **args})


@pytest.fixture
def results(scenario: Scenario) -> Path:
    assert library.run(scenario(drawn(), seed=2), output="out") == 0
    return load("out").folder


def save_policy(results: Path, size: int, trials: int = 40) -> None:
    choices = tuple(PolicyChoice({"pool.size": size}, 0.5, {"load": load}) for load in ("low", "high"))
    policies.save(results / "e", PolicyTable("ppo", trials, choices))


def test_recommend_settings_and_how_sure_they_are(results: Path, cli: Cli) -> None:
    done = cli("recommend", results, "--context", "load=low")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("e: At load=low, use pool.size=1: value 2")
    assert "not confirmed" in lines[0]
    assert any("pool.size" in line and "1" in line for line in lines[1:])
    assert [line.count("│") for line in lines if "│ pool.size" in line] == [3], "there is no baseline"
    found = json.loads(cli("recommend", results, "--json").stdout)
    answer = found.pop("answer")
    assert (found["sentence"], found["certainty"]) == (answer["overall"]["sentence"], answer["overall"]["certainty"])
    assert found == json.loads(json.dumps(library.recommend(results).as_dict()))
    assert (found["action"], found["context"], found["policy"]) == ({"pool.size": 1}, {}, False)


def confirmed(**more: Any) -> dict[str, Any]:
    """An experiment that starts from a pool of 2."""
    return drawn("echo value=$(({pool.size} * 2)) # {word} {load}") | {"baseline": {"pool": {"size": 2}}} | more


def test_a_confirmed_answer_is_the_same_in_every_command(scenario: Scenario, cli: Cli) -> None:
    one = confirmed(confirm="auto")
    del one["env_params"]
    one["cmd_args"]["load"] = "low"
    ran = cli("run", scenario(one, seed=2), "--output", "out")
    run = find_run(Path("out"))
    best = tomllib.loads((run / "e" / "best.toml").read_text())
    sentence, gain = best["best"]["answer"], best["best"]["gain"]
    assert (best["best"]["confirmed"], best["best"]["certainty"]) == (True, "sure")
    assert (gain["mean"], gain["low"], gain["is_ratio"]) == (pytest.approx(2), pytest.approx(2), True)
    assert best["best"]["changes"] == {"pool": {"size": 1}}
    assert best["baseline"]["settings"] == {"pool": {"size": 2}}
    assert "best of the search value (min) 2 (pool.size=1)  phase confirm" in ran.stderr
    for command in ("status", "recommend"):
        assert f"e: {sentence}" in cli(command, run).stdout, command
    assert f"e: {sentence}" in ran.stdout
    assert all("x2" in shown for shown in (ran.stdout, cli("compare", run).stdout))
    told = json.loads(cli("recommend", run, "--json").stdout)
    assert (told["sentence"], told["gain"], told["answer"]["baseline"]) == (sentence, gain, {"pool.size": 2})
    (facts,) = json.loads(cli("report", run, "--json").stdout)["experiments"]
    assert (facts["answer"], facts["best"]["gain"]) == (told["answer"], gain)
    assert set(facts["trials"]["phases"]) <= {"baseline", "search", "repeat", "confirm"}
    assert tomllib.loads(cli("recommend", run, "--toml").stdout)["best"] == best["best"]


def test_recommend_names_the_contexts_that_differ(scenario: Scenario, cli: Cli) -> None:
    """Each with its own sentence; the table shows what every knob is today."""
    command = "echo value=$(( {pool.size} * {pool.size} {load} 10 * {pool.size} )) # {word}"
    one = confirmed(confirm="auto", agent_steps=60)
    one["cmd_args"] |= {"command": command, "load": ["+", "-"]}
    assert library.run(scenario(one, seed=2), output="out") == 0
    answer = library.load("out").experiments["e"].answer  # type: ignore[attr-defined]
    sentences = {verdict.sentence for verdict in answer.per_context if verdict.chosen != answer.overall.chosen}
    assert {verdict.chosen.action["pool.size"] for verdict in answer.per_context} == {1, 3}
    shown = cli("recommend", "out").stdout
    assert any(sentence in shown for sentence in sentences)
    assert "today" in shown


@pytest.mark.parametrize("cut", [False, True])
def test_recommend_prints_the_table_of_best_toml(results: Path, cli: Cli, cut: bool) -> None:
    best = tomllib.loads((results / "e" / "best.toml").read_text())["best"]
    if cut:  # a killed run has none
        (results / "e" / "best.toml").unlink()
    assert tomllib.loads(cli("recommend", results, "--toml").stdout)["best"] == best
    assert best["fixed"]["word"] == "two words"
    found = tomllib.loads(cli("recommend", results, "--toml", "--context", 'load="high"').stdout)["best"]
    assert (found["context"], found["settings"]) == ({"load": "high"}, {"pool": {"size": 1}})


def test_recommend_says_when_there_is_too_little(scenario: Scenario, cli: Cli) -> None:
    one = drawn(COMMAND.partition("&& ")[2], steps=1)
    assert library.run(scenario(one), output="single") == 0
    assert "othing can be recommended: 1 trial gave 1 measurement" in cli("recommend", "single").stderr
    failing = drawn("test {load} = low && echo value={pool.size} # {word}")
    assert library.run(scenario(failing, seed=2), output="f") == 0
    refused = cli("recommend", "f")
    assert (refused.returncode, "hint: name a context" in refused.stderr) == (1, True)
    assert cli("recommend", "f", "--context", "load=low", code=0).stdout.startswith("e: At load=low, use pool.size=1")


def test_recommend_under_limits(scenario: Scenario, cli: Cli) -> None:
    goals = [{"metric": "value", "goal": "min", "limit": 5}, {"metric": "mb", "goal": "min"}]
    metrics = {name: {"regex": f"{name}=([0-9]+)"} for name in ("value", "mb")}
    args = {"command": "echo value=$((10 - {x})) mb={x}"}
    path = scenario(args=args, agent_metrics=None, objectives=goals, metrics=metrics)
    assert library.run(path, output="o") == 0
    done, shown = cli("recommend", "o", "--json"), cli("compare", "o")
    assert "note: it exceeds the limits" in done.stderr
    assert json.loads(done.stdout)["violation"] == pytest.approx(0.4)
    assert ("limits exceeded" in shown.stdout, "keeps the limits" in shown.stderr) == (True, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--context", "laod=low"], 'did you mean "load"?'),
        (["--context", "load=lwo"], "hint: write load=low"),
        (["--context", "load"], "this is not KEY=VALUE"),
        (["--context", "load=low", "--context", "load=high"], "load is given twice"),
        (["--context", "load=[1"], "hint: "),
        (["--experiment", "f"], "there is no such experiment"),
        (["--toml", "--json"], "not both"),
    ],
)
def test_recommend_refuses_wrong_questions(results: Path, cli: Cli, options: list[str], told: str) -> None:
    done = cli("recommend", results, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "hint: " in done.stderr


def test_recommend_without_a_measurement(scenario: Scenario, cli: Cli) -> None:
    assert library.run(scenario(args={"command": "false {x}"}), output="no") == 1
    done = cli("recommend", "no")
    assert (done.returncode, "gave 0 measurements" in done.stderr, "hint: " in done.stderr) == (1, True, True)
    assert cli("recommend", "missing").returncode == 1


def test_recommend_beside_a_policy(results: Path, cli: Cli) -> None:
    save_policy(results, 2, trials=30)
    found = json.loads(cli("recommend", results, "--context", "load=low", "--json").stdout)
    assert (found["policy"], found["action"]) == (True, {"pool.size": 2})
    (results / "e" / "policy" / "policy.json").write_text("{")
    done = cli("recommend", results, "--context", "load=low", "--json", code=0)
    assert json.loads(done.stdout)["policy"] is False
    assert "policy.json is damaged" in done.stderr
    assert "resume the run" in done.stderr


# report and compare ---------------------------------------------------------------------------------------


@pytest.fixture
def run(scenario: Scenario) -> Path:
    """A finished run."""
    assert library.run(scenario(), output="one") == 0
    return load("one").folder


def test_report(run: Path, cli: Cli) -> None:
    (run / "report.html").unlink()
    done = cli("report", "one")
    assert (done.returncode, done.stderr, Path(done.stdout.strip())) == (0, f"run: {run}\n", run / "report.html")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    done = cli("report", run, "--json")
    told = json.loads(done.stdout)
    assert (done.stderr, told["scenario"], told["failure"]) == ("", "s", None)
    (one,) = told["experiments"]
    assert "page" not in one
    assert one["best"]["action"] == {"x": 3}
    assert one["trials"]["statuses"] == {"measured": 3}
    assert one.keys() >= {"state", "agent", "reasons", "per_context", "pareto", "importance", "time"}


def test_report_that_cannot_be_written(run: Path, cli: Cli) -> None:
    (run / "report.html").unlink()
    (run / "report.html" / "something").mkdir(parents=True)  # stands in the way, for root as well
    done = cli("report", run)
    assert (done.returncode, done.stdout) == (1, "")
    assert "can't be written" in done.stderr
    assert "hint: " in done.stderr
    done = cli("report", run, "--json")
    assert (done.returncode, "warning: " in done.stderr) == (0, True)
    assert json.loads(done.stdout)["experiments"][0]["name"] == "e"


@pytest.mark.slow
def test_report_opens_a_browser_or_says_that_there_is_none(run: Path, tunegym: Cli, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    assert tunegym("report", run, "--open", env={**os.environ, "BROWSER": str(browser)}).returncode == 0
    assert (tmp_path / "opened").read_text().strip() == (run / "report.html").absolute().as_uri()
    bare = {key: value for key, value in os.environ.items() if key not in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")}
    done = tunegym("report", run, "--open", env={**bare, "PATH": str(tmp_path / "nothing")})
    assert (done.returncode, "no browser was found" in done.stderr) == (0, True)


def test_compare_runs_with_and_without_contexts(results: Path, cli: Cli, scenario: Scenario) -> None:
    assert library.run(scenario(agent="random_search", agent_steps=3), output="plain") == 0
    assert cli("compare", results, "plain").returncode == 0


def test_compare_runs_whose_contexts_became_a_range(cli: Cli, scenario: Scenario) -> None:
    for name, values in (("one", ["low", "high"]), ("two", {"low": 0.1, "high": 1.0})):
        args = {"command": "echo value={x} load={load}", "load": values}
        path = scenario(args=args, env_params={"load": {}}, agent="random_search", agent_steps=4)
        assert library.run(path, output=name) == 0
    done = cli("compare", "one", "two")
    assert done.returncode == 0
    assert "warning: e: the env_params" in done.stderr


def test_compare(run: Path, cli: Cli, scenario: Scenario) -> None:
    assert library.run(scenario(args={"x": [1, 5]}), output="two") == 0
    done = cli("compare", "one", "two")
    assert "warning: e: the knobs differ" in done.stderr
    assert "x=5" in done.stdout
    assert done.stdout.splitlines()[-1] == "page: compare.html"
    assert Path("compare.html").read_text().startswith("<!doctype html>")
    told = json.loads(cli("compare", "one", "two", "--json", "--output", "elsewhere.html").stdout)
    assert [entry["best"]["reward"] for entry in told["entries"]] == [3.0, 5.0]
    assert len({entry["run"] for entry in told["entries"]}) == 2
    assert (bool(told["warnings"]), Path("elsewhere.html").exists()) == (True, True)
    for arguments in (("one", "missing"), ("one", "one", "--output", "missing/page.html")):
        done = cli("compare", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert "error: " in done.stderr
        assert "hint: " in done.stderr


def test_the_newest_run_without_a_folder(scenario: Scenario, cli: Cli) -> None:
    """Every command takes the newest, says so, and ``list runs`` shows all; a broken one hides no other."""
    for command in ("status", "report", "recommend", "compare", "resume"):
        done = cli(command)
        assert (done.returncode, "results is not a folder" in done.stderr, "hint: " in done.stderr) == (1, True, True)
    for agent_steps in (1, 2, 3):
        assert library.run(scenario(agent="random_search", agent_steps=agent_steps, cache="off")) == 0
    first, second, third = (find_run(path) for path in sorted(Path("results/s").iterdir(), key=os.path.getctime))
    for command in ("status", "report", "recommend", "resume"):
        done = cli(command)
        assert (done.returncode, done.stderr.splitlines()[0]) == (0, f"run: {third}"), command
    assert "run: " not in cli("status", third).stderr + cli("status", third / "e").stderr
    done = cli("compare", "--json")
    assert done.stderr.startswith(f"runs: {second}, {third}\n")
    assert [entry["trials"] for entry in json.loads(done.stdout)["entries"]] == [2, 3]
    assert library.load().folder == library.load("results/s").folder == third
    assert library.recommend().as_dict().items() <= json.loads(cli("recommend", "--json").stdout).items()
    (second / "e" / "journal.jsonl").write_text((second / "e" / "journal.jsonl").read_text().rpartition('{"rec')[0])
    (first / "scenario.toml").write_text("scenario_dir = ")
    rows = json.loads(cli("list", "runs", "--json").stdout)
    assert [(one["state"], one["trials"], one["path"]) for one in rows[1:]] == [
        ("interrupted", 2, str(second)),
        ("finished", 3, str(third)),
    ]
    assert (rows[0]["state"], rows[2]["scenario"], rows[2]["started"][:10]) == ("unreadable", "s", third.name[:10])
    assert str(third) in cli("list", "runs", "results/s").stdout
    assert cli("list", "agents", "results").returncode == 2


@pytest.mark.parametrize("one", [experiment(), live("e", agent_steps=20)], ids=["trials", "live"])
def test_a_damaged_line_is_named_and_the_rest_is_shown(
    one: dict[str, Any], scenario: Scenario, cli: Cli, tunegym: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever line it is. Only a resume refuses."""
    assert library.run(scenario(one), output="out") == 0
    run = find_run(Path("out"))
    journal = run / "e" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for at in range(len(lines) - 1):  # a last line that is no record is a torn one
        journal.write_bytes(b"".join([*lines[:at], b'{"record": "op\n', *lines[at + 1 :]]))
        told = f"/e/journal.jsonl: line {at + 1} is damaged: it is not a record"
        for command in ("status", "report", "recommend"):
            caplog.clear()
            done = cli(command, run)
            refused = command == "recommend" and (one["workload"] == "live" or not at)  # without settings or knobs
            assert (done.returncode, told in caplog.text) == (int(refused), True), (command, at, done.stderr)
        assert told in (run / "report.html").read_text()
        assert told in json.loads(cli("status", run, "--json").stdout)["experiments"][0]["damage"][0]
        assert len(library.load(run).experiments["e"].to_pandas()) <= 60
        refusal = cli("resume", run, "--agent-steps", 100)
        assert (refusal.returncode, told in refusal.stderr) == (1, True)
    done = tunegym("status", run)
    assert (done.returncode, f"warning: {run}{told}" in done.stderr, "finished" in done.stdout) == (0, True, True)


@pytest.mark.parametrize("one", [experiment(), live("e", agent_steps=60)], ids=["trials", "live"])
def test_a_journal_of_garbage_hides_no_other(
    one: dict[str, Any], scenario: Scenario, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    assert library.run(scenario(one, experiment("other")), output="out") == 0
    run = find_run(Path("out"))
    (run / "e" / "journal.jsonl").write_bytes(b"\xff\n\xfe\n")
    for command in (("status",), ("report",), ("recommend", "--experiment", "other")):
        caplog.clear()
        assert cli(command[0], run, *command[1:]).returncode == 0
        assert ("/e/journal.jsonl: line 1 is damaged" in caplog.text) == (command[0] != "recommend")
    told = json.loads(cli("status", run, "--json").stdout)["experiments"]
    assert {row["name"]: row["state"] for row in told} == {"e": "unreadable", "other": "finished"}
    assert json.loads(cli("list", "runs", "out", "--json").stdout)[0]["state"] == "unreadable"


# live experiments -----------------------------------------------------------------------------------------


def test_a_live_run_in_every_command(scenario: Scenario, cli: Cli) -> None:
    args = {**live()["cmd_args"], "gravity": [9.8, 20.0]}
    done = cli("run", scenario(live(args=args, env_params={"gravity": {}})), "--output", "runs")
    assert done.returncode == 0, done.stderr
    line = r"pole  400/400 steps  .* steps/s  episodes \d+  return [\d.]+ \(last \d+\)  failed 0  took"
    assert re.search(line, done.stderr)
    assert re.search(r"pole: 400 steps, \d+ episodes, mean return [\d.]+ in the last \d+\n", done.stdout)
    run = find_run(Path("runs"))
    assert not (run / "pole" / "best.toml").exists()
    status = cli("status", run).stdout
    assert ("mean return" in status, "400/400" in status) == (True, True)
    (told,) = json.loads(cli("status", run, "--json").stdout)["experiments"]
    assert (told["state"], told["done"], told["best"], told["live"]["unrecorded"]) == ("finished", 400, None, 0)
    assert told["live"]["mean_return"] > 5
    (facts,) = json.loads(cli("report", run, "--json").stdout)["experiments"]
    assert facts["episodes"]["mean_return"] == told["live"]["mean_return"]
    assert {one["group"] for one in facts["per_context"]} == {"gravity=9.8", "gravity=20.0"}
    for more in ((), ("--json",), ("--toml",)):
        refused = cli("recommend", run, *more)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "error: pole is a live experiment: it has no settings to recommend" in refused.stderr
        assert "hint: " in refused.stderr
    assert "mean return" in cli("compare", run, run).stdout
    entries = json.loads(cli("compare", run, "--json").stdout)["entries"]
    assert entries[0]["live"]["mean_return"] == told["live"]["mean_return"]
    results: Any = library.load(run).experiments["pole"]
    frame = pd.read_csv(run / "pole" / "trajectory.csv")
    assert results.to_pandas()["step"].tolist() == frame["step"].tolist() == list(range(1, 401))
    assert len(pd.read_csv(run / "pole" / "episodes.csv")) == len(results.episodes)
    warm = {"agent": "optuna", "agent_steps": 2, "agent_config": {"warm_start": "runs"}}
    refused = cli("run", scenario(experiment("pole", **warm)), "--output", "other")
    assert (refused.returncode, "has no trials to start from" in refused.stderr) == (1, True)


def test_odd_live_runs_are_shown(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns whose sum has no number, failed steps, and a driver that was killed."""

    def told(*command: str) -> dict[str, Any]:
        return json.loads(cli(*command, "--json").stdout)["experiments"][0]

    write_live(tmp_path / "steep", [{"length": 1, "reward": -1.7e308}] * 15)
    assert "-1.7e308" in cli("status", "steep").stdout
    assert "-1.7e308" in cli("compare", "steep", "steep").stdout
    assert told("report", "steep")["episodes"]["mean_return"] == pytest.approx(-1.7e308)
    write_live(tmp_path / "flaky", [{"length": 3, "failing": 1}])
    assert told("report", "flaky")["steps"]["statuses"] == {"measured": 2, "failed": 1}
    assert told("report", "flaky")["reasons"] == [{"status": "failed", "reason": "it broke", "count": 1}]
    write_killed(tmp_path / "cut", 3, reserved=5)
    shown = cli("status", "cut").stdout
    assert "e: it was cut off: up to 2 steps may have been taken and are not on record" in shown
    assert "a resume counts numbers 4 to 5 as lost" in shown
    cut = told("status", "cut")
    assert (cut["state"], cut["done"], cut["live"]["unrecorded"]) == ("interrupted", 3, 2)
    assert told("report", "cut")["steps"]["unrecorded"] == 2
    monkeypatch.setattr("tunegym.tuning.reports.results.living_writer", lambda folder: 1)
    assert told("status", "cut")["state"] == "running"
    assert "not on record" not in cli("status", "cut").stdout
