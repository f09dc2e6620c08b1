"""The recorded measurements are those that were made, whatever a workload does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write, document
from tests.conftest import Cli
from tests.soundness import assert_sound, read_rows

import tunegym as library


def values(folder: str = "results") -> list[float]:
    (results,) = assert_sound(folder).values()
    return [trial.metrics["value"] for trial in results.trials]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_module_sees_the_variables_of_its_own_trial_when_it_is_imported(write: Write, slots: int) -> None:
    write("reads.py", "import os\nTHREADS = int(os.environ['THREADS'])\ndef value(): return THREADS")
    threads = {"THREADS": ["1", "2", "4", "8"]}
    scenario = document(args={"callable": "reads:value"}, isolate=True, extra_env_vars=threads, slots=slots)
    assert library.run(scenario) == 0
    assert values() == [1, 2, 4, 8]


BROKEN = r'raise ValueError("bad file \udc80name")'


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize(
    ("module", "more", "status"),
    [
        (f"def value(x):\n    {BROKEN}", {}, "failed"),
        ('def value(x): return {"value": x, "m\\udc80": 1}', {}, "measured"),
        (
            f"def value(x): return x\ndef reward(value):\n    {BROKEN}",
            {"agent_reward_function": "odd_text:reward"},
            "failed",
        ),
        (f"def value(x): return x\ndef allow(x):\n    {BROKEN}", {"constraints": ["odd_text:allow"]}, "infeasible"),
    ],
    ids=["callable", "metric", "reward", "constraint"],
)
def test_any_text_can_be_recorded(write: Write, isolate: bool, module: str, more: dict[str, Any], status: str) -> None:
    """Half a surrogate pair, as in the name of a file that is no Unicode, is no reason to stop."""
    write("odd_text.py", module)
    code = library.run(document(args={"callable": "odd_text:value", "x": [1, 2]}, isolate=isolate, **more))
    assert code == (0 if status == "measured" else 1)
    (results,) = assert_sound("results").values()
    assert [trial.status for trial in results.trials] == [status] * 2
    assert all("\\udc80" in trial.reason or trial.measured for trial in results.trials)


EDITED = "from edited_part import base\ndef value(x): return base + x\ndef reward(value): return base"
LATE = "def value(x):\n    import late_part\n    return late_part.base + x"


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize(("name", "text"), [("edited", EDITED), ("late", LATE)])
def test_an_edited_module_is_measured_as_it_is_now(write: Write, isolate: bool, name: str, text: str) -> None:
    """In one process, within one second, at the same size; also a module that a function imports late."""
    more = {"agent_reward_function": "edited:reward"} if name == "edited" else {}
    scenario = document(args={"callable": f"{name}:value", "x": [1, 2]}, isolate=isolate, **more)
    for base in (100, 200, 300):
        write(f"{name}_part.py", f"base = {base}")
        write(f"{name}.py", text)
        assert library.run(scenario, output=f"runs-{base}") == 0
        assert values(f"runs-{base}") == [base + 1, base + 2]
        (results,) = assert_sound(f"runs-{base}").values()
        assert name == "late" or {trial.reward for trial in results.trials} == {base}


def test_a_file_that_the_trials_write_does_not_stop_a_resume(cli: Cli) -> None:
    """Redirected to or teed, there before or not; another one that appeared is worth a word, and no more."""
    Path("old.txt").write_text("start")
    command = (
        "echo {x} >> {scenario_dir}/log.txt; echo {x} | tee -a {scenario_dir}/old.txt; "
        "cp {scenario_dir}/old.txt {scenario_dir}/copy.txt; echo value={x}"
    )
    assert library.run(document(args={"command": command, "x": [1, 2, 3, 4]}, agent_steps=2)) == 0
    done = cli("resume", "results", "--agent-steps", "4", code=0)
    assert "what is measured has changed since the last session: file copy.txt;" in done.stderr
    assert values() == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_deleted_journal_is_noticed(write: Write) -> None:
    args = {"command": "rm -f ../../journal.jsonl; sleep 1.5; echo value={x}", "x": list(range(8))}
    write("s.py", f"import tunegym, sys\nsys.exit(tunegym.run({document(args=args)!r}))")
    done = subprocess.run([sys.executable, "s.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "was deleted while it was being written" in done.stderr


def test_many_knobs_are_all_shown(write: Write, write_scenario: Write, cli: Cli) -> None:
    """No number is cut short, and no knob left out, however many there are."""
    knobs = {f"knob_{index}": [index + 12345.5, 1] for index in range(60)}
    keys = {"agent": "random_search", "agent_steps": 2, "agent_config": {"start_action": "first"}}
    write("wide_work.py", "def value(**knobs): return 1.0")
    done = cli("run", write_scenario(args={"callable": "wide_work:value", **knobs}, **keys), code=0)
    for name, (first, _) in knobs.items():
        assert f"{name}={first} " in done.stdout.replace("\n", " ")


ENDINGS = """
import os, time
def allow(x):
    return x != 2
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
def test_all_outcomes_in_one_experiment(tunegym: Cli, write: Write, write_scenario: Write) -> None:
    write("endings.py", ENDINGS)
    limits = {"timeout_s": 0.3, "constraints": ["endings:allow"], "isolate": True, "agent_reward_function": "negative"}
    args = {"callable": "endings:value", "x": [1, 2, 3, 4, 5], "load": [10, 20, 30]}
    keys = {"agent": "random_search", "agent_steps": 40, "env_params": {"load": {"weights": [0.7, 0.2, 0.1]}}}
    done = tunegym("run", write_scenario(seed=1, slots=3, args=args, **limits, **keys), code=0)
    (results,) = assert_sound("results").values()
    assert {trial.status for trial in results.trials} == {"measured", "infeasible", "failed", "timed_out"}
    worst = min(trial.reward for trial in results.trials if trial.measured)
    assert all(trial.reward < worst for trial in results.trials if not trial.measured)
    assert {trial.context["load"] for trial in results.trials} == {10, 20, 30}
    rows, drawn = (read_rows(results.folder / name) for name in ("trajectory.csv", "env.csv"))
    assert list(rows[0]) == [
        *("step", "status", "cached", "reward", "action.x", "context.load", "observation.value", "duration_s"),
        "phase",
    ]
    for trial, row, draw in zip(results.trials, rows, drawn, strict=True):
        assert row["action.x"] == str(trial.action["x"])
        assert draw == {"step": str(trial.number), "load": str(trial.context["load"]), "phase": "search"}
        assert row["observation.value"] == (str(trial.metrics["value"]) if trial.measured else "")
    by_number = {trial.number: trial for trial in results.trials}
    served = [trial for trial in results.trials if trial.cached_from]
    assert served
    for trial in served:
        origin = by_number[trial.cached_from or 0]
        assert (origin.action, origin.context, origin.status) == (trial.action, trial.context, "measured")
    assert "load=10" in done.stdout
    assert " more reason" in done.stdout
