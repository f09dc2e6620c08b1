"""Processes: starting Python children, telling processes apart, and ending all that belong together.

A pid with its start time names a process within its ``boot_id``. Processes of ours also carry a marker in their
environment (``MARK``). Children inherit it whatever they do with sessions and parents, so a ``Tree`` finds all of them,
also after the process that started them is gone.

``start_python`` is the one way to start a Python child: in a new session (a Ctrl-C is for the driver), with our modules
and a marker. A pipe that we hold is its lifeline: the kernel kills the child's process group when we are gone, also
while the child hangs. (A signal at the death of a parent would come at the end of the *thread* that started it.)
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import math
import os
import pkgutil
import platform
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import psutil

from tunegym.core.errors import RunnerError

_log = logging.getLogger(__name__)

MARK = "TUNEGYM_MARK"
"""The environment variable with the marker: a path such as ``<run>/<trial>/<part>``."""

GRACE_S = 2.0
"""How long processes have between SIGTERM and SIGKILL."""

Output: TypeAlias = int | IO[bytes]
"""A descriptor or file, or one of ``subprocess``'s DEVNULL and PIPE."""

_KILL_ROUNDS = 50
_KERNEL_THREAD = 0x00200000
_F_SETSIG = 10


# one process ------------------------------------------------------------------------------------------


def process_start_time(pid: int) -> str | None:
    """When the process started, as an opaque text; None if there is no such living process. A zombie is not living."""
    found = _state(pid)
    return found.start if found is not None and found.lives else None


def process_handle(pid: int, start: str) -> dict[str, Any]:
    """Name a process as plain JSON, until the machine restarts."""
    return {"pid": pid, "start": start, "boot": boot_id()}


def living_processes(handles: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, str], ...]:
    """(pid, start time) of the processes among the handles that still run here."""
    found = []
    for handle in handles:
        pid, start = handle.get("pid"), handle.get("start")
        if isinstance(pid, int) and handle.get("boot") == boot_id() and start and process_start_time(pid) == start:
            found.append((pid, start))
    return tuple(found)


@functools.cache
def boot_id() -> str:
    """Names this machine from its start to its end, and our pid namespace: pids mean something only within both."""
    found = _read("/proc/sys/kernel/random/boot_id")
    boot = found.decode().strip() if found else platform.node()
    namespace = Path("/proc/self/ns/pid")
    return f"{boot}/{namespace.stat().st_ino}" if namespace.exists() else boot


class _State(NamedTuple):
    parent: int
    start: str
    lives: bool


def _state(pid: int) -> _State | None:
    """Parent, start and life of a process; None if there is none of this pid. Kernel threads are not living."""
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


# trees of processes -----------------------------------------------------------------------------------


def marked(marker: str, candidates: Iterable[int] | None = None) -> list[int]:
    """The processes that carry ``marker`` or a marker below it (``marker/...``); of all unless ``candidates``."""
    answers = {pid: _has_mark(pid, marker) for pid in (psutil.pids() if candidates is None else candidates)}
    unclear = [pid for pid, answer in answers.items() if answer is None and process_start_time(pid)]
    if unclear:
        time.sleep(0.002)
        answers |= {pid: _has_mark(pid, marker) for pid in unclear}
    return [pid for pid, answer in answers.items() if answer]


def _has_mark(pid: int, marker: str) -> bool | None:
    """None if it can't be told: the environment is empty, as it is for a moment while a process starts a program."""
    environ = _read(f"/proc/{pid}/environ")
    if not environ:
        return None if environ is not None else False
    _, found, rest = (b"\0" + environ).partition(f"\0{MARK}=".encode())
    return bool(found) and (rest.partition(b"\0")[0] + b"/").startswith(os.fsencode(marker) + b"/")


