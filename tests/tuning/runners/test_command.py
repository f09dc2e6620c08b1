from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tunegym.core.errors import RunnerError
from tunegym.core.processes import marked
from tunegym.tuning.model.trial import CommandJob, JobHandle, JobResult
from tunegym.tuning.runners.local import LocalRunner

PYTHON = sys.executable

# A child that ignores SIGTERM, in another session, whose parent has ended.
STUBBORN_ORPHAN = "(trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' &)"


KEEPS_FORKING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    while True:
        if os.fork() == 0:
            time.sleep(0.2)
            os._exit(0)
        time.sleep(0.001)
time.sleep(1000)
"""


def run(runner: LocalRunner, folder: Path, text: str, **options: Any) -> JobResult:
    return runner.run(CommandJob("1", str(folder), text, **options), lambda *_: None)


def python(code: str, folder: Path) -> str:
    script = folder.parent / "script.py"
    script.write_text(code)
    return f"exec {PYTHON} {script}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "trial"


def nothing_left(token: str) -> bool:
    """Nothing but the launcher, which the runner keeps."""
    return len(marked(token)) == len(marked(f"{token}/launcher"))


def in_thread(runner: LocalRunner, job: CommandJob) -> tuple[threading.Thread, list[JobResult]]:
    results: list[JobResult] = []
    thread = threading.Thread(target=lambda: results.append(runner.run(job, lambda *_: None)))
    thread.start()
    return thread, results


def test_output(runner: LocalRunner, folder: Path, wait_until: Callable) -> None:
    """It is there while the command runs, however much it is; junk is shown as printable text; stdin is empty."""
    thread, _ = in_thread(runner, CommandJob("1", str(folder), "echo early; while [ ! -e go ]; do sleep 0.02; done"))
    wait_until(lambda: (folder / "stdout.txt").exists() and (folder / "stdout.txt").read_text() == "early\n")
    (folder / "go").touch()
    thread.join(60)
    assert not thread.is_alive()
    error = run(runner, folder, "cat; printf '\\377\\000\\033[31m\\n' >&2; exit 3").error or ""
    assert error.startswith("exited with 3: ")
    assert error.isprintable()
    assert run(runner, folder, "head -c 10000000 /dev/zero").error is None
    assert (folder / "stdout.txt").stat().st_size == 10_000_000


@pytest.mark.parametrize(
    ("text", "shell", "code", "reason"),
    [
        ("false\ntrue", "sh", 1, "exited with 1"),
        ("false | true", "sh", 0, None),  # as documented: dash has no pipefail
        ("false || true", None, 0, None),
        (
            "yes | head -n 1",
            None,
            141,
            "exited with 141 (SIGPIPE: the next stage of a pipe ended first)",
        ),
        ("nosuch", None, 127, "exited with 127: bash: line 1: nosuch: command not found"),
        ("./plain", None, 4, "exited with 4"),  # a script without #!
        ("test 1 = 2", None, 1, "exited with 1"),  # this one and those above it that are only words need no shell
        ("cd ..", None, 0, None),
    ],
)
def test_failure_is_contagious(
    runner: LocalRunner, folder: Path, text: str, shell: str | None, code: int, reason: str | None
) -> None:
    setup = "echo exit 4 > plain; chmod +x plain"
    result = run(runner, folder, text, setup=setup, shell=shell, timeout_s=60)
    assert (result.ending, result.exit_code, result.error) == ("exited", code, reason)
    assert run(runner, folder, "true", setup="false | cat; true").error == "setup exited with 1"


def test_a_reason_has_the_first_line_of_an_error(runner: LocalRunner, folder: Path) -> None:
    """And the last line. A command that is only words knows its folder."""
    text = "(echo warming up; printf 'x:\tinvalid  option\n'; yes noise | head -n 90000; echo see --help) >&2; exit 2"
    assert run(runner, folder, text, shell="sh").error == "exited with 2: x: invalid option ... see --help"
    assert run(runner, folder, "printenv PWD").error is None
    assert (folder / "stdout.txt").read_text().strip() == str(folder)


@pytest.mark.parametrize(
    "text",
    [
        "sleep 1000 &",
        "setsid sleep 1000 &",
        "(setsid sleep 1000 &)",
        "env -i sleep 1000 &",
        "nohup sleep 1000 & exit 0",
        pytest.param(STUBBORN_ORPHAN, marks=pytest.mark.slow),
    ],
)
def test_background_processes_are_ended(runner: LocalRunner, token: str, folder: Path, text: str) -> None:
    result = run(runner, folder, text)
    assert (result.ending, result.exit_code, result.error) == ("exited", 0, None)
    assert nothing_left(token)
    assert not _cwd_users(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ignores SIGTERM", "keeps forking"])
def test_timeout_of_a_stubborn_tree(runner: LocalRunner, token: str, folder: Path, kind: str) -> None:
    stubborn = f"trap '' TERM; {STUBBORN_ORPHAN}; while :; do sleep 0.05; done"
    text = stubborn if kind == "ignores SIGTERM" else python(KEEPS_FORKING, folder)
    assert run(runner, folder, text, timeout_s=0.5).ending == "timed_out"
    assert nothing_left(token)


def test_timeout_finds_descendants_without_the_mark(runner: LocalRunner, folder: Path) -> None:
    text = "setsid env -i sh -c 'sleep 1000; true' & wait"
    assert run(runner, folder, text, timeout_s=0.3).ending == "timed_out"
    assert not _cwd_users(folder)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("true", {"timeout_s": 1e300}, ("exited", None)),
        ("echo > ran", {"setup": "sleep 1000", "timeout_s": 0.2}, ("timed_out", "setup timed out")),
        ("sleep 1000", {"timeout_s": 0.2}, ("timed_out", None)),
        ("exit 3", {"teardown": "echo > torn; exit 4"}, ("exited", "exited with 3; teardown exited with 4")),
        ("true", {"teardown": "echo > torn; sleep 1000", "timeout_s": 3.0}, ("exited", "teardown timed out")),
    ],
)
def test_timeouts_and_failures_of_parts(
    runner: LocalRunner, folder: Path, text: str, options: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    result = run(runner, folder, text, **{"teardown": "echo > torn", **options})
    assert (result.ending, result.error) == expected
    assert not (folder / "ran").exists()
    assert (folder / "torn").exists()


def test_setup_may_start_a_server(runner: LocalRunner, token: str, folder: Path) -> None:
    result = run(
        runner,
        folder,
        "kill -0 $(cat pid)",
        setup="setsid sleep 1000 & echo $! > pid",
        teardown="kill -0 $(cat pid)",
    )
    assert (result.exit_code, result.error) == (0, None)
    assert nothing_left(token)


def test_teardown_runs_on_interrupt(runner: LocalRunner, folder: Path) -> None:
    job = CommandJob("1", str(folder), "sleep 1000", teardown="echo > torn")
    stops = iter([runner.stop])  # once, at the command's start: a second one would cut the teardown short
    result = runner.run(job, lambda *_: next(stops, lambda: None)())
    assert result.ending == "interrupted"
    assert (folder / "torn").exists()


def test_a_long_teardown_that_is_interrupted_leaves_the_trial_open(
    runner: LocalRunner, folder: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable
) -> None:
    monkeypatch.setattr("tunegym.tuning.runners.command.INTERRUPTED_TEARDOWN_S", 0.2)
    job = CommandJob("1", str(folder), "echo value=1", teardown="echo > torn; sleep 1000")
    thread, results = in_thread(runner, job)
    wait_until((folder / "torn").exists)
    runner.stop()
    thread.join(60)
    assert [result.ending for result in results] == ["interrupted"]


def test_memory_and_time_are_the_commands_own(runner: LocalRunner, folder: Path) -> None:
    ballast = bytearray(os.urandom(1)) * (200 << 20)
    small = runner.run(CommandJob("1", str(folder), "true", measures_memory=True), lambda _: None)
    large = run(runner, folder, f"{PYTHON} -c 'x = bytearray(b\"1\") * (100 << 20); sum(range(10**6))'")
    assert run(runner, folder, "true").max_rss_mb is None  # never that of the process that starts it
    assert 0 < (small.max_rss_mb or 0) < 4 < (large.max_rss_mb or 0) < len(ballast) >> 20
    assert (large.cpu_s or 0) > 0


def test_folders(runner: LocalRunner, folder: Path, tmp_path: Path) -> None:
    """Read-only folders of an earlier attempt are removed; one that can't be made is an error with a hint."""
    assert run(runner, folder, "mkdir -p a/b; touch a/b/c; chmod 555 a/b a").exit_code == 0
    assert run(runner, folder, "ls").exit_code == 0
    assert not (folder / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RunnerError) as caught:
        run(runner, tmp_path / "file" / "trial", "true")
    assert caught.value.hint


