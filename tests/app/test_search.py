"""Searching with Optuna's samplers through whole runs: killed, warm-started, with several objectives."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.soundness import assert_sound

import tunegym
from tunegym.core.errors import ConfigError
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader

pytestmark = pytest.mark.slow  # whole searches

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

SLOW_BOWL = """
import time
def value(x, y, mode):
    time.sleep(0.05)
    if mode == "broken" and x > 0:
        raise ValueError("crashed")
    return -(x - 0.7) ** 2 - (y - 20) ** 2 / 400 - (mode == "slow")
"""

KILLED = """
name = "killed"
seed = 5
[[experiments]]
name = "e"
workload = "python"
agent = "optuna"
agent_steps = 40
agent_metrics = ["value"]
constraints = ["y != 3"]
  [experiments.cmd_args]
  callable = "work:value"
  x = {{ low = -2.0, high = 2.0, dtype = "float" }}
  y = {{ low = 1, high = 60, dtype = "int", log = true }}
  mode = ["fast", "slow", "broken"]
  [experiments.agent_config]
  sampler = "{sampler}"
  {more}
"""


def actions(folder: Path) -> dict[int, dict[str, Any]]:
    (results,) = assert_sound(find_run(folder)).values()
    return {trial.number: dict(trial.action) for trial in results.trials}


@pytest.mark.invariant
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii", "qmc", "random"])
def test_killed_and_resumed_it_proposes_what_the_uninterrupted_run_would(
    sampler: str, tmp_path: Path, write: Any, tunegym: Cli, start_tunegym: Start, wait_until: Callable[..., None]
) -> None:
    write("work.py", SLOW_BOWL)
    more = "population = 6" if sampler in ("nsgaii", "cmaes") else ""
    scenario = write("scenario.toml", KILLED.format(sampler=sampler, more=more))
    whole = tunegym("run", scenario, "--output", "whole")
    assert whole.returncode == 0, whole.stderr
    log = tmp_path / "log.txt"
    process = start_tunegym("run", scenario, "--output", "killed", log=log)
    for count in (8, 22):
        wait_until(lambda count=count: closed(tmp_path / "killed") >= count, f"{count} trials, {log.read_text()}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert closed(tmp_path / "killed") < 40
        process = start_tunegym("resume", tmp_path / "killed", log=log)
    assert process.wait(120) == 0, log.read_text()
    assert actions(tmp_path / "killed") == actions(tmp_path / "whole")


def closed(folder: Path) -> int:
    found = list(folder.glob(f"*/*/e/{reader.JOURNAL}"))
    return reader.scan(found[0]).closed if found else 0


# several objectives -----------------------------------------------------------------------------------

SCHAFFER = "def f(x, y):\n    return {'a': x * x + y * y, 'b': (x - 2) ** 2 + y * y}\n"
"""The front is y = 0 and x from 0 to 2: sqrt(b) = 2 - sqrt(a)."""


def search(folder: Path, objectives: list[dict[str, Any]], sampler: str, steps: int, **more: Any) -> TrialResults:
    (folder / "known_front.py").write_text(SCHAFFER)
    experiment = {
        "name": "e",
        "workload": "python",
        "agent": "optuna",
        "agent_steps": steps,
        "isolate": False,
        "objectives": objectives,
        "cmd_args": {
            "callable": "known_front:f",
            "x": {"low": -4.0, "high": 4.0, "dtype": "float"},
            "y": {"low": -4.0, "high": 4.0, "dtype": "float"},
        },
        "agent_config": {"sampler": sampler, **more},
    }
    document = {"name": "front", "seed": 2, "scenario_dir": str(folder), "experiments": [experiment]}
    assert tunegym.run(document, output=folder / "results") == 0
    return tunegym.load(folder / "results").experiments["e"]


@pytest.mark.parametrize(("sampler", "steps"), [("tpe", 250), ("nsgaii", 900)])
def test_the_front_is_right_where_it_is_known(tmp_path: Path, sampler: str, steps: int) -> None:
    """Two objectives and a limit: everything in the set keeps the limit, is undominated, and lies by the true front."""
    limit = 1.0
    objectives = [{"metric": "a", "goal": "min", "limit": limit}, {"metric": "b", "goal": "min"}]
    results = search(tmp_path, objectives, sampler, steps, **({"population": 30} if sampler == "nsgaii" else {}))
    found = [setting.metrics() for setting in results.pareto]
    assert len(found) >= 10
    assert all(metrics["a"] <= limit for metrics in found)
    # Of all measured trials that keep the limit, exactly these are dominated by none.
    kept = {(t.metrics["a"], t.metrics["b"]) for t in results.trials if t.metrics["a"] <= limit}
    best = {p for p in kept if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in kept)}
    assert {(metrics["a"], metrics["b"]) for metrics in found} == best
    # And they are where the front is: along it, and not beside it.
    beside = sorted(metrics["b"] ** 0.5 - (2 - metrics["a"] ** 0.5) for metrics in found)
    assert beside[0] >= -1e-9, "nothing lies beyond the front"
    assert beside[len(beside) // 2] < 0.1
    along = sorted(metrics["a"] ** 0.5 for metrics in found)
    assert along[0] < 0.25, "it reaches from the one end"
    assert along[-1] > 0.75, "to the limit"
    document = tomllib.loads((results.folder / "best.toml").read_text())
    assert {entry["trial"] for entry in document["pareto"]} == {setting.first for setting in results.pareto}
    assert document["best"]["trial"] in {entry["trial"] for entry in document["pareto"]}
    assert all("violation" not in entry for entry in document["pareto"])


@pytest.mark.parametrize("agent", ["random_search", "optuna"])
def test_agents_that_need_a_number_get_the_weighted_sum(tmp_path: Path, agent: str, write: Any, tunegym: Cli) -> None:
    write("known_front.py", SCHAFFER)
    scenario = write(
        "scenario.toml",
        f"""
        name = "sum"
        [[experiments]]
        name = "e"
        workload = "python"
        agent = "{agent}"
        agent_steps = 12
        isolate = false
        objectives = [{{ metric = "a", goal = "min", weight = 3.0 }}, {{ metric = "b", goal = "min" }}]
          [experiments.cmd_args]
          callable = "known_front:f"
          x = {{ low = -4.0, high = 4.0, dtype = "float" }}
          y = {{ low = -4.0, high = 4.0, dtype = "float" }}
        """,
    )
    done = tunegym("run", scenario)
    assert done.returncode == 0, done.stderr
    assert "Pareto set of" in done.stdout
    (results,) = assert_sound(find_run(tmp_path / "results")).values()
    first, *_ = results.trials
    unit = first.metrics
    for trial in results.trials:
        expected = -(3.0 * trial.metrics["a"] / unit["a"] + trial.metrics["b"] / unit["b"]) / 4.0
        assert trial.reward == pytest.approx(expected)


def test_the_unit_of_a_resumed_run_is_the_first_ones(tmp_path: Path, write: Any, tunegym: Cli) -> None:
    objectives = [{"metric": "a", "goal": "min"}, {"metric": "b", "goal": "min"}]
    results = search(tmp_path, objectives, "random", 6)
    assert tunegym("resume", results.folder.parent, "--agent-steps", "9").returncode == 0
    extended = TrialResults("e", results.folder)
    unit = extended.trials[0].metrics
    for trial in extended.trials:
        expected = -(trial.metrics["a"] / unit["a"] + trial.metrics["b"] / unit["b"]) / 2
        assert trial.reward == pytest.approx(expected)


# warm start -------------------------------------------------------------------------------------------

WARM = """
name = "{name}"
[[experiments]]
name = "e"
workload = "python"
agent = "{agent}"
agent_steps = {steps}
agent_metrics = ["value"]
agent_reward_function = "{reward}"
isolate = false
  [experiments.cmd_args]
  callable = "work:value"
  {knobs}
  [experiments.agent_config]
  {config}
