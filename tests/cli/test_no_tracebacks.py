"""Whatever a user gives a command, the answer is a message with a hint, never a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tunegym.app import run as module
from tunegym.app.resume import resume
from tunegym.cli.terminal import guarded

pytestmark = pytest.mark.slow  # every test starts the command anew, some of them ten times

Cli = Callable[..., subprocess.CompletedProcess[str]]

MINIMAL = 'name = "m"\n[[experiments]]\nname = "e"\nworkload = "command"\ncmd_args.command = "true"\n'


@pytest.fixture
def things(tmp_path: Path) -> Path:
    """A folder of things that are neither a scenario nor a run."""
    folder = tmp_path / "things"
    (folder / "empty folder").mkdir(parents=True)
    (folder / "empty.toml").touch()
    (folder / "binary.toml").write_bytes(os.urandom(64) + b"\xff\x00\xfe")
    (folder / "zeros.toml").write_bytes(bytes(100))
    (folder / "words.toml").write_text("these are just words\n")
    (folder / "run with a broken copy").mkdir()
    (folder / "run with a broken copy" / "scenario.toml").write_text("name = \n")
    (folder / "run with an odd copy").mkdir()
    (folder / "run with an odd copy" / "scenario.toml").write_text('scenario_dir = "/"\nexperiments = 3\n')
    (folder / "run without names").mkdir()
    (folder / "run without names" / "scenario.toml").write_text('scenario_dir = "/"\n[[experiments]]\nx = 1\n')
    (folder / "run of a broken journal").mkdir()
    (folder / "run of a broken journal" / "scenario.toml").write_text(f'scenario_dir = "{folder}"\n{MINIMAL}')
    (folder / "run of a broken journal" / "e").mkdir()
    (folder / "run of a broken journal" / "e" / "journal.jsonl").write_bytes(b"\x00\xff\nnot\na\njournal\n")
    os.mkfifo(folder / "pipe")
    return folder


SCENARIOS = ["missing.toml", "empty folder", "empty.toml", "binary.toml", "zeros.toml", "words.toml", "a\nb"]
RUNS = [
    *("missing", "empty folder", "words.toml", "run with a broken copy", "run with an odd copy"),
    *("run without names", "run of a broken journal"),
]


def assert_told(done: subprocess.CompletedProcess[str], codes: set[int]) -> None:
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_scenario(name: str, things: Path, tunegym: Cli) -> None:
    for command in ("verify", "run"):
        assert_told(tunegym(command, things / name), {2})
    assert not Path("results").exists()


@pytest.mark.parametrize("name", RUNS)
def test_no_run(name: str, things: Path, tunegym: Cli) -> None:
    for command in ("status", "resume", "report", "compare"):
        assert_told(tunegym(command, things / name), {1, 2})


def test_nowhere_to_write(things: Path, tunegym: Cli, write: Callable[..., Path]) -> None:
    path = write("minimal.toml", MINIMAL)
    for output in (things / "words.toml", things / "words.toml" / "below", Path("/proc/nowhere")):
        done = tunegym("run", path, "--output", output)
        assert_told(done, {1})
        assert str(output) in done.stderr
    assert_told(tunegym("init", things / "words.toml" / "below.toml"), {1})
    assert_told(tunegym("init", "/proc/nowhere/scenario.toml"), {1})


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        *((cause, "free some space, then resume") for cause in (errno.ENOSPC, errno.EDQUOT)),
        *((cause, "give yourself the right to write there") for cause in (errno.EACCES, errno.EPERM, errno.EROFS)),
    ],
)
def test_a_run_that_can_not_be_locked(
    cause: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(cause, os.strerror(cause))

    (tmp_path / "scenario.toml").write_text(f'scenario_dir = "{tmp_path}"\n{MINIMAL}')
    monkeypatch.setattr(module, "WriterLock", fail)
    assert guarded(lambda: resume(tmp_path)) == 1
    told = capsys.readouterr().err
    assert f"error: {tmp_path} can't be written: {os.strerror(cause)}\n" in told
    assert f"hint: {hint}" in told


def test_a_read_only_folder(
    tunegym: Cli, write: Callable[..., Path], tmp_path: Path, mount: Callable[[Path, str], Path]
) -> None:
    path = write("minimal.toml", MINIMAL)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):  # root may write anywhere but on a file system that is read-only
        mount(closed, "ro")
    assert_told(tunegym("run", path, "--output", closed), {1})
