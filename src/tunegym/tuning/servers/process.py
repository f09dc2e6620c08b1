"""A server in its own process on this machine, so that it can't harm the run."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunegym.core.errors import ServerLostError
from tunegym.core.processes import Child, start_python
from tunegym.core.wire import Connection, WireError, encode
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.servers.host import ServerFailure
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE
from tunegym.tuning.servers.remote import RemoteHost

GRACE_S = 1.0
"""Time between SIGTERM and SIGKILL for a process that didn't answer, and for its descendants."""
DYING_S = 1.0
"""How long a process that hung up may take to end, so that the reason can say how."""
LOG_LIMIT = 8 << 20
LOG_CHECK_S = 2.0


def start_server(
    reference: str,
    arguments: Mapping[str, Any],
    paths: tuple[str, ...],
    conversation: socket.socket,
    *,
    marker: str,
    output: int,
) -> Child:
    """Start a process that builds a server and answers on a socket until that is closed (see ``serve.main``).

    Modules in ``paths`` come before all others. ``conversation`` is the process's end of the connection; the caller
    closes its own copy. ``output`` is the file descriptor of its stdout and stderr.

    Raises:
        OSError: it can't be started.
        WireError: the arguments can't be sent.
    """
    frame = encode({"reference": reference, "arguments": dict(arguments), "paths": list(paths)})
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    with tempfile.TemporaryFile() as setup:
        setup.write(frame)
        setup.seek(0)
        return start_python(
            "tunegym.tuning.servers.serve:main",
            str(conversation.fileno()),
            marker=marker,
            env=environment,
            fds=[conversation.fileno()],
            stdin=setup,
            stdout=output,
            stderr=output,
        )


class ProcessHost(RemoteHost):
    """Holds a server in a child process (a ``ServerHost``).

    A process that dies, or doesn't answer in time, is ended with everything that it started; ``start`` makes a new one.
    Its output is in ``server-<lane>.log``.

    Args:
        reference: of the class; ``arguments`` are the constructor's.
        paths: folders whose modules come before all others.
        folder: where the log goes.
        lane: which of several servers this is.
        token: names the run; the process carries ``TUNEGYM_MARK=<token>/server-...``.
        step_timeout_s: see ``RemoteHost``.
        started: called with the handle of each process, so that it can be recorded.
    """

    def __init__(
        self,
        reference: str,
        arguments: Mapping[str, Any],
        paths: tuple[str, ...] = (),
        *,
        folder: Path,
        lane: int = 0,
        token: str,
        step_timeout_s: float | None = None,
        started: Callable[[JobHandle], None] | None = None,
    ) -> None:
        super().__init__(step_timeout_s)
        self._setup = reference, dict(arguments), paths
        self._marker = f"{token}/server-{os.getpid()}-{lane}"
        self._path = folder / f"server-{lane}.log"
        self._started = started
        self._numbers = itertools.count(1)
        self._log: BoundedLog | None = None
        self._process: Child | None = None

    @property
    def pid(self) -> int | None:
        """Id of the present process."""
        process = self._process
        return None if process is None else process.pid

    def kill(self) -> None:
        """End the process and everything it started, now and for good. A signal handler may call it."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def _connect(self) -> Connection:
        with contextlib.ExitStack() as undo:
            undo.callback(self._disconnect, 0.0)
            try:
                self._log = BoundedLog(self._path)
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                with theirs:
                    marker = f"{self._marker}-{next(self._numbers)}"
                    process = start_server(*self._setup, theirs, marker=marker, output=self._log.fd)
                self._process = process
            except WireError as error:
                what = f"the arguments of {self._setup[0]} can't be sent to its process: {error}"
                hint = 'use texts, numbers, lists and tables, or server = "in_process"'
                raise ServerLostError(what, hint=hint) from None
            except OSError as error:
                raise ServerFailure(f"no process can be started for the server: {error}", lost=True) from error
            if self._started is not None:
                self._started(process.handle)
            undo.pop_all()
        # A process that the server forked may hold its end of the connection, so that only the pidfd shows its death.
        return Connection(ours, watched=process.pidfd)

    def _ask(self, call: str, *arguments: Any) -> None:
        if self._log is not None:
            self._log.mark()  # earlier output has nothing to do with how this call ends
        super()._ask(call, *arguments)

    def _answer(self, count: int = 0) -> Any:
        if self._log is not None:
            self._log.shorten()
        return super()._answer(count)

    def _why_closed(self, what: str) -> str:
        process, log = self._process, self._log
        if process is None or process.wait(DYING_S) != "exited":
            return "the server hung up"
        ending = process.end(GRACE_S)
        line = log.last_line() if log is not None and ending.code > 0 else ""
        return f"the server died: {ending.describe()}" + (f": {line}" if line else "")

    def _disconnect(self, patience_s: float) -> None:
        super()._disconnect(patience_s)
        process, log = self._process, self._log
        if process is not None:
            if patience_s:
                process.wait(patience_s)
            process.end(0.0 if self._killed else GRACE_S)
            self._process = None
        if log is not None:
            log.close()
            self._log = None


class BoundedLog:
    """A file that a process appends to; above ``limit`` bytes, its newer half moves to ``<name>.1``.

    Output at the very moment of moving may be lost.
    """

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self._path = path
        self._limit = limit
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._next = 0.0
        self._mark = 0
        self.mark()

    def shorten(self) -> None:
        """Shorten the file if it is too long; checks every other second at most."""
        now = time.monotonic()
        if now < self._next or self.fd < 0:
            return
        self._next = now + LOG_CHECK_S
        with contextlib.suppress(OSError):  # a full disk must not end a run because of a log
            size = os.fstat(self.fd).st_size
            if size > self._limit:
                newest = os.pread(self.fd, self._limit // 2, size - self._limit // 2)
                self._path.with_name(f"{self._path.name}.1").write_bytes(newest)
                os.ftruncate(self.fd, 0)
                self._mark = 0

    def mark(self) -> None:
        """``last_line`` looks at output after this call."""
        with contextlib.suppress(OSError):
            self._mark = os.fstat(self.fd).st_size

    def last_line(self) -> str:
        """Return the last line since ``mark`` that isn't empty, or an empty string."""
        with contextlib.suppress(OSError):
            size = os.fstat(self.fd).st_size
            start = max(self._mark, size - 4096)
            text = os.pread(self.fd, max(0, size - start), start).decode(errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return lines[-1][:300] if lines else ""
        return ""

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
