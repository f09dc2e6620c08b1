"""The local runner: jobs as processes of this machine."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable

from tunegym.core.errors import RunnerError
from tunegym.core.processes import living_processes
from tunegym.tuning.model.job import CallJob, Job, JobHandle, JobResult, Watch
from tunegym.tuning.runners.command import CommandRun
from tunegym.tuning.runners.folders import check_disk
from tunegym.tuning.runners.in_process import InProcessCalls
from tunegym.tuning.runners.launcher import Launcher
from tunegym.tuning.runners.stops import StopFlag
from tunegym.tuning.runners.trees import Tree, end_tree
from tunegym.tuning.runners.worker import Worker


class LocalRunner:
    """Runs commands and calls on this machine (the ``Runner`` port).

    ``stop`` may be called from a signal handler. Called a second time, it cuts every grace short: what runs
    is killed at once, and teardowns are not waited for.

    Args:
        token: names the run. Every process carries ``TUNEGYM_MARK=<token>/...`` in its environment, so that
            a later driver with the same token finds what this one left when it was killed. No slash in it.
        slots: how many jobs run at a time; as many idle workers are kept.
    """

    def __init__(self, token: str, slots: int = 1) -> None:
        if not token or "/" in token or "\0" in token:
            raise ValueError(f"a token without a slash is needed, not {token!r}")
        self._token = token
        self._slots = slots
        self._stop = StopFlag()
        self._calls = InProcessCalls()
        self._launcher = Launcher(token)
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._closed = False

    def run(self, job: Job, started: Callable[[JobHandle], None], watch: Watch | None = None) -> JobResult:
        """Run one job to its end, and end whatever it left running; ``watch`` may end it early.

        Raises:
            RunnerError: no process can be started, the folder can't be used, its disk is full, or the runner is
                closed.
        """
        if self._stop.is_set:
            return JobResult("interrupted")
        if self._closed:
            raise RunnerError("the runner is closed", hint="make a new one")
        if isinstance(job, CallJob) and not job.isolate:
            return self._calls.run(job, watch)
        if isinstance(job, CallJob):
            result = self._isolated(job, started, watch)
        else:
            # The number keeps apart jobs that have the same name, as those of two experiments may.
            marker = f"{self._token}/{job.name}/{next(self._numbers)}"
            result = CommandRun(job, marker, self._launcher, self._stop, started, watch).run()
        check_disk(job.folder)
        return result

    def stop(self) -> None:
        """End every running job now; their ``run`` returns ``interrupted``, and so does every later one."""
        self._stop.set()

    def kill(self) -> None:
        """As ``stop``, with no grace for anybody: when it returns, every process of this run is gone."""
        self._stop.set()
        self._stop.set()  # whoever already waits for a grace to pass waits no longer
        self._launcher.retire()
        end_tree(Tree(self._token), grace_s=0.0)

    def end_leftovers(self, handles: Iterable[JobHandle]) -> int:
        """End what a killed driver with the same token left running; returns how many processes were ended.

        Called before the first ``run``: it can't tell a running job's escaped grandchildren from leftovers.
        """
        roots = living_processes(handles)
        return end_tree(Tree(self._token, roots, spares_kin=True), hurry_fd=self._stop.hurry_fd)

    def close(self) -> None:
        """Let go of every worker process. No ``run`` may be under way. Calling it twice is fine."""
        self._closed = True
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.close()
        self._launcher.close()
        self._stop.close()

    def _isolated(self, job: CallJob, started: Callable[[JobHandle], None], watch: Watch | None) -> JobResult:
        while worker := self._take((job.paths, dict(job.env))):
            result, began = self._call(worker, job, started, watch)
            if began:
                return result
        try:
            worker = Worker(f"{self._token}/worker-{os.getpid()}-{next(self._numbers)}", job.paths, job.env)
        except ValueError as error:
            return JobResult("exited", exit_code=1, error=f"ValueError: {error}")
        if not worker.prepare(self._stop):
            return JobResult("interrupted")
        return self._call(worker, job, started, watch)[0]

    def _call(
        self, worker: Worker, job: CallJob, started: Callable[[JobHandle], None], watch: Watch | None
    ) -> tuple[JobResult, bool]:
        """The result; with False if the worker died before the function was called, as when it was idle."""
        try:
            result = worker.run(job, self._stop, started, watch)
            return result, worker.began or worker.usable or result.ending != "exited"
        finally:
            if worker.usable:
                self._give_back(worker)
            else:
                worker.end()

    def _take(self, serves: tuple[tuple[str, ...], dict[str, str]]) -> Worker | None:
        """The idle worker used last, whose caches are warmest."""
        dead: list[Worker] = []
        found = None
        with self._lock:
            for worker in reversed(self._idle):
                if not worker.usable:
                    dead.append(worker)
                elif worker.serves == serves and found is None:
                    found = worker
            self._idle = [w for w in self._idle if w is not found and w not in dead]
        for worker in dead:
            worker.end()
        return found

    def _give_back(self, worker: Worker) -> None:
        with self._lock:
            self._idle.append(worker)
            surplus = self._idle.pop(0) if len(self._idle) > self._slots else None
        if surplus is not None:
            surplus.close()
