"""What a driver that was killed leaves: nothing of workers, and of commands nothing that can't be found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tunegym.core.processes import living_processes, marked, process_handle, process_start_time
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.runners.local import LocalRunner

pytestmark = [pytest.mark.slow, pytest.mark.invariant]

DRIVER = """
import json
import sys
from tunegym.tuning.model.trial import CallJob, CommandJob
from tunegym.tuning.runners.local import LocalRunner

token, folder, kind = sys.argv[1:]

def started(handle):
    with open(folder + "/pids", "a") as file:
        file.write(json.dumps(handle) + "\\n")

runner = LocalRunner(token)
if kind == "command":
    text = "(setsid sh -c 'sleep 1000; true' &); sleep 1000 & touch began; sleep 1000; true"
    job = CommandJob("1", folder + "/trial", text)
else:
    job = CallJob("1", folder + "/trial", "hogs:hog", {"path": folder + "/trial/began", "kind": kind}, (folder,))
runner.run(job, started)
"""

HOG = """
import re
def hog(path, kind):
    open(path, "w").close()
    if kind == "c":
        re.match("(a*)*b", "a" * 100)  # in C, and never lets go of the interpreter
    while True:
        pass
"""


@pytest.fixture
def kill_driver(tmp_path: Path, token: str, wait_until: Callable) -> Callable[[str], list[JobHandle]]:
    """Kill a driver while its job runs; returns the processes it wrote down."""

    def kill(kind: str) -> list[JobHandle]:
        (tmp_path / "hogs.py").write_text(HOG)
        pids = tmp_path / "pids"
        pids.touch()
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, token, str(tmp_path), kind])
        try:
            wait_until((tmp_path / "trial" / "began").exists)
            wait_until(lambda: pids.read_text().endswith("\n"))  # a job may begin before its driver has written it down
            if kind == "command":
                wait_until(lambda: len(marked(token)) >= 4)  # what it starts in the background has its own pace
            assert driver.poll() is None
        finally:
            driver.kill()
            driver.wait()
        return [json.loads(line) for line in pids.read_text().splitlines()]

    return kill


@pytest.mark.parametrize("kind", ["python", "c"])
def test_a_worker_ends_with_its_driver(kill_driver: Callable, token: str, wait_until: Callable, kind: str) -> None:
    handles = kill_driver(kind)
    wait_until(lambda: not living_processes(handles))
    wait_until(lambda: not marked(token))


def test_leftovers_of_a_command_are_ended(kill_driver: Callable, token: str) -> None:
    """By the marker alone."""
    kill_driver("command")
    assert len(marked(token)) >= 4
    runner = LocalRunner(token)
    assert runner.end_leftovers([]) >= 4
    assert not marked(token)
    assert runner.end_leftovers([]) == 0
    runner.close()


def test_strangers_are_left_alone(token: str) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], env={"TUNEGYM_MARK": f"{token}2/1"})
    try:
        start = process_start_time(stranger.pid)
        assert start is not None
        handles = [process_handle(*one) for one in ((stranger.pid, start + "1"), (os.getpid(), "1"), (1, "0"))]
        elsewhere = {**process_handle(stranger.pid, start), "boot": "another machine"}
        runner = LocalRunner(token)
        assert runner.end_leftovers([*handles, elsewhere, {"job": 17}]) == 0
        handle = process_handle(stranger.pid, start)
        assert living_processes([handle, {**handle, "boot": f"{handle['boot']}1"}]) == ((stranger.pid, start),)
        runner.close()
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait()
