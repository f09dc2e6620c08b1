"""Processes are told apart, found by their marks, and ended with all that they started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunegym.core.processes import MARK, PidMark, Tree, end_tree, left_behind, marked, process_start_time, start_python


def test_start_time_of_a_process_with_an_odd_name(tmp_path: Path) -> None:
    odd = f"{tmp_path}/a) R 1 (b"
    os.symlink("/bin/sleep", odd)
    process = subprocess.Popen([odd, "1000"])
    try:
        assert process_start_time(process.pid) == process_start_time(process.pid) is not None
    finally:
        process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_start_time(process.pid) is None  # dead, though not waited for
    process.wait()
    assert process_start_time(process.pid) is None


def test_marks_are_paths(token: str) -> None:
    process = subprocess.Popen(["sleep", "1000"], env={MARK: f"{token}/17/command"})
    try:
        for marker in (token, f"{token}/17", f"{token}/17/command"):
            assert marked(marker) == [process.pid]
        for marker in (token[:-1], f"{token}/1", f"{token}/17/command/x"):
            assert marked(marker) == []
    finally:
        process.kill()
        process.wait()


def test_a_process_whose_first_thread_ended_is_found(token: str) -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={MARK: f"{token}/1"}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()
    start = process_start_time(process.pid)
    assert start is not None
    assert end_tree(Tree(f"{token}/1", ((process.pid, start),)), grace_s=0.5) == 1
    process.wait(60)
    process.stdout.close()


def test_left_behind_looks_past_many_pids(token: str) -> None:
    mark = PidMark()
    assert not left_behind(Tree(token), mark)
    process = subprocess.Popen(["sleep", "1000"], env={MARK: f"{token}/1"})
    try:
        subprocess.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; " * 8])
        assert left_behind(Tree(token), mark)
        assert left_behind(Tree(token), PidMark(mark.pid, mark.at - 1e6))  # too long ago to trust the counter
        assert left_behind(Tree(token), PidMark(2**22, mark.at))  # the counter started again
        assert not left_behind(Tree(token, spared=frozenset({process.pid})), mark)
    finally:
        process.kill()
        process.wait()


def test_a_child_calls_its_function_where_we_find_it(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greet.py").write_text(
        "import os, sys\n"
        "def hello(fd, name):\n"
        "    os.write(int(fd), name.encode() + b' ' + os.environ['TUNEGYM_MARK'].encode())\n"
        "    assert not os.get_inheritable(int(fd))\n"
        "    sys.exit(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    reading, writing = os.pipe()
    child = start_python("greet:hello", str(writing), "Ann", marker=f"{token}/x", fds=[writing])
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        assert answer.read() == f"Ann {token}/x".encode()
    assert child.wait(60) == "exited"
    assert child.end().describe() == "exited with 3"
    assert child.end().code == 3
