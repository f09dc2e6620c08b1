"""Calls in the driver's own process: as fast as a call can be, and without protection."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.references import resolve
from tunegym.tuning.model.job import CallJob, JobResult, Watch
from tunegym.tuning.runners.folders import STDERR, broken, make_fresh, tidy
from tunegym.tuning.runners.reporting import Report, TrialPruned
from tunegym.tuning.runners.worker_main import describe, environment

_ENVIRONMENT = threading.Lock()
"""There is one environment, whatever number of runners."""


class InProcessCalls:
    """Runs calls where it is itself.

    A call that raises is a failed job, and its traceback is in the folder's stderr.txt; KeyboardInterrupt is
    not caught. Environment variables of a job are set for the whole process while it runs, so jobs that have
    some run one at a time.
    """

    def __init__(self) -> None:
        self._functions: dict[tuple[str, tuple[str, ...]], Callable[..., Any]] = {}

    def run(self, job: CallJob, watch: Watch | None = None) -> JobResult:
        """Call the target; its folder is made only if it is an argument, as ``trial_dir``."""
        if job.env:
            with _ENVIRONMENT, environment(dict(job.env)):
                return self._run(job, watch)
        return self._run(job, watch)

    def _run(self, job: CallJob, watch: Watch | None) -> JobResult:
        function = self._functions.get((job.target, job.paths))
        if function is None:
            try:
                function = resolve(job.target, job.paths)
            except UnresolvedReferenceError as error:
                return JobResult("exited", exit_code=1, error=error.message)
            self._functions[job.target, job.paths] = function
        if "trial_dir" not in job.arguments:
            return _reporting_call(function, job, watch) if job.reports else _call(function, job)
        make_fresh(job.folder)
        result = _reporting_call(function, job, watch) if job.reports else _call(function, job)
        tidy(job.folder)
        return result


def _call(function: Callable[..., Any], job: CallJob) -> JobResult:
    cpu = thread_time()
    begun = perf_counter()
    try:
        value = function(**job.arguments)
    except (Exception, SystemExit) as error:
        return _failed(job, error, perf_counter() - begun)
    duration = perf_counter() - begun
    return JobResult("exited", 0, None, value, duration, thread_time() - cpu)


def _reporting_call(function: Callable[..., Any], job: CallJob, watch: Watch | None) -> JobResult:
    report = Report(watch or _nobody)
    begun = perf_counter()
    try:
        result = _call(partial(function, report=report), job)
    except TrialPruned:
        result = None
    finally:
        report.close()
    if result is None or report.told:  # however the function took it
        return JobResult("pruned", duration_s=perf_counter() - begun)
    return result


def _nobody(step: int, value: float) -> bool:
    """Nobody watches."""
    del step, value
    return False


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
