"""Kill -9 at any instant, resume, and nothing is lost, doubled or left behind."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.soundness import assert_sound

from tunegym.tuning.stores import reader

pytestmark = pytest.mark.invariant  # T12

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
Storm = Callable[..., None]

HEAD = """
name = "storm"
seed = 11
system = {{ slots = {slots} }}
[[experiments]]
agent_steps = {steps}
agent_metrics = ["value"]
"""

EXPERIMENTS = {
    "shell": """
name = "shell"
workload = "command"
agent = "random_search"
timeout_s = 20
constraints = ["b != 3"]
  [experiments.cmd_args]
  command = "sleep 0.0{load}; (sleep 30 &) ; test {a} -ne 7 && echo value={a}.{b}"
  a = { low = 1, high = 400, dtype = "int" }
  b = [1, 2, 3, 4]
  load = [1, 3, 5]
  [experiments.env_params]
  load = { weights = [0.5, 0.25, 0.25] }
  [experiments.metrics]
  value = { regex = 'value=([0-9.]+)' }
""",
    "call": """
name = "call"
workload = "python"
agent = "grid_search"
  [experiments.cmd_args]
  callable = "work:measure"
  a = { low = 0, high = 999, step = 1 }
  b = ["x", "y", "z"]
""",
}

WORK = """
import time
def measure(a, b):
    time.sleep(0.02)
    if a == 3 and b == "y":
        raise RuntimeError("this point crashes")
    return {"value": a + len(b)}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[[str, int, int], Path]:
    def write(name: str, slots: int, steps: int) -> Path:
        path = tmp_path / "storm.toml"
        path.write_text(HEAD.format(slots=slots, steps=steps) + EXPERIMENTS[name])
        (tmp_path / "work.py").write_text(WORK)
        return path

    return write


@pytest.fixture
def storm(tunegym: Cli, start_tunegym: Start, processes_of: Callable[[str], list[int]], tmp_path: Path) -> Storm:
    """Run a scenario in calm and in a storm of kills; both must come to the same, and nothing may be left."""

    def check(path: Path, kills: int, seed: int) -> None:
        calm = _uninterrupted(tunegym, path, tmp_path / "calm")
        stormy = _killed_and_resumed(start_tunegym, path, tmp_path / "stormy", kills, random.Random(seed))
        assert _decisions(stormy) == _decisions(calm)
        (results,) = assert_sound(stormy).values()
        assert len(results.journal.sessions) > kills, "a kill hit no process"
        assert results.journal.head is not None
        assert processes_of(results.journal.head["run"]) == []

    return check


def _decisions(run: Path) -> list[tuple[int, object, object, str]]:
    """What every trial was, without what only time decides."""
    (results,) = assert_sound(run).values()
    return [(t.number, t.context, t.action, t.status) for t in results.trials]


def _uninterrupted(tunegym: Cli, path: Path, output: Path) -> Path:
    done = tunegym("run", path, "--output", output)
    assert done.returncode == 0, done.stderr
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


SIZES = [("shell", 1, 80), ("shell", 4, 250), ("call", 1, 150), ("call", 4, 500)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "slots", "steps"), SIZES)
@pytest.mark.parametrize(
    ("kills", "times"), [pytest.param(10, 1, marks=pytest.mark.slow), pytest.param(50, 5, marks=pytest.mark.chaos)]
)
def test_kills_at_random_instants(
    name: str, slots: int, steps: int, kills: int, times: int, storm: Storm, scenario: Callable[[str, int, int], Path]
) -> None:
    storm(scenario(name, slots, times * steps), kills=kills, seed=kills + slots)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "slots"), [("shell", 1), ("shell", 4), ("call", 1), ("call", 4)])
def test_cut_journal_is_resumed(
    name: str, slots: int, tunegym: Cli, scenario: Callable[[str, int, int], Path], tmp_path: Path
) -> None:
    calm = _uninterrupted(tunegym, scenario(name, slots, 12), tmp_path / "calm")
    expected = _decisions(calm)
    size = (calm / name / reader.JOURNAL).stat().st_size
    rng = random.Random(slots)
    for offset in [0, 1, size - 1, size, *(rng.randrange(size) for _ in range(4))]:
        copy = tmp_path / f"cut-{offset}"
        shutil.copytree(calm, copy)
        journal = copy / name / reader.JOURNAL
        journal.write_bytes(journal.read_bytes()[:offset])
        done = tunegym("resume", copy)
        assert done.returncode == 0, done.stderr
        assert _decisions(copy) == expected, f"cut at {offset} of {size}"