"""
WORK = "def value(x, y=1, z=0):\n    return {'value': x + y}\n"


def warm(
    write: Any, cli: Cli, old: str, new: str, config: str = "", reward: str = "identity"
) -> subprocess.CompletedProcess[str]:
    """A run over ``old`` knobs, then one over ``new`` ones that starts from it."""
    write("work.py", WORK)
    first = write(
        "old.toml", WARM.format(name="old", agent="grid_search", steps=100, reward="identity", knobs=old, config="")
    )
    assert cli("run", first, "--output", "old").returncode == 0
    config = f'warm_start = "old"\n  {config}'
    second = write(
        "new.toml", WARM.format(name="new", agent="optuna", steps=2, reward=reward, knobs=new, config=config)
    )
    return cli("run", second, "--output", "new")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("x = [1, 2, 3]\n  y = [4, 5]", "x = [1, 2, 3]\n  y = [4, 5]", "6 trials taken"),
        ("x = [1, 2, 3]", "x = [1.0, 2.0, 9.0]", "2 trials taken, 2 of them mapped to the knobs here, 1 left out"),
        ("x = [1, 2, 3]", "x = { low = 0.0, high = 2.0, dtype = \"float\" }", "2 trials taken, 2 of them mapped"),
        ("x = { low = 0.0, high = 1.0, step = 0.1 }", "x = { low = 0.0, high = 0.75, step = 0.25 }",
         "2 trials taken, 9 left out (6 x x is between the steps here; 3 x x is outside of its range here)"),
        ("x = [1, 2, 3]\n  y = 4", "x = [1, 2, 3]\n  y = [4, 5]", "3 trials taken, 3 of them mapped"),
        ("x = [1, 2, 3]\n  y = [4, 5]", "x = [1, 2, 3]\n  y = 5", "3 trials taken, 3 of them mapped"),
        ("x = [1, 2, 3]\n  y = [4, 5]", "x = [1, 2, 3]", "0 trials taken, 6 left out (6 x there is no y here)"),
        ("x = [1, 2, 3]", "x = [1, 2, 3]\n  z = [4, 5]", "0 trials taken, 3 left out (3 x it has no z)"),
    ],
)  # fmt: skip
def test_warm_start_takes_maps_and_counts(old: str, new: str, said: str, write: Any, tunegym: Cli) -> None:
    done = warm(write, tunegym, old, new)
    assert done.returncode == 0, done.stderr
    assert f"warm start: {said}" in done.stderr


def test_a_resume_starts_from_the_same_trials_whatever_became_of_the_other_run(
    write: Any, tunegym: Cli, tmp_path: Path
) -> None:
    knobs = "x = { low = 0, high = 60, step = 1 }"
    done = warm(write, tunegym, knobs, knobs, "startup_trials = 1")
    assert done.returncode == 0, done.stderr
    whole = tunegym("run", "new.toml", "--output", "whole", "--set", "experiments.e.agent_steps=8")
    assert whole.returncode == 0, whole.stderr
    shutil.rmtree("old")
    shutil.move("new", "moved")
    resumed = tunegym("resume", "moved", "--agent-steps", "8")
    assert resumed.returncode == 0, resumed.stderr
    assert "warm start: 61 trials taken" in resumed.stderr
    assert actions(tmp_path / "moved") == actions(tmp_path / "whole")


def test_trials_that_lack_an_objectives_metric_are_left_out(write: Any, tunegym: Cli) -> None:
    write("work.py", WORK)
    old = WARM.format(name="old", agent="grid_search", steps=9, reward="identity", knobs="x = [1, 2, 3]", config="")
    assert tunegym("run", write("old.toml", old), "--output", "old").returncode == 0
    write("work.py", "def value(x):\n    return {'value': x, 'memory': 1.0}\n")
    new = WARM.format(name="n", agent="optuna", steps=2, reward="", knobs="x = [1, 2, 3]", config='warm_start = "old"')
    limited = (
        'objectives = [{ metric = "value", goal = "max" }, { metric = "memory", goal = "min", weight = 0, limit = 2 }]'
    )
    done = tunegym("run", write("new.toml", new.replace('agent_reward_function = ""', limited)))
    assert done.returncode == 0, done.stderr
    assert "0 trials taken, 3 left out (3 x metric memory was not measured)" in done.stderr


def test_warm_start_from_several_runs_is_refused_before_anything_runs(write: Any, tunegym: Cli) -> None:
    write("work.py", WORK)
    settings = {"steps": 9, "reward": "identity", "knobs": "x = [1, 2]"}
    old = write("old.toml", WARM.format(name="old", agent="grid_search", config="", **settings))
    for _ in range(2):
        assert tunegym("run", old, "--output", "old").returncode == 0
    new = WARM.format(name="n", agent="optuna", config='warm_start = "old"', **settings)
    done = tunegym("run", write("new.toml", new), "--output", "new")
    assert done.returncode != 0
    assert "holds 2 runs" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(Path("new").glob("**/journal.jsonl"))


def test_warm_start_scores_by_the_reward_of_here(write: Any, tunegym: Cli, tmp_path: Path) -> None:
    """There more was better, here less is: the surrogate must learn that."""
    knobs = "x = { low = 0, high = 60, step = 1 }"
    done = warm(write, tunegym, knobs, knobs, "startup_trials = 1", reward="negative")
    assert done.returncode == 0, done.stderr
    (results,) = assert_sound(find_run(tmp_path / "new")).values()
    assert all(trial.action["x"] < 30 for trial in results.trials)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('warm_start = "nowhere"', "nowhere is not a folder"),
        ('warm_start = "."', "holds no results"),
        ('sampler = "random"\n  warm_start = "."', "the sampler random learns nothing"),
        ('sampler = "qmc"\n  startup_trials = 3', "the sampler qmc has no startup_trials"),
        ('sampler = "cmaes"', "cmaes moves through ranges"),
    ],
)
def test_refused_before_anything_runs(config: str, message: str, write: Any) -> None:
    write("work.py", WORK)
    text = WARM.format(name="n", agent="optuna", steps=2, reward="identity", knobs="x = [1, 2]", config=config)
    with pytest.raises(ConfigError, match=message):
        tunegym.scenario(write("s.toml", text))


def test_a_missing_optuna_is_named(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else find(name, *rest)
    )
    write("work.py", WORK)
    text = WARM.format(name="n", agent="optuna", steps=2, reward="identity", knobs="x = [1, 2]", config="")
    with pytest.raises(ConfigError, match=r"(?s)needs the package optuna.*pip install 'tunegym\[optuna\]'"):
        tunegym.scenario(write("s.toml", text))


def test_dry_run_shows_what_would_be_proposed(write: Any, tunegym: Cli) -> None:
    write("work.py", WORK)
    text = WARM.format(name="n", agent="optuna", steps=5, reward="identity", knobs="x = [1, 2, 3]", config="")
    shown = tunegym("dry-run", write("s.toml", text), "--json")
    assert shown.returncode == 0, shown.stderr
    assert len(json.loads(shown.stdout)["experiments"][0]["first"]) == 3
