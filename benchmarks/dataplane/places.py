"""Where the planes of a benchmark are."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

END_S = 30.0
_HOST = b"tunegym.dataplane.hosts.server_main"


def memory() -> Path | None:
    """A file system in memory; None where there is none, and any other will have to do."""
    place = Path("/dev/shm")
    return place if os.access(place, os.W_OK) else None


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder of its own, in memory where there is such a file system; hosts in it end with it."""
    folder = Path(tempfile.mkdtemp(prefix="tunegym-", dir=memory()))
    try:
        yield folder / "plane"
    finally:
        kill_host(folder)
        shutil.rmtree(folder, ignore_errors=True)


def kill_host(folder: Path) -> None:
    """Kill what hosts planes below a folder, and see it dead."""
    until = time.monotonic() + END_S
    while (pids := hosts_of(folder)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def hosts_of(folder: Path) -> list[int]:
    """The processes that host planes in or below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if _HOST in command and command[command.index(_HOST) + 1].startswith(os.fsencode(folder)):
                    found.append(int(entry.name))
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
