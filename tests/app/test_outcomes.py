"""Every kind of workload behaviour through the whole path: the right outcome, and nothing left behind."""

from __future__ import annotations

import csv
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.soundness import assert_sound

import tunegym as library

Cli = Callable[..., subprocess.CompletedProcess[str]]
RESULTS = Path("results")

ODD_JOBS = r"""
name = "odd"
seed = 1
[system]
slots = 2

[[experiments]]
name = "e"
workload = "command"
agent = "grid_search"
agent_metrics = ["value"]
timeout_s = 3
agent_reward_function = "negative"
constraints = ["kind != 'forbidden'"]
  [experiments.cmd_args]
  command = "exec sh {scenario_dir}/odd.sh {kind}"
  kind = [
    "plain", "loud", "parent", "daemon", "deaf", "three", "nan", "infinite", "silent", "junk", "junk only", "killed",
    "forbidden",
  ]
  [experiments.metrics]
  value = { regex = 'value=(\S+)' }
"""

ODD = r"""
case "$1" in
  plain) echo value=1 ;;
  loud) head -c 10000000 /dev/zero | tr '\0' x; echo; echo value=2 ;;
  parent) (sleep 1000 & sleep 1000 &) ; sleep 1000 & echo value=3 ;;
  daemon) setsid sh -c 'sleep 1000; true' </dev/null >/dev/null 2>&1 & echo value=4 ;;
  deaf) trap '' TERM; (trap '' TERM; sleep 1000; sleep 1000) & echo value=5; sleep 1000; sleep 1000 ;;
  three) echo value=6; echo sorry >&2; exit 3 ;;
  nan) echo value=nan ;;
  infinite) echo value=inf ;;
  silent) true ;;
  junk) head -c 100000 /dev/urandom; echo; echo value=7 ;;
  "junk only") head -c 100000 /dev/zero ;;
  killed) echo value=8; kill -SEGV $$ ;;
esac
"""

EXPECTED = {
    "plain": ("measured", ""),
    "loud": ("measured", ""),
    "parent": ("measured", ""),
    "daemon": ("measured", ""),
    "deaf": ("timed_out", "timeout_s = 3"),
    "three": ("failed", "exited with 3: sorry"),
    "nan": ("failed", "NaN"),
    "infinite": ("failed", "infinite"),
    "silent": ("failed", "value"),
    "junk": ("measured", ""),
    "junk only": ("failed", "value"),
    "killed": ("failed", "killed by SIGSEGV"),
    "forbidden": ("infeasible", "kind != 'forbidden'"),
}


@pytest.mark.slow
def test_odd_jobs(
    tunegym: Cli,
    write: Callable[..., Path],
    processes_of: Callable[[str], list[int]],
    token_of: Callable[[Path], str],
) -> None:
    write("odd.sh", ODD)
    done = tunegym("run", write("odd.toml", ODD_JOBS))
    assert done.returncode == 0, done.stderr
    (results,) = assert_sound(RESULTS).values()
    found = {str(trial.action["kind"]): trial for trial in results.trials}
    assert {kind: trial.status for kind, trial in found.items()} == {kind: e[0] for kind, e in EXPECTED.items()}
    for kind, (_, reason) in EXPECTED.items():
        assert reason in found[kind].reason, kind
    values = {kind: trial.metrics["value"] for kind, trial in found.items() if trial.measured}
    assert values == {"plain": 1, "loud": 2, "parent": 3, "daemon": 4, "junk": 7}
    worst = min(trial.reward for trial in results.trials if trial.measured)
    assert all(trial.reward < worst for trial in results.trials if not trial.measured)
    assert processes_of(token_of(results.folder)) == []
    loud = results.folder / "trials" / f"{found['loud'].number:06d}" / "stdout.txt"
    assert loud.stat().st_size == 10_000_000 + len("\nvalue=2\n")
    best = tomllib.loads((results.folder / "best.toml").read_text())["best"]
    assert best["settings"] == {"kind": "plain"}
    assert "more reasons" in done.stdout
    assert "\ufffd" not in done.stderr


