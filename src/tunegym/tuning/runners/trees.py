"""Ending a job's processes, all of them, whatever they do to stay."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tunegym.tuning.runners.processes import (
    HAS_PROC,
    Process,
    alive,
    having_mark,
    is_thread,
    last_pid,
    pids_between,
    process_table,
    read_process,
    wrap_seconds,
)

_log = logging.getLogger(__name__)

GRACE_S = 2.0

_KILL_ROUNDS = 50
_SCAN_ROUNDS = 20
_WRAP_S = wrap_seconds()


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

    def members(self, known: dict[int, str]) -> dict[int, Process]:
        """The living processes of the tree; ``known`` (pid to start time) were members before."""
        table = process_table()
        kin = _kin(table, self.spares_kin)
        starts = known | dict(self.roots)
        ours = {pid for pid, start in starts.items() if pid in table and table[pid].start == start}
        # A pid is not given out again while a group or session has its number, so as long as a root is
        # there (even dead, but not yet waited for), all that is in its session is ours.
        held = ours & dict(self.roots).keys()
        ours.update(pid for pid, p in table.items() if p.session in held or p.group in held)
        ours.update(having_mark([pid for pid in table if pid not in ours], self.marker))
        _add_descendants(ours, table, kin)
        return {
            pid: table[pid]
            for pid in ours
            if pid > 1 and pid in table and not table[pid].gone and pid not in kin and pid not in self.spared
        }

    def owns(self, pid: int) -> bool:
        """Whether a pid given out since the job began is a living process of the tree; cheap."""
        process = read_process(pid)
        if process is None or process.gone or pid in self.spared:
            return False
        roots = [root for root, _ in self.roots]
        near = process.session in roots or process.group in roots or process.parent in roots
        return (near or bool(having_mark([pid], self.marker))) and not is_thread(pid)


@dataclass(frozen=True, slots=True)
class PidMark:
    """A moment, told by the pid counter: processes that began after it have later pids."""

    pid: int
    at: float

    @staticmethod
    def now() -> PidMark:
        """This moment."""
        return PidMark(last_pid(), time.monotonic())


def left_behind(tree: Tree, since: PidMark) -> bool:
    """Whether a process of the tree that began after ``since`` is still there.

    Runs after every trial. Pids count up, so only the few given out since then are looked at.
    """
    if not HAS_PROC:
        return any(_group_exists(root) for root, _ in tree.roots)
    low = since.pid
    for _ in range(_SCAN_ROUNDS):
        last = last_pid()
        if last < since.pid or time.monotonic() - since.at > _WRAP_S:
            break
        if last == low:
            return False
        if any(tree.owns(pid) for pid in pids_between(low, last)):
            return True
        low = last  # what was forked while we looked is looked at too
    return bool(tree.members({}))


def end_tree(tree: Tree, grace_s: float = GRACE_S, hurry_fd: int | None = None) -> int:
    """End every process of the tree; returns how many there were.

    They get SIGTERM and ``grace_s`` seconds, then SIGKILL until nothing is left. ``hurry_fd`` ends the grace
    when it becomes readable. The children among them are left to be waited for by whoever started them; no
    root may have been waited for before the call, as its pid could then be somebody else's.
    """
    if not HAS_PROC:
        return _end_groups([root for root, _ in tree.roots if root not in tree.spared], grace_s)
    known: dict[int, str] = {}
    deadline = time.monotonic() + grace_s
    while members := tree.members(known):
        _send(signal.SIGTERM, [p for p in members.values() if known.get(p.pid) != p.start])
        known.update((p.pid, p.start) for p in members.values())
        if not _wait_gone(members.values(), deadline, hurry_fd) or time.monotonic() > deadline:
            break
    for _ in range(_KILL_ROUNDS):
        members = tree.members(known)
        if not members:
            return len(known)
        known.update((p.pid, p.start) for p in members.values())
        _kill(members.values(), tree.spared)
        _wait_gone(members.values(), time.monotonic() + 0.2, None)
    _log.warning("processes of %s can't be ended: %s", tree.marker, sorted(tree.members(known)))
    return len(known)


def _kin(table: dict[int, Process], descendants: bool) -> set[int]:
    """Ourselves, our ancestors, and our descendants if asked for: not to be touched."""
    me = os.getpid()
    kin = {me}
    if descendants:
        _add_descendants(kin, table, set())
    above = table.get(me)
    while above is not None and above.parent not in kin:
        kin.add(above.parent)
        above = table.get(above.parent)
    return kin


def _add_descendants(ours: set[int], table: dict[int, Process], kin: set[int]) -> None:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    waiting = list(ours - kin)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in ours and child not in kin:
                ours.add(child)
                waiting.append(child)


def _open(process: Process) -> int | None:
    """A pidfd of exactly this process; None if it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    current = read_process(process.pid)
    if current is None or current.start != process.start:
        os.close(pidfd)
        return None
    return pidfd


def _send(number: signal.Signals, processes: Iterable[Process]) -> None:
    for process in processes:
        pidfd = _open(process)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pidfd is not None:
                signal.pidfd_send_signal(pidfd, number)
            elif alive(process.pid, process.start):  # out of file descriptors
                os.kill(process.pid, number)
        if pidfd is not None:
            os.close(pidfd)


def _kill(processes: Iterable[Process], spared: Iterable[int]) -> None:
    """SIGKILL by group first: that hits all members at one instant, so none can fork in between."""
    untouchable = {process.group for pid in (os.getpid(), *spared) if (process := read_process(pid))}
    for process in processes:
        if process.group <= 1 or process.group in untouchable or read_process(process.pid) != process:
            continue
        untouchable.add(process.group)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.group, signal.SIGKILL)
    _send(signal.SIGKILL, processes)


def _wait_gone(processes: Iterable[Process], deadline: float, hurry_fd: int | None) -> bool:
    """Wait until all processes have ended; False if some have not by the deadline, or we were hurried."""
    poll = select.poll()
    pidfds = {pidfd for process in processes if (pidfd := _open(process)) is not None}
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    if hurry_fd is not None:
        poll.register(hurry_fd, select.POLLIN)
    try:
        while pidfds:
            left = deadline - time.monotonic()
            ready = {fd for fd, _ in poll.poll(math.ceil(left * 1000))} if left > 0 else set()
            if not ready or hurry_fd in ready:
                return False
            for pidfd in ready:
                poll.unregister(pidfd)
                pidfds.discard(pidfd)
                os.close(pidfd)
        return True
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _end_groups(groups: list[int], grace_s: float) -> int:
    """All that can be done without /proc."""
    ended = [group for group in groups if group > 1 and _group_exists(group)]
    for number, bound_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 1.0)):
        for group in ended:
            with contextlib.suppress(OSError):
                os.killpg(group, number)
        deadline = time.monotonic() + bound_s
        while any(_group_exists(group) for group in ended) and time.monotonic() < deadline:
            time.sleep(0.01)
    return len(ended)
