"""The program that runs one job on a node of a cluster: ``python -m tunegym.tuning.runners.node CONTROL_FOLDER``.

Driver and node share a file system, and talk through the control folder beside the trial's folder. The driver writes
``job.json`` and an empty file ``stop``. The node runs the job with the local runner, appends what a call reports to
``reports.txt``, and at the end writes ``result.json`` as a whole. A driver that writes into ``stop`` prunes the job.
SIGTERM ends it; a teardown still runs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from tunegym.core.errors import RunnerError
from tunegym.core.files import write_atomic
from tunegym.tuning.model.trial import CallJob, CommandJob, Job, JobResult, ReportCallback, Stream
from tunegym.tuning.runners.local import LocalRunner
from tunegym.tuning.runners.worker import PRUNED_S

JOB = "job.json"
RESULT = "result.json"
REPORTS = "reports.txt"
STOP = "stop"
SCRIPT = "job.sh"
OUTPUT = "job.out"
MOST_FILES = 1000
"""Of so many files the driver waits for the sizes."""


def job_document(job: Job) -> dict[str, Any]:
    """The job as plain JSON; equal jobs have equal documents."""
    return json.loads(json.dumps({"kind": type(job).__name__, **asdict(job)}))


def job_of(document: Mapping[str, Any]) -> Job:
    """The job of a document. A call is isolated, whatever it was: the node has no process to share."""
    given = {key: value for key, value in document.items() if key != "kind"}
    if document["kind"] == CallJob.__name__:
        return CallJob(**{**given, "paths": tuple(given["paths"]), "isolate": True})
    stream = given["stream"]
    return CommandJob(**{**given, "stream": None if stream is None else Stream(**stream)})


def read_document(path: Path) -> dict[str, Any] | None:
    """A JSON file's table; None if it isn't there yet. Listing its folder first refreshes what NFS remembers."""
    try:
        if path in path.parent.iterdir():
            return json.loads(path.read_bytes())
    except (OSError, ValueError):  # not there, or on its way
        pass
    return None


def run_job(control: Path) -> int:
    """Run the job that ``control`` describes, and write down its result; the exit code for Slurm."""
    document = json.loads((control / JOB).read_bytes())
    if not _claim(control / f"{document['id']}.claim"):
        print("another job of the batch system runs this one already", file=sys.stderr)  # noqa: T201
        return 0
    job = job_of(document["job"])
    if document["step"]:
        _confine_steps(control)
    runner = LocalRunner(f"node-{document['id']}")
    told: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        told.append(number)
        runner.stop()

    signal.signal(signal.SIGTERM, stop)
    try:
        prepared, watch = _prepared(job, control, runner)
        result, hint = runner.run(prepared, lambda _: None, watch), None
    except RunnerError as error:
        result, hint = JobResult("exited", error=error.message), error.hint or "resume the run"
    finally:
        runner.close()
    outcome = {"id": document["id"], "told": bool(told), "nodes": _nodes(), "files": _sizes(job.folder)}
    mine = read_document(control / JOB)
    if mine is not None and mine["id"] == document["id"]:  # else it was given up and submitted again
        write_atomic(control / RESULT, json.dumps({**outcome, "result": asdict(result), "broken": hint}))
    return int(result.ending != "exited" or result.error is not None)


def _claim(path: Path) -> bool:
    """Whether this job of the batch system may run it: one that was submitted twice runs once."""
    job = os.environ.get("SLURM_JOB_ID", str(os.getpid()))
    try:
        with path.open("x") as file:
            file.write(job)
    except FileExistsError:
        return path.read_text() == job
    return True


def _prepared(job: Job, control: Path, runner: LocalRunner) -> tuple[Job, ReportCallback | None]:
    """The job as the local runner is to see it, and what is told of its values."""
    told = control / STOP
    if isinstance(job, CommandJob):
        # The driver follows the values. Here the runner follows ``stop``: a number in it prunes.
        return replace(job, stream=Stream(".+", str(told)) if job.reports else None), lambda *_: True
    if not job.reports:
        return job, None
    reports = os.open(control / REPORTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def end_silent_call() -> None:
        """End a call that is pruned and doesn't report any more."""
        while not told.stat().st_size:
            time.sleep(0.25)
        time.sleep(PRUNED_S)
        runner.stop()

    def watch(step: int, value: float) -> bool:
        os.write(reports, f"{step} {value!r}\n".encode())
        return told.stat().st_size > 0

    threading.Thread(target=end_silent_call, daemon=True).start()
    return job, watch


def _confine_steps(control: Path) -> None:
    """Let ``srun`` in the job's commands use the nodes of this step only, and share them with it."""
    names = subprocess.run(["scontrol", "show", "hostnames", _nodes()], capture_output=True, text=True, check=True)
    hosts = control / "hosts"
    hosts.write_text(names.stdout)  # a line for each task
    os.environ |= {"SLURM_OVERLAP": "1", "SLURM_HOSTFILE": str(hosts), "SLURM_DISTRIBUTION": "arbitrary"}
    count = str(len(names.stdout.split()))
    os.environ |= dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), _nodes())
    os.environ |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), count)


def _nodes() -> str:
    return os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or socket.gethostname()


def _sizes(folder: str) -> dict[str, int]:
    """The sizes of the files that the job left, by their path in its folder."""
    files = (path for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.stat().st_size for path in islice(files, MOST_FILES)}


if __name__ == "__main__":
    sys.exit(run_job(Path(sys.argv[1])))
