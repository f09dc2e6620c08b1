"""Kill -9 at any instant, resume, and nothing is lost, doubled or left behind."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Start, Write, left_of
from tests.conftest import Cli
from tests.soundness import assert_sound

from tunegym.tuning.stores import reader

pytestmark = pytest.mark.invariant  # T12

Scenario = Callable[[str, int, int], Path]
Storm = Callable[..., set[str]]

NUMBER = {"low": 0, "high": 999, "step": 1}
STAGES = "for stage in 1 2 3 4 5 6; do echo value={a}.$stage; sleep 0.01; done"
BOWL: dict[str, Any] = {
    "constraints": ["b != 3"],
    "args": {"callable": "work:bowl", "a": {"low": -2.0, "high": 2.0}, "b": {"low": 1, "high": 60, "log": True}},
}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "shell": {
        "agent": "random_search",
        "timeout_s": 20,
        "constraints": ["b != 3"],
        "args": {
            "command": "sleep 0.0{load}; (sleep 30 &) ; test {a} -ne 7 && echo value={a}.{b}",
            "a": {"low": 1, "high": 400, "dtype": "int"},
            "b": [1, 2, 3, 4],
            "load": [1, 3, 5],
        },
        "env_params": {"load": {"weights": [0.5, 0.25, 0.25]}},
    },
    "call": {
        "isolate": True,
        "args": {"callable": "work:measure", "a": NUMBER, "b": ["x", "y", "z"]},
    },
    "optuna": {"agent": "optuna", **BOWL},
    "bayes": {"agent": "bayes", **BOWL},
    "staged command": {
        "agent": "random_search",
        "pruner": "median",
        "args": {"command": STAGES, "a": NUMBER},
        "metrics": {"value": {"regex": "value=([0-9.]+)", "stream": True}},
    },
    "staged call": {
        "agent": "random_search",
        "pruner": "hyperband",
        "isolate": True,
        "args": {"callable": "work:staged", "a": NUMBER},
    },
}

WORK = """
import time

def measure(a, b):
    time.sleep(0.02)
    if a == 3 and b == "y":
        raise RuntimeError("this point crashes")
    return {"value": a + len(b)}

def bowl(a, b):
    time.sleep(0.05)
    if b < 9 and a > 1:
        raise RuntimeError("these points crash")
    return -(a - 0.7) ** 2 - (b - 20) ** 2 / 400

def staged(a, report):
    for stage in range(1, 10):
        time.sleep(0.01)
        report(stage, a + stage)
    return a
"""


@pytest.fixture
def scenario(write: Write, write_scenario: Write) -> Scenario:
    def make(name: str, slots: int, steps: int) -> Path:
        write("work.py", WORK)
        return write_scenario(name="storm", seed=11, slots=slots, agent_steps=steps, **EXPERIMENTS[name])

    return make


@pytest.fixture
def storm(tunegym: Cli, start_tunegym: Start, tmp_path: Path) -> Storm:
    """Run a scenario in calm and in a storm of kills: the trials are the same, nothing is left. Gives statuses."""

    def check(path: Path, kills: int, seed: int) -> set[str]:
        calm = _uninterrupted(tunegym, path, tmp_path / "calm")
        stormy = _killed_and_resumed(start_tunegym, path, tmp_path / "stormy", kills, random.Random(seed))
        assert _decisions(stormy) == _decisions(calm)
        (results,) = assert_sound(stormy).values()
        assert len(results.journal.sessions) > kills, "a kill hit no process"
        assert left_of(results.folder) == []
        return {trial.status for trial in results.trials}

    return check


def _decisions(run: Path) -> list[tuple[object, ...]]:
    """What every trial was, without what only time decides."""
    (results,) = assert_sound(run).values()
    return [(t.number, t.context, t.action, t.status, t.reports) for t in results.trials]


def _uninterrupted(tunegym: Cli, path: Path, output: Path) -> Path:
    tunegym("run", path, "--output", output, code=0)
    return next((output / "storm").iterdir())


def _killed_and_resumed(start: Start, path: Path, output: Path, kills: int, rng: random.Random) -> Path:
    """Start a run and resume it again and again, each time killed somewhere; then let it end."""
    log = output.parent / "log.txt"
    process = start("run", path, "--output", output, log=log)
    for kill in range(kills):
        _await_session(output, process, kill)
        time.sleep(rng.uniform(0.0, 0.25))
        assert process.poll() is None, f"it ended before the storm did: {log.read_text()}"
        process.kill()
        process.wait()
        process = start("resume", output, log=log)
        if rng.random() < 0.3:  # some die before they have begun to write
            time.sleep(rng.uniform(0.0, 0.3))
            process.kill()
            process.wait()
            process = start("resume", output, log=log)
    code = process.wait(timeout=300)
    assert code == 0, log.read_text()
    return next((output / "storm").iterdir())


def _await_session(output: Path, process: subprocess.Popen[str], ended: int) -> None:
    """Wait until the process has begun to write: the journal has more sessions than have ``ended``."""
    deadline = time.monotonic() + 60
    while process.poll() is None:
        journals = list(output.glob(f"storm/*/*/{reader.JOURNAL}"))
        if journals and reader.scan(journals[0]).sessions[ended:]:
            return
        assert time.monotonic() < deadline, "no new session"
        time.sleep(0.005)


SIZES = [
    *[("shell", 1, 80), ("shell", 4, 250), ("call", 1, 150), ("call", 4, 500)],
    *[("optuna", 1, 80), ("bayes", 1, 80), ("staged command", 1, 80), ("staged call", 1, 120)],
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "slots", "steps"), SIZES)
@pytest.mark.parametrize(
    ("kills", "times"), [pytest.param(10, 1, marks=pytest.mark.slow), pytest.param(50, 5, marks=pytest.mark.chaos)]
)
def test_kills_at_random_instants(
    name: str, slots: int, steps: int, kills: int, times: int, storm: Storm, scenario: Scenario
) -> None:
    statuses = storm(scenario(name, slots, times * steps), kills=kills, seed=kills + slots)
    assert ("pruned" in statuses) == ("staged" in name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "slots"), [("shell", 1), ("shell", 4), ("call", 1), ("call", 4)])
def test_cut_journal_is_resumed(name: str, slots: int, tunegym: Cli, scenario: Scenario, tmp_path: Path) -> None:
    calm = _uninterrupted(tunegym, scenario(name, slots, 12), tmp_path / "calm")
    expected = _decisions(calm)
    size = (calm / "e" / reader.JOURNAL).stat().st_size
    rng = random.Random(slots)
    for offset in [0, 1, size - 1, size, *(rng.randrange(size) for _ in range(4))]:
        copy = tmp_path / f"cut-{offset}"
        shutil.copytree(calm, copy)
        journal = copy / "e" / reader.JOURNAL
        journal.write_bytes(journal.read_bytes()[:offset])
        tunegym("resume", copy, code=0)
        assert _decisions(copy) == expected, f"cut at {offset} of {size}"
