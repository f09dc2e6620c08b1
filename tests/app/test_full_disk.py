"""A full disk: a clear error, an intact journal, and a resume once there is space."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from tests.soundness import assert_sound

from tunegym.tuning.reports.results import find_run
from tunegym.tuning.stores import reader

Cli = Callable[..., subprocess.CompletedProcess[str]]

IN_PROCESS = """
workload = "python"
isolate = false
  [experiments.cmd_args]
  callable = "work:value"
"""

COMMAND = """
workload = "command"
  [experiments.metrics]
  value = { regex = 'value=([0-9]+)' }
  [experiments.cmd_args]
  command = "echo value={x}"
"""

SCENARIO = """
name = "flood"
system = {{ slots = {slots} }}
[[experiments]]
name = "e"
agent = "random_search"
agent_steps = 100000
agent_metrics = ["value"]
{workload}
  x = {{ low = 1, high = 1000000, dtype = "int" }}
"""


@pytest.fixture
def small_disk(tmp_path: Path, mount: Callable[[Path, str], Path]) -> Path:
    """A file system of one megabyte, most of it taken by ``ballast``."""
    folder = mount(tmp_path / "disk", "size=1m")
    (folder / "ballast").write_bytes(bytes(800_000))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "slots"), [(IN_PROCESS, 1), (COMMAND, 1), (COMMAND, 4)], ids=["call", "command", "wide"]
)
def test_a_full_disk_is_an_error_that_can_be_mended(
    workload: str, slots: int, tunegym: Cli, write: Callable[..., Path], small_disk: Path
) -> None:
    write("work.py", "def value(x): return x")
    path = write("scenario.toml", SCENARIO.format(workload=workload, slots=slots))
    done = tunegym("run", path, "--output", small_disk)
    assert done.returncode == 1, done.stderr
    assert "error: " in done.stderr
    assert "No space left on device" in done.stderr or "is full" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "tunegym resume" in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [line.count("report.html") for line in errors if "report.html" in line] == [1], "it is said once"
    assert "report" not in errors[-1], "the cause comes last"
    run = find_run(small_disk)
    lines = (run / "e" / reader.JOURNAL).read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") and orjson.loads(line) for line in lines)
    used = max(reader.scan(run / "e" / reader.JOURNAL).used)
    assert used > 3

    still = tunegym("resume", run)
    assert still.returncode == 1
    assert "No space left on device" in still.stderr or "is full" in still.stderr
    assert "Traceback" not in still.stderr
    assert tunegym("status", run).returncode == 0
    used = max(reader.scan(run / "e" / reader.JOURNAL).used)

    (small_disk / "ballast").unlink()
    again = tunegym("resume", run, "--agent-steps", used + 5)
    assert again.returncode == 0, again.stderr
    (results,) = assert_sound(run).values()
    assert len(results.trials) == used + 5
    assert {trial.status for trial in results.trials} == {"measured"}, "no job is blamed for the disk"
    assert not (run / "dse_failure.txt").exists()


def test_no_space_for_a_new_run(tunegym: Cli, write: Callable[..., Path], small_disk: Path) -> None:
    write("work.py", "def value(x): return x")
    path = write("scenario.toml", SCENARIO.format(workload=IN_PROCESS, slots=1))
    with contextlib.suppress(OSError):
        (small_disk / "more").write_bytes(bytes(400_000))
    done = tunegym("run", path, "--output", small_disk)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_out_of_inodes_is_not_blamed_on_the_job(
    tunegym: Cli, write: Callable[..., Path], tmp_path: Path, mount: Callable[[Path, str], Path]
) -> None:
    folder = mount(tmp_path / "few", "size=20m,nr_inodes=40")
    workload = COMMAND.replace("echo value={x}", "for i in 1 2 3 4 5; do echo > f$i || exit 1; done; echo value={x}")
    done = tunegym("run", write("scenario.toml", SCENARIO.format(workload=workload, slots=1)), "--output", folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (results,) = assert_sound(folder, complete=False).values()
    assert {trial.status for trial in results.trials} == {"measured"}
