"""Telling one process from another that later got its pid."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KERNEL_THREAD = 0x00200000


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table.

    Attributes:
        start: when it started, in an opaque unit; with the pid, it names a process for good.
        gone: dead, and only waiting for its parent to take notice.
        kernel: a thread of the kernel itself.
    """

    pid: int
    parent: int
    group: int
    session: int
    start: str
    gone: bool
    kernel: bool


def read_process(pid: int) -> Process | None:
    """The process, dead ones that nobody waited for included; None if there is none of this pid."""
    stat = read_whole(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The second field is the name in parentheses and may hold anything, parentheses too.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=fields[19].decode(),
        # A process whose first thread has ended looks dead while its other threads go on.
        gone=fields[0] in (b"Z", b"X") and int(fields[17]) <= 1,
        kernel=bool(int(fields[6]) & _KERNEL_THREAD),
    )


def process_start_time(pid: int) -> str | None:
    """When the process started, as an opaque text; None if there is no such living process.

    The same pid with another start time is another process. A zombie is not living.
    """
    process = read_process(pid)
    if process is None:
        return None if Path("/proc/self").is_dir() else _by_ps(pid)
    return None if process.gone else process.start


def process_handle(pid: int, start: str) -> dict[str, Any]:
    """A process, named for good as plain JSON: it is found again until the machine restarts."""
    return {"pid": pid, "start": start, "boot": boot_id()}


def living_processes(handles: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, str], ...]:
    """(pid, start time) of the processes among the handles that still run on this machine."""
    found = []
    for handle in handles:
        pid, start = handle.get("pid"), handle.get("start")
        if isinstance(pid, int) and handle.get("boot") == boot_id() and start and process_start_time(pid) == start:
            found.append((pid, start))
    return tuple(found)


@functools.cache
def boot_id() -> str:
    """Names this machine from its start to its end: pids and start times mean something only within it."""
    found = read_whole("/proc/sys/kernel/random/boot_id")
    return found.decode().strip() if found else platform.node()


def _by_ps(pid: int) -> str | None:
    """For systems without /proc."""
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def read_whole(path: str) -> bytes | None:
    """A whole file of /proc; None if it can't be read."""
    try:  # plain calls: this runs several times for every trial
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(file, 65536)
        while content and len(content) % 4096 == 0 and (more := os.read(file, 65536)):
            content += more
    except OSError:
        return None
    else:
        return content
    finally:
        os.close(file)