@dataclass(frozen=True, slots=True)
class Tree:
    """The processes of one job: roots, their sessions, groups and descendants, and all that carry the mark."""

    marker: str  # by itself or followed by /...
    roots: tuple[tuple[int, str], ...] = ()  # (pid, start time)
    spared: frozenset[int] = frozenset()  # pids of ours that must go on

    def members(self, known: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
        """The living processes of the tree; ``known`` were members before."""
        table = {pid: state for pid in psutil.pids() if (state := _state(pid)) is not None}
        children: dict[int, list[int]] = {}
        for pid, state in table.items():
            children.setdefault(state.parent, []).append(pid)
        kin = {os.getpid(), *(above.pid for above in psutil.Process().parents())}
        # A pid is not given out again while a group or session has its number, so as long as a root is
        # there (even dead, but not yet waited for), all that is in its session is ours.
        roots = {pid for pid, start in self.roots if pid in table and table[pid].start == start}
        ours = roots | {process.pid for process in known if process.is_running()}
        ours |= {pid for pid in table if roots & _leaders(pid)}
        ours.update(marked(self.marker, table.keys() - ours))
        waiting = list(ours - kin)
        while waiting:
            below = [pid for pid in children.get(waiting.pop(), ()) if pid not in ours and pid not in kin]
            ours.update(below)
            waiting += below
        found: list[psutil.Process] = []
        for pid in (ours - kin - self.spared - {0, 1}) & table.keys():
            with contextlib.suppress(psutil.Error):
                if process_start_time(pid):
                    found.append(psutil.Process(pid))
        return found

    def owns(self, pid: int) -> bool:
        """Whether a pid given out since the job began is a living process of the tree; cheap."""
        state = _state(pid)
        if state is None or not state.lives or pid in self.spared:
            return False
        near = {root for root, _ in self.roots} & {state.parent, *_leaders(pid)}
        return bool(near or marked(self.marker, [pid])) and psutil.pid_exists(pid)  # which no thread is


def _leaders(pid: int) -> set[int]:
    """The process's group and session."""
    try:
        return {os.getpgid(pid), os.getsid(pid)}
    except OSError:
        return set()


def _last_pid() -> int:
    """The pid that was given out last, 0 if unknown. Pids count up and start again at the bottom."""
    loads = _read("/proc/loadavg")
    return int(loads.rsplit(None, 1)[1]) if loads else 0


@dataclass(frozen=True, slots=True)
class PidMark:
    """A moment, told by the pid counter: processes that began after it have later pids."""

    pid: int = field(default_factory=_last_pid)
    at: float = field(default_factory=time.monotonic)


def left_behind(tree: Tree, since: PidMark) -> bool:
    """Whether a process of the tree that began after ``since`` is still there. This runs after every trial.

    Only the few pids given out since then are checked; if the counter may have gone round or moved far, all are.
    """
    low = since.pid
    while 0 < low <= (last := _last_pid()) <= low + 64 and time.monotonic() - since.at < 5.0:
        if last == low:
            return False
        if any(map(tree.owns, range(low + 1, last + 1))):
            return True
        low = last  # check what was forked meanwhile, too
    return bool(tree.members())


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
                with contextlib.suppress(psutil.Error, OSError):
                    process.terminate()
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


def end_leftovers(marker: str, handles: Iterable[Mapping[str, Any]], hurry_fd: int | None = None) -> int:
    """End what a killed driver left running here: all that has its marker or a handle; returns how many there were."""
    return end_tree(Tree(marker, living_processes(handles)), hurry_fd=hurry_fd)


def _kill(members: Iterable[psutil.Process], spared: Iterable[int]) -> None:
    """SIGKILL by group first: that hits all members at one instant, so none can fork in between."""
    untouchable = {1}.union(*(_leaders(pid) for pid in (os.getpid(), *spared)))
    for process in members:
        with contextlib.suppress(psutil.Error, OSError):
            group = os.getpgid(process.pid)
            if group not in untouchable and process.is_running():
                untouchable.add(group)
                os.killpg(group, signal.SIGKILL)
            process.kill()


def _wait_gone(members: Iterable[psutil.Process], deadline: float, hurry_fd: int | None) -> bool:
    """Wait until all have ended, without reaping; False at the deadline, or if hurried."""
    poll = select.poll()
    if hurry_fd is not None:
        poll.register(hurry_fd, select.POLLIN)
    pause_ms = 1
    left = list(members)
    while left := [process for process in left if process.is_running() and process_start_time(process.pid)]:
        if time.monotonic() >= deadline or poll.poll(pause_ms):
            return False
        pause_ms = min(2 * pause_ms, 16)
    return True


# children ---------------------------------------------------------------------------------------------


class Exit(NamedTuple):
    """How a child ended (``code`` is negative for a signal), and the usage of it and the children it waited for."""

    code: int
    cpu_s: float
    max_rss_kb: int

    def describe(self) -> str:
        """``exited with 3`` or ``killed by SIGSEGV``."""
        if self is UNKNOWN:
            return "ended, but its exit code is unknown: the process that had started it was killed"
        if self.code >= 0:
            return f"exited with {self.code}"
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"


UNKNOWN = Exit(1, 0.0, 0)
"""The process that should have reaped it was killed."""


class Child:
    """A process that we started, until it is reaped. Its pid names no other process before that.

    Args:
        pid: of the process.
        marker: carried by it and all that it starts.
        popen: the object that it was started with, if any.
        lifeline: our end of the pipe; closed when it is reaped.
        reap: reaps a child of another process of ours there, once it has ended.
    """

    def __init__(
        self,
        pid: int,
        marker: str = "",
        popen: subprocess.Popen[Any] | None = None,
        lifeline: int = -1,
        reap: Callable[[int], Exit] | None = None,
    ) -> None:
        self.pid = pid
        self.popen = popen
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        """Readable once the process has ended; -1 where the system has no such thing."""
        state = _state(pid)  # it may have ended already
        self.start = "" if state is None else state.start
        self.tree = Tree(marker, ((pid, self.start),))
        self._lifeline = lifeline
        self._reap = reap or self._reap_here
        self._exit: Exit | None = None

    @property
    def handle(self) -> dict[str, Any]:
        """A ``JobHandle`` for later sessions."""
        return process_handle(self.pid, self.start)

    def wait(self, timeout_s: float | None = None, *, stop_fd: int = -1) -> Literal["exited", "timed_out", "stopped"]:
        """Wait until the process has exited, the time is over, or ``stop_fd`` is readable."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        for fd in (self.pidfd, stop_fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            ready = [fd for fd, _ in poll.poll(10 if self.pidfd < 0 else milliseconds(left))]
            if self.pidfd in ready or (self.pidfd < 0 and self.has_ended()):
                return "exited"
            if ready:
                return "stopped"
            if left is not None and left <= 0:
                return "timed_out"

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._exit is not None or process_start_time(self.pid) != self.start

    def reap(self) -> Exit:
        """Wait for the end, and take notice of it. Calling it twice is fine."""
        if self._exit is None:
            self.wait()
            self._exit = self._reap(self.pid)
        for fd in (self.pidfd, self._lifeline):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self._lifeline = -1
        return self._exit

    def end(self, grace_s: float = GRACE_S, hurry_fd: int | None = None) -> Exit:
        """End the process and all that it started, and reap it. Calling it twice is fine."""
        if self._exit is None:
            end_tree(self.tree, grace_s, hurry_fd)
        return self.reap()

    def kill(self) -> None:
        """End everything now, but leave it to be reaped. May be called from a signal handler."""
        if self._exit is None:
            end_tree(self.tree, grace_s=0.0)

    def _reap_here(self, pid: int) -> Exit:
        try:
            _, status, usage = os.wait4(pid, 0)
        except ChildProcessError as error:
            hint = "don't ignore SIGCHLD or wait for any child in the process that runs tunegym"
            raise RunnerError(f"another part of the program waited for process {pid}", hint=hint) from error
        code = os.waitstatus_to_exitcode(status)
        if self.popen is not None:
            self.popen.returncode = code  # or it would wait, too, and complain
        return Exit(code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def milliseconds(seconds: float | None) -> int | None:
    """A time to wait as ``poll`` wants it; less than asked for only where that is more than it can take."""
    return None if seconds is None else max(0, min(math.ceil(seconds * 1000), 2**31 - 1))


def start_python(
    target: str,
    *arguments: str,
    marker: str,
    env: Mapping[str, str] | None = None,
    fds: Sequence[int] = (),
    stdin: Output = subprocess.DEVNULL,
    stdout: Output = subprocess.DEVNULL,
    stderr: Output = subprocess.DEVNULL,
    detach: bool = False,
) -> Child:
    """Start a Python process that calls a function; it exits with 1 and a traceback if the function raises.

    Args:
        target: ``module:function``.
        arguments: texts for all to see. Send secrets and large values through a descriptor.
        marker: carried by the process and all that it starts; empty for none.
        env: the whole environment; None for ours.
        fds: descriptors that it inherits, by the same numbers; its children don't.
        stdin: as for ``subprocess``; nothing unless given.
        stdout: as for ``subprocess``.
        stderr: as for ``subprocess``.
        detach: it outlives this process, in ``/``, and is not its child: the ``Child`` returned exits at once.

    Raises:
        OSError: it can't be started.
        ValueError: no process can have this environment.
    """
    theirs, ours = (-1, -1) if detach else os.pipe()
    passed = [*fds, theirs] if theirs >= 0 else fds
    path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
    setup = path, target, str(theirs), ",".join(map(str, passed))
    # -P: the working folder is not for importing from. -B: compiled files know their source's time to the second
    # only, so a module that is edited and run at once would be stale.
    command = [sys.executable, "-P", "-B", "-c", _BOOT, *setup, *arguments]
    try:
        popen = _popen(command, passed, marker, env, stdin=stdin, stdout=stdout, stderr=stderr)
    except BaseException:
        if ours >= 0:
            os.close(ours)
        raise
    finally:
        if theirs >= 0:
            os.close(theirs)
    return Child(popen.pid, marker, popen, ours)


def start_script(script: Path, *arguments: str, marker: str, fds: Sequence[int] = ()) -> Child:
    """Start a script that needs the standard library alone: without site packages it is small and starts quickly.

    It has no lifeline, so it must end when the other end of one of its descriptors is closed. Raises ``OSError``.
    """
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    popen = _popen([sys.executable, "-I", "-S", str(script), *arguments], fds, marker, None, **nothing)
    return Child(popen.pid, marker, popen)


def _popen(
    command: list[str], fds: Sequence[int], marker: str, env: Mapping[str, str] | None, **streams: Any
) -> subprocess.Popen[Any]:
    variables = {**(os.environ if env is None else env), **({MARK: marker} if marker else {})}
    return subprocess.Popen(command, pass_fds=fds, start_new_session=True, env=variables, **streams)


# inside a child ---------------------------------------------------------------------------------------

_BOOT = f"import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); from {__name__} import run_child; run_child()"


def run_child() -> None:
    """Set up a process that ``start_python`` started, and call its function."""
    _, _, target, lifeline, fds, *arguments = sys.argv
    for fd in filter(None, fds.split(",")):
        os.set_inheritable(int(fd), False)  # for us, not for what we start
    if lifeline != "-1":
        _end_with(int(lifeline))
    else:
        if os.fork():
            os._exit(0)
        os.chdir("/")
    pkgutil.resolve_name(target)(*arguments)


def _end_with(lifeline: int) -> None:
    """Have this process group killed when the driver dies, by the kernel on Linux, by a thread elsewhere."""

    def wait_for_end() -> None:
        os.read(lifeline, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if sys.platform != "linux":
        threading.Thread(target=wait_for_end, daemon=True).start()
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, _F_SETSIG, int(signal.SIGKILL))
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        wait_for_end()  # returns at once if the driver died before we asked to be told
