"""Processes: telling one from another that later got its pid, and ending all that belong together.

A pid with its start time names a process until the machine restarts; ``process_handle`` is that as plain JSON.
Processes of ours also carry a marker in their environment (``MARK``). Children inherit it whatever they do with
sessions and parents, so a ``Tree`` finds all of them, also after the process that started them is gone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_log = logging.getLogger(__name__)

MARK = "TUNEGYM_MARK"
"""The environment variable with the marker: a path such as ``<run>/<trial>/<part>``."""

GRACE_S = 2.0
"""How long processes have between SIGTERM and SIGKILL."""

_KILL_ROUNDS = 50
_SCAN_ROUNDS = 20
_SHORT_RANGE = 64
_WRAP_S = 5.0
_KERNEL_THREAD = 0x00200000


# one process ------------------------------------------------------------------------------------------


def process_start_time(pid: int) -> str | None:
    """When the process started, as an opaque text; None if there is no such living process.

    The same pid with another start time is another process. A zombie is not living.
    """
    found = _state(pid)
    return found.start if found is not None and found.lives else None


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
    found = _read("/proc/sys/kernel/random/boot_id")
    return found.decode().strip() if found else platform.node()


class _State(NamedTuple):
    parent: int
    start: str
    lives: bool


def _state(pid: int) -> _State | None:
    """What the system says of a process; None if there is none of this pid. Threads of the kernel are not living."""
    stat = _read(f"/proc/{pid}/stat")
    if stat:
        # The second field is the name in parentheses and may hold anything, parentheses too.
        fields = stat[stat.rindex(b")") + 2 :].split()
        # A process whose first thread has ended looks dead while its other threads go on.
        lives = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
        return _State(int(fields[1]), fields[19].decode(), lives and not int(fields[6]) & _KERNEL_THREAD)
    if Path("/proc/self").is_dir():
        return None
    try:
        process = psutil.Process(pid)
        return _State(process.ppid(), repr(process.create_time()), process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return None


def _read(path: str) -> bytes | None:
    """The content of a small file of /proc; None if it can't be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (several times for every trial)
            return file.readall()
    except OSError:
        return None


# marked processes -------------------------------------------------------------------------------------


def marked(marker: str) -> list[int]:
    """The processes that carry ``marker`` or a marker below it (``marker/...``)."""
    return _having_mark(psutil.pids(), marker)


def _having_mark(candidates: Iterable[int], marker: str) -> list[int]:
    answers = {pid: _has_mark(pid, marker) for pid in candidates}
    found = [pid for pid, answer in answers.items() if answer]
    unclear = [pid for pid, answer in answers.items() if answer is None and _lives(pid)]
    if unclear:
        time.sleep(0.002)
        found += [pid for pid in unclear if _has_mark(pid, marker)]
    return found


def _has_mark(pid: int, marker: str) -> bool | None:
    """None if it can't be told: the environment is empty, as it is for a moment while a process starts a program."""
    environ = _read(f"/proc/{pid}/environ")
    if not environ:
        return None if environ is not None else False
    _, found, rest = (b"\0" + environ).partition(f"\0{MARK}=".encode())
    return bool(found) and (rest.partition(b"\0")[0] + b"/").startswith(os.fsencode(marker) + b"/")


@dataclass(frozen=True, slots=True)
class Tree:
    """The processes of one job: roots, their sessions, groups and descendants, and all that carry the mark.

    Attributes:
        marker: what they carry in their environment, by itself or followed by ``/...``.
        roots: (pid, start time) of processes known to be ours.
        spared: pids of ours that must go on.
        spares_kin: leave out this process's own descendants.
    """

    marker: str
    roots: tuple[tuple[int, str], ...] = ()
    spared: frozenset[int] = frozenset()
    spares_kin: bool = False

    def members(self, known: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
        """The living processes of the tree; ``known`` were members before."""
        table = {pid: state for pid in psutil.pids() if (state := _state(pid)) is not None}
        children: dict[int, list[int]] = {}
        for pid, state in table.items():
            children.setdefault(state.parent, []).append(pid)
        # A pid is not given out again while a group or session has its number, so as long as a root is
        # there (even dead, but not yet waited for), all that is in its session is ours.
        roots = {pid for pid, start in self.roots if pid in table and table[pid].start == start}
        ours = roots | {process.pid for process in known if process.is_running()}
        ours |= {pid for pid in table if roots & _leaders(pid)}
        ours.update(_having_mark(table.keys() - ours, self.marker))
        kin = {os.getpid(), *(above.pid for above in psutil.Process().parents())}
        if self.spares_kin:
            kin |= _descendants({os.getpid()}, children, set())
        ours |= _descendants(ours - kin, children, kin)
        found: list[psutil.Process] = []
        for pid in (ours - kin - self.spared - {0, 1}) & table.keys():
            with contextlib.suppress(psutil.Error):
                if _lives(pid):
                    found.append(psutil.Process(pid))
        return found

    def owns(self, pid: int) -> bool:
        """Whether a pid given out since the job began is a living process of the tree; cheap."""
        state = _state(pid)
        if state is None or not state.lives or pid in self.spared:
            return False
        near = {root for root, _ in self.roots} & {state.parent, *_leaders(pid)}
        return bool(near or _having_mark([pid], self.marker)) and psutil.pid_exists(pid)  # which no thread is


def _descendants(roots: set[int], children: Mapping[int, list[int]], without: set[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), ()) if pid not in found and pid not in without]
        found.update(below)
        waiting += below
    return found


