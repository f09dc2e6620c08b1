"""The local runner: jobs as processes of this machine."""

from __future__ import annotations

import itertools
import os
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from tunegym.core.errors import RunnerError, UnresolvedReferenceError
from tunegym.core.processes import Tree, end_leftovers, end_tree
from tunegym.core.references import resolve
from tunegym.core.stop import StopFlag
from tunegym.tuning.model.trial import CallJob, Job, JobHandle, JobResult, ReportCallback
from tunegym.tuning.runners.command import STDERR, CommandRun, Launcher, broken, check_disk, make_fresh, tidy
from tunegym.tuning.runners.worker import Worker
from tunegym.tuning.runners.worker_main import Report, TrialPruned, describe, environment, plain

_ENVIRONMENT = threading.Lock()
"""All runners share the process's environment."""


class LocalRunner:
    """Runs commands and calls on this machine (the ``Runner`` port).

    ``stop`` may be called from a signal handler. Called a second time, it cuts every grace short: what runs
    is killed at once, and teardowns are not waited for.

    Args:
        token: names the run. Every process carries ``TUNEGYM_MARK=<token>/...`` in its environment, so that
            a later driver with the same token, or the part before a slash in it, finds all that this one left when it
            was killed.
        slots: how many jobs run at a time; as many idle workers are kept.
        kill_orphans: what runs is killed when this process dies. A driver leaves its commands to the next one, which
            ends them in good order.
    """

    def __init__(self, token: str, slots: int = 1, *, kill_orphans: bool = False) -> None:
        self._token = token
        self._slots = slots
        self._stop = StopFlag()
        self._functions: dict[tuple[str, tuple[str, ...]], Callable[..., Any]] = {}
        self._launcher = Launcher(token, kill_orphans=kill_orphans)
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._closed = False

    def run(self, job: Job, started: Callable[[JobHandle], None], watch: ReportCallback | None = None) -> JobResult:
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
            return self._in_process(job, watch)
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
        """As ``stop``, without grace: when it returns, every process of this run is gone."""
        self._stop.set()
        self._stop.set()  # a thread that waits for a grace to pass waits no longer
        self._launcher.retire()
        end_tree(Tree(self._token), grace_s=0.0)

    def end_leftovers(self, handles: Iterable[JobHandle]) -> int:
        """End what a killed driver with the same token left running; returns how many processes were ended.

        Called before the first ``run``: it can't tell a running job's escaped grandchildren from leftovers.
        """
        return end_leftovers(self._token, handles, self._stop.hurry_fd)

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

    def _isolated(self, job: CallJob, started: Callable[[JobHandle], None], watch: ReportCallback | None) -> JobResult:
        while True:
            worker = self._idle_worker((job.paths, dict(job.env)))
            is_fresh = worker is None
            if worker is None:
                try:
                    worker = Worker(f"{self._token}/worker-{os.getpid()}-{next(self._numbers)}", job.paths, job.env)
                except ValueError as error:
                    return JobResult("exited", exit_code=1, error=f"ValueError: {error}")
                if not worker.prepare(self._stop):
                    return JobResult("interrupted")
            try:
                result = worker.run(job, self._stop, started, watch)
                # An idle worker may have died before the function was called: the next one is tried.
                counts = is_fresh or worker.began or worker.usable or result.ending != "exited"
            finally:
                self._give_back(worker)
            if counts:
                return result

    def _idle_worker(self, serves: tuple[tuple[str, ...], dict[str, str]]) -> Worker | None:
        """The idle worker used last, whose caches are warmest."""
        with self._lock:
            found = next((worker for worker in reversed(self._idle) if worker.serves == serves), None)
            if found is not None:
                self._idle.remove(found)
        return found

    def _give_back(self, worker: Worker) -> None:
        if not worker.usable:
            worker.end()
            return
        with self._lock:
            self._idle.append(worker)
            surplus = self._idle.pop(0) if len(self._idle) > self._slots else None
        if surplus is not None:
            surplus.close()

    def _in_process(self, job: CallJob, watch: ReportCallback | None) -> JobResult:
        """Call the target here; its folder is made only if it is an argument, as ``trial_dir``.

        A call that raises is a failed job, and its traceback is in the folder's stderr.txt; KeyboardInterrupt is
        not caught. Environment variables of a job are set for the whole process while it runs, so jobs that have
        some run one at a time.
        """
        if job.env:
            with _ENVIRONMENT, environment(dict(job.env)):
                return self._in_process(replace(job, env={}), watch)
        function = self._functions.get((job.target, job.paths))
        if function is None:
            try:
                function = resolve(job.target, job.paths)
            except UnresolvedReferenceError as error:
                return JobResult("exited", exit_code=1, error=error.message)
            self._functions[job.target, job.paths] = function
        call = _reporting_call if job.reports else _call
        if "trial_dir" not in job.arguments:
            return call(function, job, watch)
        make_fresh(job.folder)
        result = call(function, job, watch)
        tidy(job.folder)
        return result


# calls in the driver's own process ---------------------------------------------------------------------


def _call(function: Callable[..., Any], job: CallJob, _: ReportCallback | None = None) -> JobResult:
    cpu = thread_time()
    begun = perf_counter()
    try:
        value = function(**job.arguments)
        duration, used = perf_counter() - begun, thread_time() - cpu
        return JobResult("exited", 0, None, plain(value), duration, used)
    except (Exception, SystemExit) as error:
        return _failed(job, error, perf_counter() - begun)


def _reporting_call(function: Callable[..., Any], job: CallJob, watch: ReportCallback | None) -> JobResult:
    report = Report(watch or (lambda *_: False))
    begun = perf_counter()
    result = None
    try:
        result = _call(partial(function, report=report), job)
    except TrialPruned:
        pass
    finally:
        report.close()
    if result is None or report.told:  # however the function took it
        return JobResult("pruned", duration_s=perf_counter() - begun)
    return result


def _failed(job: CallJob, error: BaseException, duration: float) -> JobResult:
    # The first frame is ours.
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    try:
        os.makedirs(job.folder, exist_ok=True)  # noqa: PTH103
        with Path(job.folder, STDERR).open("w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError as problem:
        raise broken(f"the output of job {job.name} can't be written to {job.folder}", problem) from problem
    return JobResult("exited", exit_code=1, error=describe(error), duration_s=duration)
