from __future__ import annotations

import os
import subprocess
import sys
import threading

from tunegym.tuning.runners.processes import (
    MARK,
    alive,
    has_mark,
    is_thread,
    last_pid,
    marked,
    read_process,
    start_time,
)
from tunegym.tuning.runners.trees import PidMark, Tree, end_tree, left_behind


def test_start_time_of_a_process_with_an_odd_name(tmp_path: object) -> None:
    odd = f"{tmp_path}/a) R 1 (b"
    os.symlink("/bin/sleep", odd)
    process = subprocess.Popen([odd, "1000"])
    try:
        found = read_process(process.pid)
        assert found is not None
        assert found.parent == os.getpid()
        assert start_time(process.pid) == found.start
        assert alive(process.pid, found.start)
        assert not alive(process.pid, found.start + "1")
    finally:
        process.kill()
    subprocess.run(["sleep", "0.05"])
    assert not alive(process.pid, found.start)  # dead, though not waited for
    process.wait()
    assert start_time(process.pid) is None


def test_marks_are_paths(token: str) -> None:
    process = subprocess.Popen(["sleep", "1000"], env={MARK: f"{token}/17/command"})
    try:
        for marker in (token, f"{token}/17", f"{token}/17/command"):
            assert marked(marker) == [process.pid]
            assert marked(marker, process.pid - 1) == [process.pid]
        for marker in (token[:-1], f"{token}/1", f"{token}/17/command/x"):
            assert not has_mark(process.pid, marker)
        assert marked(token, newer_than_pid=process.pid) == []
    finally:
        process.kill()
        process.wait()


def test_a_thread_is_not_a_process() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    assert thread.native_id is not None
    assert is_thread(thread.native_id)
    assert not is_thread(os.getpid())
    event.set()
    thread.join()


def test_a_process_whose_first_thread_ended_is_found(token: str) -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={MARK: f"{token}/1"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    start = start_time(process.pid)
    assert start is not None
    subprocess.run(["sleep", "0.1"])
    assert alive(process.pid, start)
    assert end_tree(Tree(f"{token}/1", ((process.pid, start),)), grace_s=0.5) == 1
    process.wait(60)
    process.stdout.close()


def test_left_behind_looks_past_many_pids(token: str) -> None:
    mark = PidMark.now()
    assert not left_behind(Tree(token), mark)
    process = subprocess.Popen(["sleep", "1000"], env={MARK: f"{token}/1"})
    try:
        subprocess.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; " * 8])
        assert last_pid() - mark.pid > 64 or last_pid() < mark.pid
        assert left_behind(Tree(token), mark)
        assert left_behind(Tree(token), PidMark(mark.pid, mark.at - 1e6))  # too long ago to trust the counter
        assert left_behind(Tree(token), PidMark(2**22, mark.at))  # the counter started again
        assert not left_behind(Tree(token, spared=frozenset({process.pid})), mark)
    finally:
        process.kill()
        process.wait()


def test_a_spared_process_goes_on(token: str) -> None:
    code = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); time.sleep(1000)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARK: token}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    start = start_time(process.pid)
    assert start is not None
    tree = Tree(token, ((process.pid, start),), frozenset({process.pid}))
    assert end_tree(tree) == 1
    assert alive(process.pid, start)
    assert marked(token) == [process.pid]
    assert child != process.pid
    assert end_tree(Tree(token, ((process.pid, start),))) == 1
    process.wait(60)
    process.stdout.close()
