"""Starting shell commands so that what they use is measured right."""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunegym.core.errors import RunnerError
from tunegym.tuning.runners.children import Child
from tunegym.tuning.runners.launcher_main import LENGTH, READY, REAPED, STARTED
from tunegym.tuning.runners.processes import HAS_PROC, MARK
from tunegym.tuning.runners.trees import Tree, end_tree

_MAIN = str(Path(__file__).with_name("launcher_main.py"))


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command for ``/bin/sh``.

    Attributes:
        out, err: file names in the folder; the same one for both is fine.
        env: variables on top of our own.
        marker: the mark it carries.
    """

    text: str
    folder: str
    out: str
    err: str
    env: Mapping[str, str]
    marker: str


@dataclass(frozen=True, slots=True)
class Started:
    """A running command.

    Attributes:
        begun: when it was started, by the monotonic clock: what we did before is no part of its duration.
        memory_is_own: whether its peak memory is its own, and not partly ours.
    """

    child: Child
    begun: float
    memory_is_own: bool


class LauncherKilledError(Exception):
    """Whenever a command was started, the process that started it was killed before it could say so."""

    def __init__(self) -> None:
        super().__init__("ended, and nobody knows how, as the process that had started it was killed, twice")


class _NeverReadyError(ConnectionError):
    """A launcher ended before it was ready."""


class Launcher:
    """Starts commands in sessions of their own, by way of a small process (see ``launcher_main``).

    Where no such process ever works it starts them directly. One that has worked and is killed is replaced: what a
    command kills by ``$PPID`` must not be us. Thread-safe.
    """

    def __init__(self, token: str) -> None:
        self._marker = f"{token}/launcher"
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: Child | None = None
        self._works = HAS_PROC
        self._was_ready = False
        self._retired = False

    def start(self, command: ShellCommand) -> Started:
        """The running command.

        Raises:
            OSError: it can't be started.
            LauncherKilledError: it was, but it seems to kill whoever starts it.
            ValueError: the text or the environment can't be given to any program.
        """
        environment = _environment(command)
        text = os.fsencode(command.text)
        if b"\0" in text:
            raise ValueError("a null character in the command")
        if self._works:
            folder = os.path.abspath(command.folder)  # noqa: PTH100
            names = [os.fsencode(name) for name in (folder, command.out, command.err)]
            request = marshal.dumps(([b"/bin/sh", b"-c", text], environment, *names))
            started = self._start(request, command.marker)
            if started is not None:
                pid, begun = started
                return Started(Child(pid, reap=self._reap), begun, memory_is_own=True)
        begun = time.monotonic()
        return Started(_start_directly(command, environment), begun, memory_is_own=False)

    def retire(self) -> None:
        """Start nothing any more. Takes no lock: a signal handler may call it."""
        self._retired = True

    def close(self) -> None:
        """End the process. Calling it twice is fine."""
        with self._lock:
            self._hang_up()

    def _start(self, request: bytes, marker: str) -> tuple[int, float] | None:
        """Pid and start of the command; None if the launcher can't work on this system."""
        for _ in range(2):  # a launcher that was killed is replaced, once
            try:
                with self._lock:
                    pid, error, begun = STARTED.unpack(self._exchange(request, STARTED.size))
            except BaseException as problem:
                # It may have started the command without our hearing of it.
                end_tree(Tree(marker), grace_s=0.0)
                if not isinstance(problem, EOFError | ConnectionError):
                    raise
                continue
            if not error:
                return pid, begun
            if error != errno.ENOSYS:
                raise OSError(error, os.strerror(error))
            self._works = False
            return None
        if self._was_ready:
            raise LauncherKilledError
        self._works = False
        return None

    def _reap(self, pid: int) -> tuple[int, float, int] | None:
        """Wait status, CPU seconds and peak memory in KB of a command that has ended; None if nobody knows."""
        try:
            with self._lock:
                status, cpu_s, max_rss_kb = REAPED.unpack(self._exchange(marshal.dumps(pid), REAPED.size))
        except (EOFError, ConnectionError):
            status, cpu_s, max_rss_kb = -1, 0.0, 0
        return None if status < 0 else (status, cpu_s, max_rss_kb)

    def _exchange(self, request: bytes, size: int) -> bytes:
        try:
            if self._socket is None:
                self._begin()
            assert self._socket is not None
            self._socket.sendall(LENGTH.pack(len(request)) + request)
            answer = b""
            while len(answer) < size:
                more = self._socket.recv(size - len(answer))
                if not more:
                    raise EOFError
                answer += more
        except BaseException:
            self._hang_up()  # whatever it answers now would be taken for the answer to something else
            raise
        return answer

    def _begin(self) -> None:
        if self._retired:
            raise RunnerError("the run was told to stop at once", hint="resume it")
        ours, theirs = socket.socketpair()
        try:
            popen = subprocess.Popen(
                # Bare: no site packages, nothing from the environment. It stays small and starts quickly.
                [sys.executable, "-I", "-S", _MAIN, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, MARK: self._marker},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket, self._process = ours, Child(popen.pid, popen)
        if ours.recv(len(READY)) == READY:
            self._was_ready = True
        elif self._was_ready and not self._retired:
            raise RunnerError("the process that starts commands doesn't start any more", hint="resume the run")
        else:
            raise _NeverReadyError

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            end_tree(Tree(self._marker, ((self._process.pid, self._process.start),)), grace_s=0.2)
            self._process.reap()
            self._process = None


def _environment(command: ShellCommand) -> dict[bytes, bytes]:
    """Our environment, as it is now, with the command's variables and its mark."""
    # Python keeps the environment as bytes already; going through the mapping would encode it all again.
    environment: dict[bytes, bytes] = dict(getattr(os.environb, "_data", os.environb))
    for name, value in (*command.env.items(), (MARK, command.marker)):
        key, content = os.fsencode(name), os.fsencode(value)
        if not key or b"=" in key or b"\0" in key or b"\0" in content:
            raise ValueError(f"{name!r} can't be an environment variable of this value")
        environment[key] = content
    return environment


def _start_directly(command: ShellCommand, environment: dict[bytes, bytes]) -> Child:
    mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    with contextlib.ExitStack() as stack:
        out = os.open(os.path.join(command.folder, command.out), mode, 0o666)  # noqa: PTH118
        stack.callback(os.close, out)
        err = out
        if command.err != command.out:
            err = os.open(os.path.join(command.folder, command.err), mode, 0o666)  # noqa: PTH118
            stack.callback(os.close, err)
        popen = subprocess.Popen(
            ["/bin/sh", "-c", command.text],
            cwd=command.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    return Child(popen.pid, popen)


def is_jobs_fault(error: OSError) -> bool:
    """Whether starting failed because of what was to be started: too long a command or environment."""
    return error.errno == errno.E2BIG