MIXED = """
name = "mixed"
seed = 4
[system]
slots = 3

[[experiments]]
name = "e"
workload = "python"
agent = "random_search"
agent_steps = 40
agent_metrics = ["value"]
agent_reward_function = "negative"
timeout_s = 0.3
constraints = ["x != 2"]
  [experiments.cmd_args]
  callable = "work:value"
  x = [1, 2, 3, 4, 5]
  load = [10, 20, 30]
  [experiments.env_params]
  load = { weights = [0.7, 0.2, 0.1] }
"""

MIXED_WORK = """
import os, time
def value(x, load):
    if x == 3:
        raise RuntimeError("three")
    if x == 4:
        time.sleep(1000 if load > 10 else 0)
    if x == 5 and load > 10:
        os.abort()
    return x + load
"""


@pytest.mark.slow
def test_all_outcomes_in_one_experiment(tunegym: Cli, write: Callable[..., Path]) -> None:
    write("work.py", MIXED_WORK)
    done = tunegym("run", write("mixed.toml", MIXED))
    assert done.returncode == 0, done.stderr
    (results,) = assert_sound(RESULTS).values()
    assert {trial.status for trial in results.trials} == {"measured", "infeasible", "failed", "timed_out"}
    assert {trial.context["load"] for trial in results.trials} == {10, 20, 30}
    rows, drawn = (list(csv.DictReader((results.folder / name).open())) for name in ("trajectory.csv", "env.csv"))
    assert list(rows[0]) == [
        *("step", "status", "cached", "reward", "action.x", "context.load", "observation.value", "duration_s"),
    ]
    for trial, row, draw in zip(results.trials, rows, drawn, strict=True):
        assert row["action.x"] == str(trial.action["x"])
        assert draw == {"step": str(trial.number), "load": str(trial.context["load"])}
        assert (row["step"], row["context.load"]) == (draw["step"], draw["load"])
        assert row["observation.value"] == (str(trial.metrics["value"]) if trial.measured else "")
    by_number = {trial.number: trial for trial in results.trials}
    served = [trial for trial in results.trials if trial.cached_from]
    assert served
    for trial in served:
        origin = by_number[trial.cached_from or 0]
        assert (origin.action, origin.context, origin.status) == (trial.action, trial.context, "measured")
    assert "load=10" in done.stdout


FUNCTIONS = """
name = "functions"
[[experiments]]
name = "e"
workload = "python"
agent = "grid_search"
agent_metrics = ["fast", "small"]
agent_reward_function = "rules:ratio"
constraints = ["rules:odd", "rules:below", "x != 5"]
isolate = false
  [experiments.cmd_args]
  callable = "rules:measure"
  x = [1, 2, 3, 5, 7]
  limit = 6
"""

RULES = """
def measure(x, limit): return {"fast": x * x, "small": x}
def odd(x): return x % 2 == 1
def below(parameters): return parameters["x"] <= parameters["limit"]
def ratio(fast, small): return fast / (small - 3)
"""


def test_constraints_and_rewards_that_are_functions(write: Callable[..., Path]) -> None:
    """Of named values and of all; a reward that raises is a failure of that trial."""
    write("rules.py", RULES)
    assert library.run(write("functions.toml", FUNCTIONS)) == 0
    (results,) = assert_sound(RESULTS).values()
    found = [(trial.status, trial.reason) for trial in results.trials]
    assert [status for status, _ in found] == ["measured", "infeasible", "failed", "infeasible", "infeasible"]
    for (_, reason), part in zip(found, ("", "rules:odd", "ZeroDivisionError", "x != 5", "rules:below"), strict=True):
        assert part in reason
    assert results.trials[0].reward == -0.5
