"""The recorded measurements are those that were made, whatever a workload does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Cli
from tests.soundness import assert_sound

import tunegym as library
from tunegym.core.files import dump_toml
from tunegym.tuning.stores import reader

Write = Callable[..., Path]


def scenario(cmd_args: dict[str, Any], **more: Any) -> dict[str, Any]:
    experiment = {
        "name": "e",
        "workload": "python" if "callable" in cmd_args else "command",
        "agent": "grid_search",
        "agent_metrics": ["value"],
        "cmd_args": cmd_args,
        **more,
    }
    return {"name": "honest", "scenario_dir": os.getcwd(), "experiments": [experiment]}


def values(folder: str = "results") -> list[float]:
    (results,) = assert_sound(folder).values()
    return [trial.metrics["value"] for trial in results.trials]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_module_sees_the_variables_of_its_own_trial_when_it_is_imported(write: Write, slots: int) -> None:
    write("reads.py", "import os\nTHREADS = int(os.environ['THREADS'])\ndef value(): return THREADS")
    document = scenario({"callable": "reads:value"}, extra_env_vars={"THREADS": ["1", "2", "4", "8"]})
    assert library.run(document | {"system": {"slots": slots}}) == 0
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
    code = library.run(scenario({"callable": "odd_text:value", "x": [1, 2]}, isolate=isolate, **more))
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
    document = scenario({"callable": f"{name}:value", "x": [1, 2]}, isolate=isolate, **more)
    for base in (100, 200, 300):
        write(f"{name}_part.py", f"base = {base}")
        write(f"{name}.py", text)
        assert library.run(document, output=f"runs-{base}") == 0
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
    document = scenario({"command": command, "x": [1, 2, 3, 4]}, metrics={"value": {"regex": r"value=(\d)"}})
    document["experiments"][0]["agent_steps"] = 2
    assert library.run(document) == 0
    done = cli("resume", "results", "--agent-steps", "4")
    assert done.returncode == 0, done.stderr
    assert "what is measured has changed since the last session: file copy.txt;" in done.stderr
    assert values() == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_deleted_journal_is_noticed(write: Write) -> None:
    document = scenario(
        {"command": "rm -f ../../journal.jsonl; sleep 1.5; echo value={x}", "x": list(range(8))},
        metrics={"value": {"regex": r"value=(\d)"}},
    )
    write("s.py", f"import tunegym, sys\nsys.exit(tunegym.run({document!r}))")
    done = subprocess.run([sys.executable, "s.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "was deleted while it was being written" in done.stderr


def test_many_knobs_are_all_shown(write: Write, cli: Cli) -> None:
    """No number is cut short, and no knob left out, however many there are."""
    knobs = {f"knob_{index}": [index + 12345.5, 1] for index in range(60)}
    keys = {"agent": "random_search", "agent_steps": 1, "agent_config": {"start_action": "first"}}
    document = scenario({"callable": "wide_work:value", **knobs}, **keys)
    write("wide_work.py", "def value(**knobs): return 1.0")
    done = cli("run", write("wide.toml", dump_toml(document)))
    assert done.returncode == 0, done.stderr
    for name, (first, _) in knobs.items():
        assert f"  {name} = {first}\n" in done.stdout


def test_the_clock_on_the_wall_does_not_count(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is set forward by a day has not worked for a day."""
    import time

    from tunegym.core.clock import SystemClock

    write("work.py", "def value(x): return x")
    jumps = iter(range(0, 10**9, 86_400))
    monkeypatch.setattr(SystemClock, "wall", staticmethod(lambda: time.time() + next(jumps)))
    document = scenario({"callable": "work:value", "x": [1, 2, 3]}, isolate=False, max_time="10m")
    assert library.run(document) == 0
    (results,) = assert_sound("results").values()
    assert reader.scan(results.path).elapsed_s < 600
