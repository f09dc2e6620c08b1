"""A full disk: a clear error, an intact journal, and a resume once there is space."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.app.conftest import Write
from tests.conftest import Cli
from tests.soundness import assert_sound, read_rows

from tunegym.tuning.reports.results import find_run
from tunegym.tuning.stores import reader

CALL = {"callable": "work:value"}
COMMAND = {"command": "echo value={x}"}


@pytest.fixture
def small_disk(tmp_path: Path, mount: Callable[[Path, str], Path]) -> Callable[[int], Path]:
    """Makes a file system with 200 or 800 kB of space beside its ``ballast``."""

    def make(megabytes: int) -> Path:
        folder = mount(tmp_path / "disk", f"size={megabytes}m")
        (folder / "ballast").write_bytes(bytes(800_000 if megabytes == 1 else 2_200_000))
        return folder

    return make


@pytest.fixture
def flood(write: Write, write_scenario: Write) -> Write:
    """Write a scenario of more trials than a small disk can take."""

    def make(workload: dict[str, str] = CALL, slots: int = 1) -> Path:
        write("work.py", "def value(x): return x")
        args = {**workload, "x": {"low": 1, "high": 1000000, "dtype": "int"}}
        return write_scenario(slots=slots, agent="random_search", agent_steps=100_000, keep="all", args=args)

    return make


def _check_refused(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1, done.stderr
    assert "error: " in done.stderr
    assert "No space left on device" in done.stderr or "is full" in done.stderr
    assert "Traceback" not in done.stderr


def _rows(run: Path) -> list[str]:
    """The steps in both CSV files."""
    steps, drawn = ([row["step"] for row in read_rows(run / "e" / name)] for name in ("trajectory.csv", "env.csv"))
    assert steps == drawn
    return steps


def _check_flood(tunegym: Cli, path: Path, disk: Path) -> set[str]:
    """Run until the disk is full, resume in vain, then with space; gives the statuses."""
    done = tunegym("run", path, "--output", disk)
    _check_refused(done)
    assert "hint: " in done.stderr
    assert "tunegym resume" in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert sum("report.html" in line for line in errors) <= 1
    assert "report" not in errors[-1], "the cause comes last"
    run = find_run(disk)
    journal = run / "e" / reader.JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") and orjson.loads(line) for line in lines)
    assert_sound(run, complete=False)
    assert reader.scan(journal).taken > 3
    before = _rows(run)

    _check_refused(tunegym("resume", run))
    assert _rows(run)[: len(before)] == before, "a resume in vain takes no row away"
    assert tunegym("status", run).returncode == 0

    (disk / "ballast").unlink()
    used = reader.scan(journal).taken
    tunegym("resume", run, "--agent-steps", used + 5, code=0)
    (results,) = assert_sound(run).values()
    statuses = reader.scan(journal).statuses or {trial.status: 1 for trial in results.trials}
    assert reader.scan(journal).taken == used + 5
    assert not (run / "dse_failure.txt").exists()
    return set(statuses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "slots"), [(CALL, 1), (COMMAND, 1), (COMMAND, 4)], ids=["call", "command", "wide"]
)
def test_trials_on_a_full_disk(
    workload: dict[str, str], slots: int, tunegym: Cli, flood: Write, small_disk: Callable[[int], Path]
) -> None:
    statuses = _check_flood(tunegym, flood(workload, slots), small_disk(1))
    assert statuses == {"measured"}, "no job is blamed for the disk"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "args"),
    [("in_process", {}), ("process", {}), ("in_process", {"size": 84, "sleep_s": 0.01})],
    ids=["in process", "process", "images"],
)
def test_live_steps_on_a_full_disk(
    live: Any, tunegym: Cli, small_disk: Callable[[int], Path], place: str, args: dict[str, Any]
) -> None:
    path = live.write(args=args, server=place, agent_steps=10**6)
    assert _check_flood(tunegym, path, small_disk(3)) <= {"measured", "cancelled"}, "no server is blamed for the disk"
    live.assert_nothing_left()


def test_no_space_for_a_new_run(tunegym: Cli, flood: Write, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(1)
    with contextlib.suppress(OSError):
        (disk / "more").write_bytes(bytes(400_000))
    _check_refused(tunegym("run", flood(), "--output", disk))


@pytest.mark.slow
def test_out_of_inodes_is_not_blamed_on_the_job(
    tunegym: Cli, flood: Write, tmp_path: Path, mount: Callable[[Path, str], Path]
) -> None:
    folder = mount(tmp_path / "few", "size=20m,nr_inodes=40")
    workload = {"command": "for i in 1 2 3 4 5; do echo > f$i || exit 1; done; echo value={x}"}
    done = tunegym("run", flood(workload), "--output", folder, code=1)
    assert "Traceback" not in done.stderr
    (results,) = assert_sound(folder, complete=False).values()
    assert {trial.status for trial in results.trials} == {"measured"}
