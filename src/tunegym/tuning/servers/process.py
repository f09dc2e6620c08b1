"""A server in a process of its own on this machine: what it does harms nobody else."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunegym.core.errors import ServerLostError
from tunegym.core.wire import Connection, WireError
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.servers.hosting import ServerFailure
from tunegym.tuning.servers.logs import BoundedLog
from tunegym.tuning.servers.remote import RemoteHost
from tunegym.tuning.servers.spawning import ServerProcess, Setup

GRACE_S = 1.0
"""What a process that didn't answer, and all that it started, have between SIGTERM and SIGKILL."""
DYING_S = 1.0
"""How long a process that hung up may take to be gone, so that it can be said how."""


class ProcessHost(RemoteHost):
    """Holds a server in a child process (the ``Host`` port).

    One that dies, or doesn't answer in time, is ended with everything that it started; ``start`` makes a new one. What
    it prints is in ``server-<lane>.log``.

    Args:
        reference: of the class.
        arguments: what its constructor is given.
        paths: folders whose modules come before all others.
        folder: where the log goes.
        lane: which of several servers this is.
        token: names the run; the process carries ``TUNEGYM_MARK=<token>/server-...``.
        step_timeout_s: how long an answer may take; None for ever.
        started: called with pid and start time as soon as there is a process, so that it can be written down.
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
        self._setup = Setup(reference, dict(arguments), paths)
        self._marker = f"{token}/server-{os.getpid()}-{lane}"
        self._path = folder / f"server-{lane}.log"
        self._started = started
        self._numbers = itertools.count(1)
        self._log: BoundedLog | None = None
        self._process: ServerProcess | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that there is now."""
        process = self._process
        return None if process is None else process.pid

    def kill(self) -> None:
        """End the process and all that it started, now, for good. May be called from a signal handler: no locks."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def _connect(self) -> Connection:
        if self._killed:
            raise ServerFailure("the run was told to stop at once", lost=True)
        with contextlib.ExitStack() as undo:
            undo.callback(self._let_go, 0.0)
            try:
                channel, process = self._begin(undo)
            except WireError as error:
                what = f"the arguments of {self._setup.reference} can't be sent to its process: {error}"
                hint = 'use texts, numbers, lists and tables, or server = "in_process"'
                raise ServerLostError(what, hint=hint) from None
            except OSError as error:
                raise ServerFailure(f"no process can be started for the server: {error}", lost=True) from error
            if self._started is not None:
                self._started(process.handle)
            undo.pop_all()
        return channel

    def _begin(self, undo: contextlib.ExitStack) -> tuple[Connection, ServerProcess]:
        """Start a process, and whatever ``_let_go`` ends; ``undo`` closes our end of the connection."""
        self._log = log = BoundedLog(self._path)
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            marker = f"{self._marker}-{next(self._numbers)}"
            self._process = process = ServerProcess(self._setup, theirs, marker=marker, output=log.fd)
        # What the server forks may hold its end of the connection, so that only the pidfd tells of its death.
        return Connection(ours, watched=process.pidfd), process

    def _ask(self, call: str, *arguments: Any) -> None:
        if self._log is not None:
            self._log.mark()  # what was printed before has nothing to do with how this one ends
        super()._ask(call, *arguments)

    def _answer(self) -> Any:
        if self._log is not None:
            self._log.tidy()
        return super()._answer()

    def _why_gone(self, what: str) -> str:
        process, log = self._process, self._log
        if process is None or not process.wait(DYING_S):
            return "the server hung up"
        ending = process.finish(GRACE_S)
        line = log.last_line() if log is not None and ending.code > 0 else ""
        return f"the server died: {ending.describe()}" + (f": {line}" if line else "")

    def _let_go(self, patience_s: float) -> None:
        super()._let_go(patience_s)
        process, log = self._process, self._log
        if process is not None:
            if patience_s:
                process.wait(patience_s)
            process.finish(0.0 if self._killed else GRACE_S)
            self._process = None
        if log is not None:
            log.close()
            self._log = None
