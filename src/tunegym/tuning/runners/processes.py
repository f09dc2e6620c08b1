"""Which processes there are, and which of them are ours: read from /proc, where there is one.

Ours are told from strangers by a marker in their environment, which children inherit whatever they do with
sessions and parents, or by pid and start time together. Without /proc nothing is found by marker, and only
process groups can be ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from tunegym.core.processes import Process, read_process, read_whole

MARK = "TUNEGYM_MARK"

HAS_PROC = Path("/proc/self/stat").exists() and hasattr(os, "pidfd_open")

# How far apart two readings of the pid counter may be for pids to be just counted up, instead of listed.
_SHORT_RANGE = 64


def process_table() -> dict[int, Process]:
    """Every process, by pid."""
    found = (read_process(pid) for pid in pids())
    return {process.pid: process for process in found if process is not None}


def pids(newer_than: int = 0) -> list[int]:
    """The pids above ``newer_than``."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 (quicker)
    except OSError:
        return []
    return [pid for name in names if name.isdigit() and (pid := int(name)) > newer_than]


def start_time(pid: int) -> str | None:
    """When the process started; None if there is none of this pid."""
    process = read_process(pid)
    return None if process is None else process.start


def alive(pid: int, start: str) -> bool:
    """Whether the process that once had this pid and start time is still running."""
    process = read_process(pid)
    return process is not None and process.start == start and not process.gone


def has_mark(pid: int, marker: str) -> bool | None:
    """Whether the process carries ``marker``, or a marker below it (``marker/...``).

    None if it can't be told: its environment is empty, as it is for a moment while it starts a program.
    """
    environ = read_whole(f"/proc/{pid}/environ")
    if not environ:
        return None if environ is not None else False
    _, found, rest = (b"\0" + environ).partition(f"\0{MARK}=".encode())
    return bool(found) and (rest.partition(b"\0")[0] + b"/").startswith(os.fsencode(marker) + b"/")


def marked(marker: str, newer_than_pid: int | None = None) -> list[int]:
    """The processes that carry ``marker`` or a marker below it; only those above a pid, if one is given."""
    return having_mark(pids(newer_than_pid or 0), marker)


def having_mark(candidates: Iterable[int], marker: str) -> list[int]:
    """Those of the candidates that carry ``marker`` or a marker below it."""
    found: list[int] = []
    unclear: list[int] = []
    for pid in candidates:
        answer = has_mark(pid, marker)
        if answer:
            found.append(pid)
        elif answer is None:
            unclear.append(pid)
    unclear = [pid for pid in unclear if _may_be_starting(pid)]
    if unclear:
        time.sleep(0.002)
        found += [pid for pid in unclear if has_mark(pid, marker)]
    return found


def last_pid() -> int:
    """The pid given out last. Pids count up and start again at the bottom."""
    loads = read_whole("/proc/loadavg")
    return int(loads.rsplit(None, 1)[1]) if loads else 0


def pids_between(low: int, high: int) -> Iterable[int]:
    """The pids above ``low``, up to at least ``high``; may hold some of threads, and some of nobody."""
    return range(low + 1, high + 1) if high - low <= _SHORT_RANGE else pids(low)


def is_thread(pid: int) -> bool:
    """Whether this is the number of a thread that is not a process."""
    status = read_whole(f"/proc/{pid}/status") or b""
    return f"\nTgid:\t{pid}\n".encode() not in status


def wrap_seconds() -> float:
    """A time in which the pid counter can't have gone all the way around and passed where it was."""
    highest = read_whole("/proc/sys/kernel/pid_max")
    return 60.0 if highest and int(highest) >= 1 << 20 else 5.0


def _may_be_starting(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and not process.gone and not process.kernel
