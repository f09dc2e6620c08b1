"""A warm worker process, as the driver sees it."""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from tunegym.core.errors import RunnerError
from tunegym.tuning.model.job import CallJob, JobHandle, JobResult, Watch
from tunegym.tuning.runners.children import Child, milliseconds
from tunegym.tuning.runners.folders import STDERR, broken, last_line, make_fresh, tidy
from tunegym.tuning.runners.processes import MARK
from tunegym.tuning.runners.stops import StopFlag
from tunegym.tuning.runners.trees import PidMark, Tree, end_tree, left_behind
from tunegym.tuning.runners.worker_main import LENGTH, verdict

START_S = 60.0  # bound on starting a worker
LOAD_S = 60.0  # least bound on importing the target, however short the call's own
PRUNED_S = 10.0  # bound on what a function still does once it was told to end

_MAIN = str(Path(__file__).with_name("worker_main.py"))

Event: TypeAlias = Literal["died", "timed_out", "interrupted", "pruned"]


class Worker:
    """One process that runs one call after another, until it dies, is ended, or is closed.

    Used by one thread at a time. The importing of a target counts neither as part of the call's duration nor
    against its ``timeout_s``.

    Args:
        marker: what the process and its children carry.
        paths: folders in front of ``sys.path``.
        env: variables that are there from the start, as what a module reads when it is imported stays that way.

    Attributes:
        serves: the worker is only for jobs with these paths and variables.
        began: whether the last call got as far as the function.

    Raises:
        RunnerError: it can't be started.
        ValueError: no process can have these variables.
    """

    def __init__(self, marker: str, paths: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.serves = paths, dict(env)
        self.began = False
        self._marker = marker
        self._received = b""
        self._socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._child = _start(theirs.fileno(), lifeline, self._complaints, {**env, MARK: marker})
        except OSError as error:
            self._let_go()
            raise broken("no worker process can be started", error) from error
        except ValueError:
            self._let_go()
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self._tree = Tree(marker, ((self._child.pid, self._child.start),))
        self._mark = PidMark(self._child.pid, time.monotonic())
        self._open = True

    @property
    def usable(self) -> bool:
        """Whether the process is there for another call."""
        return self._open and not self._child.has_ended()

    def prepare(self, stop: StopFlag) -> bool:
        """Wait until the process is ready; False if we are to stop.

        Raises:
            RunnerError: it doesn't become ready.
        """
        try:
            paths = pickle.dumps([*self.serves[0], *(path or str(Path.cwd()) for path in sys.path)])
            self._send(LENGTH.pack(len(paths)) + paths)
            answer = self._next(stop, time.monotonic() + START_S)
        except BaseException:
            self.end(stop, grace_s=0.0)
            raise
        if answer == "ready":
            return True
        self._complaints.seek(0)
        reason = self._complaints.read().decode(errors="replace").strip().splitlines()
        self.end(stop)
        if answer == "interrupted":
            return False
        shown = reason[-1] if reason else f"{sys.executable} says nothing"
        raise RunnerError(
            f"the worker process doesn't start: {shown}",
            hint=f"try `{sys.executable} -c pass`, or isolate = false",
        )

    def run(
        self, job: CallJob, stop: StopFlag, started: Callable[[JobHandle], None], watch: Watch | None = None
    ) -> JobResult:
        """Run one call to its end, and end what it left running; ``usable`` says whether the worker survived.

        Raises:
            RunnerError: the job's folder can't be used.
        """
        reports = None if not job.reports else "unwatched" if watch is None else "watched"
        folder = os.path.abspath(job.folder)  # noqa: PTH100
        request = job.target, dict(job.arguments), dict(job.env), folder, reports
        try:
            message = pickle.dumps(request)
        except Exception as error:
            return JobResult("exited", error=f"the arguments can't be sent to the worker: {error}")
        make_fresh(job.folder)
        begun = time.perf_counter()
        try:
            started(self._child.handle)
            self._send(LENGTH.pack(len(message)) + message)
            answer = self._call(job, stop, watch)
        except BaseException:
            self.end(stop, grace_s=0.0)
            raise
        duration = time.perf_counter() - begun
        if isinstance(answer, dict):
            self._sweep(stop, answer.get("tracker"))
            result = JobResult("pruned", duration_s=duration) if "pruned" in answer else _result(job, answer)
        else:
            result = self._broken_off(job, answer, duration, stop)
        tidy(job.folder)
        return result

    def hang_up(self) -> None:
        """Let the process end by itself when it is idle; ``end`` waits for that."""
        self._socket.close()

    def end(self, stop: StopFlag | None = None, grace_s: float = 2.0) -> str:
        """End the process and all it left; returns how it ended. Calling it twice is fine."""
        if self._open:
            self._open = False
            end_tree(self._tree, grace_s, stop.hurry_fd if stop else None)
        ended = self._child.reap()
        self._let_go()
        return f"died: {ended.describe()}" if ended.code < 0 else ended.describe()

    def close(self) -> None:
        """Let the process end by itself, or end it if it doesn't. Calling it twice is fine."""
        self.hang_up()
        deadline = time.monotonic() + 2.0
        while self._open and not self._child.has_ended() and time.monotonic() < deadline:
            if self._child.pidfd >= 0:
                select.select([self._child.pidfd], [], [], max(0.0, deadline - time.monotonic()))
            else:
                time.sleep(0.01)
        self.end()

    def _call(self, job: CallJob, stop: StopFlag, watch: Watch | None) -> dict[str, Any] | Event:
        self.began = False
        bound = job.timeout_s
        answer = self._next(stop, None if bound is None else time.monotonic() + max(bound, LOAD_S))
        if answer == "loaded":
            self.began = True
            deadline = None if bound is None else time.monotonic() + bound
            answer = self._next(stop, deadline)
            while isinstance(answer, tuple):
                number, step, value = answer
                if watch is not None and watch(step, value):
                    return self._told_to_end(number, stop)
                answer = self._answered(number, False, stop, deadline)
        return answer

    def _told_to_end(self, number: int, stop: StopFlag) -> dict[str, Any] | Event:
        """The function is told to end, as often as it reports; what becomes of it makes no difference."""
        deadline = time.monotonic() + PRUNED_S
        answer = self._answered(number, True, stop, deadline)
        while isinstance(answer, tuple):
            answer = self._answered(answer[0], True, stop, deadline)
        if isinstance(answer, dict):
            return {"pruned": True, "tracker": answer.get("tracker")}
        return answer if answer == "interrupted" else "pruned"

    def _answered(self, number: int, end: bool, stop: StopFlag, deadline: float | None) -> Any:
        """Answer a report; the next message. One that reports without a pause is stopped all the same."""
        if stop.is_set:
            return "interrupted"
        if deadline is not None and time.monotonic() >= deadline:
            return "timed_out"
        self._send(verdict(number, end))
        return self._next(stop, deadline)

    def _broken_off(self, job: CallJob, event: Event, duration: float, stop: StopFlag) -> JobResult:
        how = self.end(stop)
        if event != "died":
            return JobResult(event, duration_s=duration)
        line = last_line(job.folder, STDERR) if how == "exited with 1" else ""
        error = f"the worker {how}: {line}" if line else f"the worker {how}"
        return JobResult("exited", exit_code=self._child.reap().code, error=error, duration_s=duration)

    def _sweep(self, stop: StopFlag, tracker: int | None) -> None:
        """End the children that the call left, but not the worker, nor multiprocessing's helper in it."""
        spared = frozenset({self._child.pid} if tracker is None else {self._child.pid, tracker})
        tree = Tree(self._marker, self._tree.roots, spared)
        if left_behind(tree, self._mark):
            end_tree(tree, hurry_fd=stop.hurry_fd)
        self._mark = PidMark.now()

    def _next(self, stop: StopFlag, deadline: float | None) -> Any:
        """The next message, or why there is none."""
        poll = select.poll()
        # Children may hold the socket open, so that only the pidfd tells of the worker's death.
        for fd in (self._socket.fileno(), self._child.pidfd, stop.fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            message = self._unpack()
            if message is not None:
                return message
            left = None if deadline is None else deadline - time.monotonic()
            ready = [fd for fd, _ in poll.poll(milliseconds(left))]
            if self._socket.fileno() in ready:
                if not self._receive():
                    return "died"
            elif self._child.pidfd in ready:
                return "died"
            elif ready:
                return "interrupted"
            elif left is not None and left <= 0:
                return "timed_out"

    def _receive(self) -> bool:
        try:
            content = self._socket.recv(1 << 20)
        except ConnectionError:
            content = b""
        self._received += content
        return bool(content)

    def _unpack(self) -> Any:
        if len(self._received) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        content, self._received = self._received[LENGTH.size : end], self._received[end:]
        return pickle.loads(content)

    def _send(self, content: bytes) -> None:
        try:
            self._socket.sendall(content)
        except ConnectionError:
            return  # it has died, which is noticed where its answer is awaited

    def _let_go(self) -> None:
        self._socket.close()
        self._complaints.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _start(control: int, lifeline: int, complaints: IO[bytes], env: Mapping[str, str]) -> Child:
    popen = subprocess.Popen(
        # -P: the folder of the script is not for importing from. -B: compiled files know their source's time to
        # the second only, so a module that is edited and run at once would be stale.
        [sys.executable, "-P", "-B", _MAIN, str(control), str(lifeline)],
        pass_fds=[control, lifeline],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=complaints,
        start_new_session=True,
        env={**os.environ, **env},
    )
    return Child(popen.pid, popen)


def _result(job: CallJob, answer: dict[str, Any]) -> JobResult:
    if "broken" in answer:
        number, text = answer["broken"]
        raise broken(f"the output of job {job.name} can't be written to {job.folder}", OSError(number, text))
    if "error" in answer:
        return JobResult("exited", exit_code=1, error=answer["error"])
    return JobResult(
        ending="exited",
        exit_code=0,
        value=answer["value"],
        duration_s=answer["duration_s"],
        cpu_s=answer["cpu_s"],
        max_rss_mb=answer["max_rss_mb"],
    )
