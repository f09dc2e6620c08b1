"""Where the planes of a benchmark are."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

HOST = "tunegym.dataplane.hosts.server:main"


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


def hosts_of(folder: Path) -> list[int]:
    """The host processes of planes in or below a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if HOST in command and any(one.startswith(str(folder)) for one in command[command.index(HOST) :]):
            found.append(process.pid)
    return found


def kill_host(folder: Path) -> None:
    """Kill the hosts of planes in or below a folder."""
    for pid in hosts_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.kill()
            process.wait(10)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
