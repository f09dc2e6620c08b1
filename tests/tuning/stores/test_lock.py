from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from tests.conftest import MISSING
from tests.tuning.stores.conftest import head

from tunegym.app import run
from tunegym.core.errors import StoreError, StoreLockedError
from tunegym.core.processes import boot_id, process_start_time
from tunegym.tuning.stores import journal as lock_module
from tunegym.tuning.stores.journal import LOCK, STALE_AFTER_S, WriterLock, living_writer
from tunegym.tuning.stores.trials import JournalStore

Journals = Callable[..., JournalStore]

WRITER = """
import sys
from pathlib import Path
import msgspec
from tunegym.tuning.model.head import Head
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.stores.records import SessionRecord

head = msgspec.json.decode(sys.argv[2], type=Head)
store = JournalStore(Path(sys.argv[1]), head, SessionRecord("f"))
store.open(0, {}, {"x": 2})
print("ready", flush=True)
sys.stdin.readline()
"""


def test_second_writer_waits_for_the_death_of_the_first(journal: Journals, tmp_path: Path) -> None:
    """A living one is named and left alone; a dead one's lock is taken over, also while it is a zombie."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), msgspec.json.encode(head()).decode()]
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


HERE, _, NAMESPACE = boot_id().partition("/")
OURS = process_start_time(os.getpid())


@pytest.mark.parametrize(
    ("boot", "start_time", "age_s", "lives"),
    [
        (boot_id(), OURS, 1000.0, True),  # its process lives, whatever its heart does
        (boot_id(), "1", 1.0, False),  # another process has its pid now
        (f"{HERE}/{NAMESPACE}0", OURS, STALE_AFTER_S / 2, True),  # in another container of this kernel
        (f"{HERE}/{NAMESPACE}0", OURS, STALE_AFTER_S + 1, False),
        ("before/1", OURS, 1.0, False),  # this host was restarted
        ("elsewhere", OURS, STALE_AFTER_S / 2, True),
        ("elsewhere", OURS, STALE_AFTER_S + 1, False),
    ],
    ids=["here", "another", "container", "stale container", "restarted", "elsewhere", "stale elsewhere"],
)
def test_a_writer_lives(tmp_path: Path, boot: str, start_time: str, age_s: float, lives: bool) -> None:
    """By its process within our boot and pid namespace, and by its heartbeat elsewhere."""
    host = boot if boot == "elsewhere" else socket.gethostname()
    holder = {"host": host, "boot": boot, "pid": os.getpid(), "start_time": start_time, "token": "t"}
    (tmp_path / LOCK).write_bytes(orjson.dumps({**holder, "heartbeat": time.time() - age_s}))
    assert (living_writer(tmp_path) is not None) == lives


def test_writer_in_another_container(journal: Journals, tmp_path: Path) -> None:
    """Its pid means nothing here: it lives while its heart beats."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip(f"{MISSING}the right to unshare a pid namespace")
    command = [*apart, sys.executable, "-c", WRITER, str(tmp_path), msgspec.json.encode(head()).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        with pytest.raises(StoreLockedError, match=f"on {socket.gethostname()}"):
            journal(tmp_path)
        writer.kill()
    holder = read(tmp_path / LOCK)
    assert process_start_time(holder["pid"]) != holder["start_time"]
    (tmp_path / LOCK).write_bytes(orjson.dumps({**holder, "heartbeat": time.time() - STALE_AFTER_S - 1}))
    journal(tmp_path)


def test_the_lock_of_a_run_beats_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setattr(run, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.0)
    with run.locked(tmp_path):
        first = read(tmp_path / LOCK)["heartbeat"]
        wait_until(lambda: read(tmp_path / LOCK)["heartbeat"] > first)
    assert not (tmp_path / LOCK).exists()


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
    holder = {
        "host": "elsewhere",
        "boot": "another",
        "pid": os.getpid(),
        "start_time": "1",
        "heartbeat": time.time(),
        "token": "t",
    }
    (tmp_path / LOCK).write_bytes(orjson.dumps(holder))
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.0)
    with pytest.raises(StoreError, match=r"taken over by process \d+ on elsewhere"):
        lock.beat()
    lock.release()
    assert read(tmp_path / LOCK)["host"] == "elsewhere"