def test_a_command_that_can_not_be_started_fails(runner: LocalRunner, folder: Path) -> None:
    assert "can't be started" in (run(runner, folder, "true", env={"A": "x\0y"}).error or "")
    assert "can't be started" in (run(runner, folder, "true " + "x" * 3_000_000).error or "")


def test_a_failing_started_ends_the_command(runner: LocalRunner, token: str, folder: Path) -> None:
    def refuse(handle: JobHandle) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        runner.run(CommandJob("1", str(folder), "sleep 1000"), refuse)
    assert nothing_left(token)


def test_a_killed_launcher_is_replaced(runner: LocalRunner, token: str, folder: Path) -> None:
    assert run(runner, folder, "true").exit_code == 0
    for launcher in marked(f"{token}/launcher"):  # either of its two processes
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher, signal.SIGKILL)
        time.sleep(0.05)
        assert run(runner, folder, "true").exit_code == 0


def test_no_descriptors_leak(runner: LocalRunner, folder: Path) -> None:
    run(runner, folder, "true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run(runner, folder, "sleep 1000 &")
        run(runner, folder, "sleep 1000", timeout_s=0.05)
    assert len(os.listdir("/proc/self/fd")) == before
    run(runner, folder, "ls -l /proc/self/fd | wc -l")
    assert int((folder / "stdout.txt").read_text()) <= 6


def _cwd_users(folder: Path) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(folder)]


def test_a_job_that_kills_its_launcher_is_a_failure(runner: LocalRunner, folder: Path) -> None:
    job = CommandJob("1", str(folder), "kill -9 $PPID; sleep 0.2")
    error = runner.run(job, lambda *_: None).error
    assert error is not None
    assert "its exit code is unknown" in error
    assert runner.run(CommandJob("2", str(folder), "true"), lambda *_: None).error is None