def _leaders(pid: int) -> set[int]:
    """The process's group and session."""
    try:
        return {os.getpgid(pid), os.getsid(pid)}
    except OSError:
        return set()


def _lives(pid: int) -> bool:
    state = _state(pid)
    return state is not None and state.lives


# what a job left --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PidMark:
    """A moment, told by the pid counter: processes that began after it have later pids."""

    pid: int
    at: float

    @staticmethod
    def now() -> PidMark:
        """This moment."""
        return PidMark(_last_pid(), time.monotonic())


def left_behind(tree: Tree, since: PidMark) -> bool:
    """Whether a process of the tree that began after ``since`` is still there.

    This runs after every trial. Pids count up, so only the few given out since then are looked at; where the counter
    can't be read, or may have gone round, all processes are.
    """
    low = since.pid
    for _ in range(_SCAN_ROUNDS):
        last = _last_pid()
        if last < since.pid or last == 0 or time.monotonic() - since.at > _WRAP_S:
            break
        if last == low:
            return False
        between = range(low + 1, last + 1)
        if any(map(tree.owns, between if len(between) <= _SHORT_RANGE else [p for p in psutil.pids() if p > low])):
            return True
        low = last  # what was forked while we looked is looked at too
    return bool(tree.members())


def _last_pid() -> int:
    """The pid given out last, 0 if unknown. Pids count up and start again at the bottom."""
    loads = _read("/proc/loadavg")
    return int(loads.rsplit(None, 1)[1]) if loads else 0


def end_tree(tree: Tree, grace_s: float = GRACE_S, hurry_fd: int | None = None) -> int:
    """End every process of the tree; returns how many there were.

    They get SIGTERM and ``grace_s`` seconds, then SIGKILL until nothing is left. ``hurry_fd`` ends the grace when it
    becomes readable. The children of this process among them are left to be waited for by their starter. No root may
    have been waited for before the call, as its pid could then name another process.
    """
    known: set[psutil.Process] = set()
    deadline = time.monotonic() + grace_s
    while members := tree.members(known):
        for process in members:
            if process not in known:
                _send(process, signal.SIGTERM)
        known.update(members)
        if not _wait_gone(members, deadline, hurry_fd) or time.monotonic() > deadline:
            break
    for _ in range(_KILL_ROUNDS):
        members = tree.members(known)
        if not members:
            return len(known)
        known.update(members)
        _kill(members, tree.spared)
        _wait_gone(members, time.monotonic() + 0.2, None)
    _log.warning("processes of %s can't be ended: %s", tree.marker, [process.pid for process in tree.members(known)])
    return len(known)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error, OSError):
        process.send_signal(number)


def _kill(members: Iterable[psutil.Process], spared: Iterable[int]) -> None:
    """SIGKILL by group first: that hits all members at one instant, so none can fork in between."""
    untouchable = {1}
    for pid in (os.getpid(), *spared):
        with contextlib.suppress(OSError):
            untouchable.add(os.getpgid(pid))
    for process in members:
        with contextlib.suppress(psutil.Error, OSError):
            group = os.getpgid(process.pid)
            if group not in untouchable and process.is_running():
                untouchable.add(group)
                os.killpg(group, signal.SIGKILL)
        _send(process, signal.SIGKILL)


def _wait_gone(members: Iterable[psutil.Process], deadline: float, hurry_fd: int | None) -> bool:
    """Wait until all processes have ended; False if some have not by the deadline, or we were hurried.

    By asking: waiting through psutil would reap children of ours.
    """
    poll = select.poll()
    if hurry_fd is not None:
        poll.register(hurry_fd, select.POLLIN)
    pause_ms = 1
    left = list(members)
    while left := [process for process in left if process.is_running() and _lives(process.pid)]:
        if time.monotonic() >= deadline or poll.poll(pause_ms):
            return False
        pause_ms = min(2 * pause_ms, 16)
    return True
