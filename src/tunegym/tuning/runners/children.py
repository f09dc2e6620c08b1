"""A child process: waited for by event, and reaped for what it used."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunegym.core.errors import RunnerError
from tunegym.core.processes import process_handle
from tunegym.tuning.model.job import Ending
from tunegym.tuning.runners.processes import HAS_PROC, start_time


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
            return "ended, and nobody knows how, as the process that had started it was killed"
        if self.code >= 0:
            return f"exited with {self.code}"
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"


UNKNOWN = Exit(1, 0.0, 0)
"""Whoever waited for it was killed."""


class Child:
    """A process that we started, until it is reaped. Its pid is nobody else's before that.

    Args:
        pid: of the process.
        popen: the object that it was started with, if any.
        reap: for a process that is a child of another one of ours: has it reaped there, once it has ended;
            returns wait status, CPU seconds and peak memory in KB.
    """

    def __init__(
        self,
        pid: int,
        popen: subprocess.Popen[bytes] | None = None,
        reap: Callable[[int], tuple[int, float, int] | None] | None = None,
    ) -> None:
        self.pid = pid
        self._reap_elsewhere = reap
        self.start = start_time(pid) or ""
        self._popen = popen
        self._pidfd = os.pidfd_open(pid) if HAS_PROC else -1
        self._exit: Exit | None = None

    @property
    def handle(self) -> dict[str, Any]:
        """Names the process for a later session, as a ``JobHandle``."""
        return process_handle(self.pid, self.start)

    @property
    def pidfd(self) -> int:
        """Readable once the process has ended; -1 where the system has no such thing."""
        return self._pidfd

    def wait(self, stop_fd: int, deadline: float | None) -> Ending:
        """Wait until the process has exited, ``stop_fd`` is readable, or the (monotonic) deadline is over."""
        if self._pidfd < 0:
            return self._wait_by_asking(stop_fd, deadline)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.register(stop_fd, select.POLLIN)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            ready = [fd for fd, _ in poll.poll(milliseconds(left))]
            if self._pidfd in ready:
                return "exited"
            if ready:
                return "interrupted"
            if left is not None and left <= 0:
                return "timed_out"

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        if self._pidfd < 0:
            return self._exit is not None or self._reap(os.WNOHANG)
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def reap(self) -> Exit:
        """Wait for the end, and take notice of it. Calling it twice is fine."""
        if self._exit is None and self._reap_elsewhere is not None:
            select.select([self._pidfd], [], [])
            seen = self._reap_elsewhere(self.pid)
            self._exit = UNKNOWN if seen is None else Exit(os.waitstatus_to_exitcode(seen[0]), *seen[1:])
        elif self._exit is None:
            self._reap(0)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        assert self._exit is not None
        return self._exit

    def _reap(self, flags: int) -> bool:
        try:
            pid, status, usage = os.wait4(self.pid, flags)
        except ChildProcessError as error:
            raise RunnerError(
                f"process {self.pid} was waited for by somebody else",
                hint="don't ignore SIGCHLD or wait for any child in the process that runs tunegym",
            ) from error
        if pid == 0:
            return False
        code = os.waitstatus_to_exitcode(status)
        self._exit = Exit(code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
        if self._popen is not None:
            self._popen.returncode = code  # or it would wait, too, and complain
        return True

    def _wait_by_asking(self, stop_fd: int, deadline: float | None) -> Ending:
        while not self.has_ended():
            if select.select([stop_fd], [], [], 0.01)[0]:
                return "interrupted"
            if deadline is not None and time.monotonic() >= deadline:
                return "timed_out"
        return "exited"


LONGEST_MS = 2**31 - 1


def milliseconds(seconds: float | None) -> int | None:
    """A time to wait as ``poll`` wants it; less than asked for only where that is more than it can take."""
    return None if seconds is None else max(0, min(math.ceil(seconds * 1000), LONGEST_MS))
