"""A warm worker process, as the driver sees it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import IO, Any, Literal, TypeAlias

from tunegym.core.errors import RunnerError
from tunegym.core.processes import PidMark, end_tree, left_behind, milliseconds, start_python
from tunegym.core.stop import StopFlag
from tunegym.core.wire import Connection, ConnectionClosedError, WireError, encode
from tunegym.tuning.model.trial import CallJob, JobHandle, JobResult, ReportCallback
from tunegym.tuning.runners.command import STDERR, broken, error_lines, make_fresh, tidy

START_S = 60.0  # bound on starting a worker
LOAD_S = 60.0  # least bound on importing the target, however short the call's own
PRUNED_S = 10.0  # bound on what a function still does once it was told to end

Event: TypeAlias = Literal["died", "timed_out", "interrupted", "pruned"]


class Worker:
    """One process that runs one call after another, until it dies, is ended, or is closed.

    Used by one thread at a time. The importing of a target counts neither as part of the call's duration nor
    against its ``timeout_s``. The messages are described in ``worker_main``.

    Attributes:
        serves: the paths and variables of jobs for this worker: a module reads its variables when it is imported.
        began: whether the last call got as far as the function.

    Raises:
        RunnerError: it can't be started.
        ValueError: no process can have these variables.
    """

    def __init__(self, marker: str, paths: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.serves = paths, dict(env)
        self.began = False
        self._messages: list[Any] = []
        ours, theirs = socket.socketpair()
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._child = start_python(
                "tunegym.tuning.runners.worker_main:serve",
                str(theirs.fileno()),
                *paths,
                marker=marker,
                env={**os.environ, **env},
                fds=[theirs.fileno()],
                stderr=self._complaints,
            )
        except BaseException as error:
            ours.close()
            self._complaints.close()
            if isinstance(error, OSError):
                raise broken("no worker process can be started", error) from error
            raise
        finally:
            theirs.close()
        # Children of a call may hold its end of the connection, so that only the pidfd shows its death.
        self._connection = Connection(ours, watched=self._child.pidfd)
        self._mark = PidMark(self._child.pid, time.monotonic())
        self._open = True

    @property
    def usable(self) -> bool:
        """Whether the process is there for another call."""
        return self._open and not self._child.has_ended()

    def prepare(self, stop: StopFlag) -> bool:
        """Wait until the process is ready; False if we are to stop. Raises ``RunnerError`` if it doesn't start."""
        with self._ended_by_errors():
            answer = self._next(stop, time.monotonic() + START_S)
        if answer == "ready":
            return True
        self._complaints.seek(0)
        reason = self._complaints.read().decode(errors="replace").strip().splitlines()
        self.end(stop)
        if answer == "interrupted":
            return False
        shown = reason[-1] if reason else f"{sys.executable} says nothing"
        hint = f"try `{sys.executable} -c pass`, or isolate = false"
        raise RunnerError(f"the worker process doesn't start: {shown}", hint=hint)

    def run(
        self, job: CallJob, stop: StopFlag, started: Callable[[JobHandle], None], watch: ReportCallback | None = None
    ) -> JobResult:
        """Run one call to its end, and end what it left running; ``usable`` says whether the worker survived.

        Raises ``RunnerError``: the job's folder can't be used.
        """
        folder = os.path.abspath(job.folder)  # noqa: PTH100
        try:
            message = encode(["call", job.target, dict(job.arguments), dict(job.env), folder, job.reports])
        except WireError as error:
            return JobResult("exited", error=f"the arguments can't be sent to the worker: {error}")
        make_fresh(job.folder)
        begun = time.perf_counter()
        with self._ended_by_errors():
            started(self._child.handle)
            self._send(message)
            answer = self._call(job, stop, watch)
        duration = time.perf_counter() - begun
        if isinstance(answer, dict):
            self._sweep(stop, answer.pop("tracker", None))
            result = JobResult("pruned", duration_s=duration) if "pruned" in answer else _result(job, answer)
        else:
            result = self._broken_off(job, answer, duration, stop)
        tidy(job.folder)
        return result

    def hang_up(self) -> None:
        """Let the process end by itself when it is idle; ``close`` waits for that."""
        self._connection.close()

    def end(self, stop: StopFlag | None = None, grace_s: float = 2.0) -> str:
        """End the process and all it left; returns how it ended. Calling it twice is fine."""
        self._open = False
        ended = self._child.end(grace_s, stop.hurry_fd if stop else None)
        self._connection.close()
        self._complaints.close()
        return f"died: {ended.describe()}" if ended.code < 0 else ended.describe()

    def close(self) -> None:
        """Let the process end by itself, or end it if it doesn't. Calling it twice is fine."""
        self.hang_up()
        if self._open:
            self._child.wait(2.0)
        self.end()

    def _call(self, job: CallJob, stop: StopFlag, watch: ReportCallback | None) -> dict[str, Any] | Event:
        self.began = False
        bound = job.timeout_s
        answer = self._next(stop, None if bound is None else time.monotonic() + max(bound, LOAD_S))
        if answer != "loaded":
            return answer
        self.began = True
        deadline = None if bound is None else time.monotonic() + bound
        answer = self._next(stop, deadline)
        told = False
        while isinstance(answer, tuple):  # a report
            if not told and watch is not None and watch(*answer):
                told, deadline = True, time.monotonic() + PRUNED_S
            # A function that reports without a pause is stopped all the same.
            if stop.is_set:
                return "interrupted"
            if deadline is not None and time.monotonic() >= deadline:
                return "pruned" if told else "timed_out"
            self._send(encode(["verdict", told]))
            answer = self._next(stop, deadline)
        if not told or answer == "interrupted":
            return answer
        return {**answer, "pruned": True} if isinstance(answer, dict) else "pruned"

    def _broken_off(self, job: CallJob, event: Event, duration: float, stop: StopFlag) -> JobResult:
        how = self.end(stop)
        if event != "died":
            return JobResult(event, duration_s=duration)
        line = error_lines(job.folder, STDERR) if how == "exited with 1" else ""
        error = f"the worker {how}: {line}" if line else f"the worker {how}"
        return JobResult("exited", exit_code=self._child.reap().code, error=error, duration_s=duration)

    def _sweep(self, stop: StopFlag, tracker: int | None) -> None:
        """End the children that the call left, but not the worker, nor multiprocessing's resource tracker in it."""
        spared = frozenset({self._child.pid} if tracker is None else {self._child.pid, tracker})
        tree = replace(self._child.tree, spared=spared)
        if left_behind(tree, self._mark):
            end_tree(tree, hurry_fd=stop.hurry_fd)
        self._mark = PidMark()

    def _next(self, stop: StopFlag, deadline: float | None) -> Any:
        """The next message, or why there is none."""
        poll = select.poll()
        for fd in (self._connection.socket.fileno(), self._child.pidfd, stop.fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while not self._messages:
            left = None if deadline is None else deadline - time.monotonic()
            ready = [fd for fd, _ in poll.poll(milliseconds(left))]
            if ready == [stop.fd]:
                return "interrupted"
            if ready:
                try:
                    self._messages += self._connection.receive_some(time.monotonic()) or ()
                except ConnectionClosedError:
                    return "died"
            elif left is not None and left <= 0:
                return "timed_out"
        return self._messages.pop(0)

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """End the process if an exception leaves it in an unknown state."""
        try:
            yield
        except BaseException:
            self.end(grace_s=0.0)
            raise

    def _send(self, frame: bytes) -> None:
        with contextlib.suppress(ConnectionClosedError):  # noticed where its answer is awaited
            self._connection.send_frame(frame)


def _result(job: CallJob, answer: dict[str, Any]) -> JobResult:
    if "broken" in answer:
        number, text = answer["broken"]
        raise broken(f"the output of job {job.name} can't be written to {job.folder}", OSError(number, text))
    return JobResult("exited", exit_code=int("error" in answer), **answer)
