from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tunegym.core.errors import StoreError, StoreLockedError
from tunegym.core.processes import process_start_time
from tunegym.tuning.stores import journal as lock_module
from tunegym.tuning.stores.journal import LOCK, STALE_AFTER_S, WriterLock, living_writer
from tunegym.tuning.stores.trials import JournalStore

Journals = Callable[..., JournalStore]

WRITER = """
import sys
from pathlib import Path
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.stores.records import Head, SessionRecord

head = Head("e", "token", 1, "random_search", {"x": {"values": [1, 2, 3]}}, {}, ["score"])
store = JournalStore(Path(sys.argv[1]), head, SessionRecord("f"))
store.open(0, {}, {"x": 2})
print("ready", flush=True)
sys.stdin.readline()
"""


def foreign(folder: Path, heartbeat: float) -> Path:
    """A lock that a process of another host wrote."""
    holder = {"host": "elsewhere", "pid": os.getpid(), "start_time": "1", "heartbeat": heartbeat, "token": "t"}
    folder.mkdir(exist_ok=True)
    (folder / LOCK).write_bytes(orjson.dumps(holder))
    return folder


def test_second_writer_waits_for_the_death_of_the_first(journal: Journals, tmp_path: Path) -> None:
    """A living one is named and left alone; a dead one's lock is taken over, also while it is a zombie."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        before = (tmp_path / "journal.jsonl").read_bytes()
        with pytest.raises(StoreLockedError, match=f"process {writer.pid} on {socket.gethostname()}"):
            journal(tmp_path)
        assert (tmp_path / "journal.jsonl").read_bytes() == before
        os.kill(writer.pid, signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        assert (tmp_path / LOCK).exists()
        assert living_writer(tmp_path) is None
        store = journal(tmp_path)
        assert [(trial.number, dict(trial.action)) for trial in store.open_trials()] == [(1, {"x": 2})]
        assert living_writer(tmp_path) is not None


def test_reused_pid_is_another_process(journal: Journals, tmp_path: Path) -> None:
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "start_time": "1", "heartbeat": time.time()}
    assert process_start_time(os.getpid()) != "1"
    (tmp_path / LOCK).write_bytes(orjson.dumps(holder))
    journal(tmp_path)


def test_writer_on_another_host_is_alive_while_its_heart_beats(journal: Journals, tmp_path: Path) -> None:
    with pytest.raises(StoreLockedError, match="on elsewhere"):
        journal(foreign(tmp_path, time.time() - STALE_AFTER_S / 2))
    journal(foreign(tmp_path, time.time() - STALE_AFTER_S - 1))


def read(path: Path) -> dict[str, Any]:
    return orjson.loads(path.read_bytes())


def test_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when it is time to, and often enough not to be taken for dead."""
    assert lock_module.HEARTBEAT_S * 3 < STALE_AFTER_S
    lock = WriterLock(tmp_path)
    first = read(tmp_path / LOCK)
    lock.beat()
    assert read(tmp_path / LOCK) == first
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.0)
    lock.beat()
    later = read(tmp_path / LOCK)
    assert later.pop("heartbeat") > first.pop("heartbeat")
    assert later == first


def test_lost_lock_is_noticed_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody took us for dead: we say so, and the lock stays theirs."""
    lock = WriterLock(tmp_path)
    foreign(tmp_path, time.time())
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.0)
    with pytest.raises(StoreError, match=r"taken over by process \d+ on elsewhere"):
        lock.beat()
    lock.release()
    assert read(tmp_path / LOCK)["host"] == "elsewhere"
