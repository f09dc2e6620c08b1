"""T12: kill -9 at any instant, resume, and nothing is lost, doubled or left behind."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tunegym.testing.results import assert_sound
from tunegym.tuning.stores import reader

SCENARIO = """
name = "storm"
seed = 11
[system]
slots = {slots}

[[experiments]]
name = "shell"
workload = "command"
agent = "random_search"
agent_steps = {steps}
agent_metrics = ["value"]
timeout_s = 20
constraints = ["b != 3"]
  [experiments.cmd_args]
  command = "sleep 0.0{{load}}; (sleep 30 &) ; test {{a}} -ne 7 && echo value={{a}}.{{b}}"
  a = {{ low = 1, high = 400, dtype = "int" }}
  b = [1, 2, 3, 4]
  load = [1, 3, 5]
  [experiments.env_params]
  load = {{ weights = [0.5, 0.25, 0.25] }}
  [experiments.metrics]
  value = {{ regex = 'value=([0-9.]+)' }}

[[experiments]]
name = "call"
workload = "python"
agent = "grid_search"
agent_steps = {steps}
agent_metrics = ["value"]
  [experiments.cmd_args]
  callable = "work:measure"
  a = {{ low = 0, high = 250, step = 1 }}
  b = ["x", "y", "z"]
"""

WORK = """
import time
def measure(a, b):
    time.sleep(0.02)
    if a == 3 and b == "y":
        raise RuntimeError("this point crashes")
    return {"value": a + len(b)}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[[int, int], Path]:
    def write(slots: int, steps: int) -> Path:
        path = tmp_path / "storm.toml"
        path.write_text(SCENARIO.format(slots=slots, steps=steps))
        (tmp_path / "work.py").write_text(WORK)
        return path

    return write


def _decisions(run: Path) -> dict[str, list[tuple[int, object, object, str]]]:
    """What every trial was, without what only time decides."""
    return {
        name: [(t.number, t.context, t.action, t.status) for t in results.trials]
        for name, results in assert_sound(run).items()
    }


def _uninterrupted(tunegym: Callable[..., subprocess.CompletedProcess[str]], path: Path, output: Path) -> Path:
    done = tunegym("run", path, "--output", output)
    assert done.returncode == 0, done.stderr
    return next((output / "storm").iterdir())


def _killed_and_resumed(
    start: Callable[..., subprocess.Popen[str]], path: Path, output: Path, kills: int, rng: random.Random
) -> Path:
    """Start a run and resume it again and again, each time killed somewhere; then let it end."""
    log = output.parent / "log.txt"
    process = start("run", path, "--output", output, log=log)
    deadline = time.monotonic() + 60
    while not list(output.glob("storm/*/shell/journal.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.005)
    run = next((output / "storm").iterdir())
    for _ in range(kills):
        time.sleep(rng.choice([rng.uniform(0.0, 0.05), rng.uniform(0.0, 1.0)]))
        assert process.poll() is None, f"it ended before the storm did: {log.read_text()}"
        process.kill()
        process.wait()
        process = start("resume", run, log=log)
    code = process.wait(timeout=180)
    assert code == 0, log.read_text()
    return run


def _storm(
    tunegym: Callable[..., subprocess.CompletedProcess[str]],
    start: Callable[..., subprocess.Popen[str]],
    processes_of: Callable[[str], list[int]],
    path: Path,
    tmp_path: Path,
    kills: int,
    seed: int,
) -> None:
    calm = _uninterrupted(tunegym, path, tmp_path / "calm")
    stormy = _killed_and_resumed(start, path, tmp_path / "stormy", kills, random.Random(seed))
    assert _decisions(stormy) == _decisions(calm)
    for results in assert_sound(stormy).values():
        head = results.journal.head
        assert head is not None
        assert processes_of(head["run"]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "steps"), [(1, 60), (4, 200)])
def test_ten_kills_at_random_instants(
    slots: int,
    steps: int,
    tunegym: Callable[..., subprocess.CompletedProcess[str]],
    start_tunegym: Callable[..., subprocess.Popen[str]],
    processes_of: Callable[[str], list[int]],
    scenario: Callable[[int, int], Path],
    tmp_path: Path,
) -> None:
    _storm(tunegym, start_tunegym, processes_of, scenario(slots, steps), tmp_path, kills=10, seed=slots)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("slots", "steps"), [(1, 250), (4, 700)])
def test_fifty_kills_at_random_instants(
    slots: int,
    steps: int,
    tunegym: Callable[..., subprocess.CompletedProcess[str]],
    start_tunegym: Callable[..., subprocess.Popen[str]],
    processes_of: Callable[[str], list[int]],
    scenario: Callable[[int, int], Path],
    tmp_path: Path,
) -> None:
    _storm(tunegym, start_tunegym, processes_of, scenario(slots, steps), tmp_path, kills=50, seed=100 + slots)


def _cut_and_resumed(
    tunegym: Callable[..., subprocess.CompletedProcess[str]], calm: Path, copy: Path, name: str, offset: int
) -> None:
    shutil.copytree(calm, copy)
    journal = copy / name / reader.JOURNAL
    journal.write_bytes(journal.read_bytes()[:offset])
    done = tunegym("resume", copy)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 4])
def test_a_journal_cut_at_byte_offsets_is_resumed(
    slots: int,
    tunegym: Callable[..., subprocess.CompletedProcess[str]],
    scenario: Callable[[int, int], Path],
    tmp_path: Path,
) -> None:
    calm = _uninterrupted(tunegym, scenario(slots, 12), tmp_path / "calm")
    expected = _decisions(calm)
    rng = random.Random(slots)
    for index, name in enumerate(["shell", "call"] * 4):
        size = (calm / name / reader.JOURNAL).stat().st_size
        offset = [0, 1, size - 1, size][index // 2] if index < 4 else rng.randrange(size)
        copy = tmp_path / f"cut-{index}"
        _cut_and_resumed(tunegym, calm, copy, name, offset)
        assert _decisions(copy) == expected, f"{name} cut at {offset} of {size}"
