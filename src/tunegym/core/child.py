"""Child processes: how every Python child is started, waited for, and reaped.

``start_python`` is the one way to start a Python child. The child calls ``module:function`` in a new session (a
Ctrl-C is for the driver), finds modules where this process finds them, and carries a marker (see ``core.processes``). A
pipe that this process holds is its lifeline: the kernel kills the child's process group when this process is gone, also
while it hangs. (A signal at the death of a parent would come at the end of the *thread* that started it.) A detached
child outlives this process instead.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from tunegym.core.errors import RunnerError
from tunegym.core.processes import GRACE_S, MARK, Tree, end_tree, process_handle, process_start_time

_MAIN = str(Path(__file__).with_name("child_main.py"))

Output: TypeAlias = int | IO[bytes]
"""A descriptor or file, or one of ``subprocess``'s DEVNULL and PIPE."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended, and what it and the children it waited for used.

    ``code`` is negative for a signal; ``max_rss_kb`` is the largest of any single process.
    """

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
        popen: the object that it was started with, if any.
        marker: what it carries, for ``end``.
        lifeline: our end of the pipe; closed when it is reaped.
        reap: for a process that is a child of another one of ours: has it reaped there, once it has ended; returns
            wait status, CPU seconds and peak memory in KB.
    """

    def __init__(
        self,
        pid: int,
        popen: subprocess.Popen[bytes] | None = None,
        marker: str = "",
        lifeline: int = -1,
        reap: Callable[[int], tuple[int, float, int] | None] | None = None,
    ) -> None:
        self.pid = pid
        self.popen = popen
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        """Readable once the process has ended; -1 where the system has no such thing."""
        self.start = process_start_time(pid) or ""
        self.tree = Tree(marker, ((pid, self.start),))
        self._lifeline = lifeline
        self._reap_elsewhere = reap
        self._exit: Exit | None = None

    @property
    def handle(self) -> dict[str, Any]:
        """Names the process for a later session, as a ``JobHandle``."""
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
            # Without a pidfd we have to ask again and again.
            ready = [fd for fd, _ in poll.poll(10 if self.pidfd < 0 else milliseconds(left))]
            if self.pidfd in ready or (self.pidfd < 0 and self.has_ended()):
                return "exited"
            if ready:
                return "stopped"
            if left is not None and left <= 0:
                return "timed_out"

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        if self._exit is not None:
            return True
        if self.pidfd < 0:
            return process_start_time(self.pid) != self.start
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def reap(self) -> Exit:
        """Wait for the end, and take notice of it. Calling it twice is fine."""
        if self._exit is None and self._reap_elsewhere is not None:
            self.wait()
            seen = self._reap_elsewhere(self.pid)
            self._exit = UNKNOWN if seen is None else Exit(os.waitstatus_to_exitcode(seen[0]), *seen[1:])
        elif self._exit is None:
            self._exit = self._reap()
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

    def _reap(self) -> Exit:
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError as error:
            raise RunnerError(
                f"another part of the program waited for process {self.pid}",
                hint="don't ignore SIGCHLD or wait for any child in the process that runs tunegym",
            ) from error
        code = os.waitstatus_to_exitcode(status)
        if self.popen is not None:
            self.popen.returncode = code  # or it would wait, too, and complain
        return Exit(code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def start_python(
    target: str,
    *arguments: str,
    marker: str,
    env: Mapping[str, str] | None = None,
    fds: Sequence[int] = (),
    stdin: Output = subprocess.DEVNULL,
    stdout: Output = subprocess.DEVNULL,
    stderr: Output = subprocess.DEVNULL,
    lifeline: bool = True,
    detach: bool = False,
    cwd: str | None = None,
) -> Child:
    """Start a Python process that calls ``module:function`` with ``arguments``, which are texts for all to see.

    Args:
        target: what to call; the process exits with 1 and a traceback if it raises.
        arguments: what it is called with. Send secrets and large values through a descriptor.
        marker: what the process and all that it starts carry; empty for none.
        env: the whole environment; None for ours.
        fds: descriptors that it inherits, by the same numbers; what it starts does not.
        stdin: as for ``subprocess``; nothing unless given.
        stdout: as for ``subprocess``.
        stderr: as for ``subprocess``.
        lifeline: it is killed when this process is gone.
        detach: it outlives this process and is not its child: the ``Child`` that is returned exits at once. No
            lifeline then.
        cwd: the folder that it runs in.

    Raises:
        OSError: it can't be started.
        ValueError: no process can have this environment.
    """
    theirs, ours = os.pipe() if lifeline and not detach else (-1, -1)
    passed = [*fds, *([theirs] if theirs >= 0 else [])]
    path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
    setup = target, str(theirs), str(int(detach)), ",".join(map(str, passed)), path
    try:
        popen = subprocess.Popen(
            # -P: the folder of the script is not for importing from. -B: compiled files know their source's time to
            # the second only, so a module that is edited and run at once would be stale.
            [sys.executable, "-P", "-B", _MAIN, *setup, *arguments],
            pass_fds=passed,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            env=_environment(marker, env),
            cwd=cwd,
        )
    except BaseException:
        if ours >= 0:
            os.close(ours)
        raise
    finally:
        if theirs >= 0:
            os.close(theirs)
    return Child(popen.pid, popen, marker, ours)


def start_script(script: Path, *arguments: str, marker: str, fds: Sequence[int] = ()) -> Child:
    """Start a script that needs the standard library alone: without site packages it is small and starts quickly.

    It has no lifeline, so it must end when the other end of one of its descriptors is closed. Raises ``OSError``.
    """
    popen = subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), *arguments],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=_environment(marker, None),
    )
    return Child(popen.pid, popen, marker)


def _environment(marker: str, env: Mapping[str, str] | None) -> dict[str, str]:
    return {**(os.environ if env is None else env), **({MARK: marker} if marker else {})}


LONGEST_MS = 2**31 - 1


def milliseconds(seconds: float | None) -> int | None:
    """A time to wait as ``poll`` wants it; less than asked for only where that is more than it can take."""
    return None if seconds is None else max(0, min(math.ceil(seconds * 1000), LONGEST_MS))
