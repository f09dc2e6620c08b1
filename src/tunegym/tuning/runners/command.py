"""Running a command job: setup, command, teardown, and nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tunegym.tuning.model.job import CommandJob, Ending, JobHandle, JobResult, Watch
from tunegym.tuning.runners import following
from tunegym.tuning.runners.children import Child, Exit
from tunegym.tuning.runners.folders import STDERR, STDOUT, broken, last_line, make_fresh
from tunegym.tuning.runners.launcher import Launcher, LauncherKilledError, ShellCommand, is_jobs_fault
from tunegym.tuning.runners.stops import StopFlag
from tunegym.tuning.runners.trees import PidMark, Tree, end_tree, left_behind

INTERRUPTED_TEARDOWN_S = 10.0

Part: TypeAlias = Literal["setup", "command", "teardown"]

_FILES: dict[Part, tuple[str, str]] = {
    "setup": ("setup.txt", "setup.txt"),
    "command": (STDOUT, STDERR),
    "teardown": ("teardown.txt", "teardown.txt"),
}


@dataclass(frozen=True, slots=True)
class PartRun:
    """How one part of a job went."""

    ending: Ending
    exit: Exit
    duration_s: float
    memory_is_own: bool


class CommandRun:
    """One run of one command job.

    What setup leaves running (a server, say) runs until teardown has ended; what the command leaves running
    is ended before teardown begins.

    Args:
        job: what to run.
        marker: what all its processes carry, followed by the part they belong to.
        launcher: starts the processes.
        stop: ends the job early; teardown then has ten seconds, or none if the flag is set twice.
        started: called with the handle of every process that we start.
        watch: told of the command's intermediate values; may end it.
    """

    def __init__(
        self,
        job: CommandJob,
        marker: str,
        launcher: Launcher,
        stop: StopFlag,
        started: Callable[[JobHandle], None],
        watch: Watch | None = None,
    ) -> None:
        self._job = job
        self._marker = marker
        self._launcher = launcher
        self._stop = stop
        self._started = started
        self._watch = watch

    def run(self) -> JobResult:
        """Run the job to its end.

        Raises:
            RunnerError: the folder can't be used, or no process can be started.
        """
        job = self._job
        make_fresh(job.folder)
        if job.setup is None and job.teardown is None:
            return self._command(self._deadline())
        begun = PidMark.now()
        try:
            deadline = self._deadline()
            result = self._setup(job.setup, deadline) if job.setup is not None else None
            result = result or self._command(deadline)
            return result if job.teardown is None else self._teardown(job.teardown, result)
        finally:
            tree = Tree(self._marker)
            if left_behind(tree, begun):
                end_tree(tree, hurry_fd=self._stop.hurry_fd)

    def _deadline(self) -> float | None:
        return None if self._job.timeout_s is None else time.monotonic() + self._job.timeout_s

    def _setup(self, text: str, deadline: float | None) -> JobResult | None:
        """None if the command may run now."""
        run = self._part("setup", text, deadline)
        if isinstance(run, str):
            return JobResult("exited", error=f"setup {run}")
        if run.ending == "timed_out":
            return JobResult("timed_out", error="setup timed out")
        if run.ending == "exited" and run.exit.code == 0:
            return None
        return JobResult(run.ending, exit_code=run.exit.code, error=self._complaint("setup", run))

    def _command(self, deadline: float | None) -> JobResult:
        run = self._part("command", self._job.command, deadline)
        if isinstance(run, str):
            return JobResult("exited", error=run)
        return JobResult(
            ending=run.ending,
            exit_code=run.exit.code,
            error=self._complaint("command", run),
            duration_s=run.duration_s,
            cpu_s=run.exit.cpu_s,
            max_rss_mb=run.exit.max_rss_kb / 1024 if run.memory_is_own else None,
        )

    def _teardown(self, text: str, result: JobResult) -> JobResult:
        run = self._part("teardown", text, self._deadline())
        if isinstance(run, str):
            complaint = f"teardown {run}"
        elif run.ending == "timed_out":
            complaint = "teardown timed out"
        elif run.ending == "interrupted":
            return replace(result, ending="interrupted")
        else:
            complaint = self._complaint("teardown", run)
        if complaint is None:
            return result
        return replace(result, error=f"{result.error}; {complaint}" if result.error else complaint)

    def _part(self, part: Part, text: str, deadline: float | None) -> PartRun | str:
        """How the part went, or why nothing is known of that."""
        out, err = _FILES[part]
        marker = f"{self._marker}/{part}"
        command = ShellCommand(text, self._job.folder, out, err, self._job.env, marker)
        try:
            started = self._launcher.start(command)
        except ValueError as error:
            return f"can't be started: {error}"
        except LauncherKilledError as error:
            return str(error)
        except OSError as error:
            if is_jobs_fault(error):
                return f"can't be started: {error.strerror}"
            raise broken(f"job {self._job.name} can't be started in {self._job.folder}", error) from error
        child = started.child
        tree = Tree(marker, ((child.pid, child.start),))
        try:
            mark = PidMark(child.pid, time.monotonic())
            self._started(child.handle)
            ending = self._wait(child, part, deadline)
            duration = time.monotonic() - started.begun
            if ending != "exited" or (part != "setup" and left_behind(tree, mark)):
                end_tree(tree, hurry_fd=self._stop.hurry_fd)
        except BaseException:
            end_tree(tree, grace_s=0.0)
            raise
        finally:
            ended = child.reap()
        return PartRun(ending, ended, duration, started.memory_is_own)

    def _wait(self, child: Child, part: Part, deadline: float | None) -> Ending:
        stream = self._job.stream
        if stream is not None and self._watch is not None and part == "command":
            follower = following.Follower(self._job.folder, stream, self._watch)
            try:
                return self._follow(child, deadline, follower)
            finally:
                follower.close()
        ending = child.wait(self._stop.fd, deadline)
        if part != "teardown" or ending != "interrupted":
            return ending
        soon = time.monotonic() + INTERRUPTED_TEARDOWN_S
        ending = child.wait(self._stop.hurry_fd, soon if deadline is None else min(soon, deadline))
        return "exited" if ending == "exited" else "interrupted"  # it was us who had no more time

    def _follow(self, child: Child, deadline: float | None, follower: following.Follower) -> Ending:
        """As ``Child.wait``, with a look at the output now and then."""
        while True:
            soon = time.monotonic() + following.LOOK_S
            ending = child.wait(self._stop.fd, soon if deadline is None else min(soon, deadline))
            if ending == "exited":
                # What it printed last is judged like the rest: what is pruned must not depend on our pace.
                return "pruned" if follower.finish() else ending
            if ending == "interrupted":
                return ending
            if follower.look():
                return "pruned"
            if deadline is not None and time.monotonic() >= deadline:
                return ending

    def _complaint(self, part: Part, run: PartRun) -> str | None:
        """Why a part that ended by itself is a failure."""
        if run.ending != "exited" or run.exit.code == 0:
            return None
        line = last_line(self._job.folder, _FILES[part][1])
        what = run.exit.describe() if part == "command" else f"{part} {run.exit.describe()}"
        return f"{what}: {line}" if line else what
