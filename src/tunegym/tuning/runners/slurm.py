"""The Slurm runner: a batch job for each trial, or a step of one allocation.

The driver writes a control folder beside the trial's folder (``trials/000017.job/``), submits ``job.sh`` in it, and
waits for ``result.json``, which the program on the node writes (see ``node``). The queue is asked once for all jobs,
and decides about those that ended without a result. When a job has ended, its control folder becomes ``job/`` in the
trial's folder.

A driver that was killed leaves its jobs running. Job names carry the run and the trial, so the next driver finds them
and waits for them instead of submitting again; a submission whose answer was lost is found in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import RunnerError, TunegymError
from tunegym.core.files import write_atomic
from tunegym.core.processes import Exit
from tunegym.core.stop import StopFlag
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import CommandJob, Job, JobHandle, JobResult, ReportCallback, Stream
from tunegym.tuning.model.values import counted
from tunegym.tuning.runners import node
from tunegym.tuning.runners.command import OutputFollower, broken, error_lines, untold
from tunegym.tuning.runners.slurm_queue import (
    NEVER,
    AwayError,
    QueueEntry,
    SlurmQueue,
    SubmissionError,
    clean_environment,
)
from tunegym.tuning.runners.slurm_script import SlurmConfig, holder_script, job_script, step_command, with_prefix

logger = logging.getLogger(__name__)

FILES_S = 60.0
"""How long a file that a node wrote may take to be seen here."""
LATE_S = 5.0
"""How long a result may take that a job which did not end well may still have written."""
CANCEL_S = 20.0
"""How long a cancelled job may take to end, its teardown included."""

UNCLEAR_S = 20.0
"""For how long the reason of a pending job may be ``PartitionConfig`` before Slurm knows a better one."""
UP = ("idle", "alloc", "mix", "comp", "plnd", "resv")
"""States of nodes that can run jobs, now or soon."""

_ALLOCATION = "allocation"
_UNSEEN = f"can't be seen here after {FILES_S:g} s: is this file system shared?"


@dataclass(frozen=True)
class _Fault:
    """An end that is no fault of the job."""

    reason: str
    nodes: tuple[str, ...] = ()


class _BatchJob:
    """A job in the queue. A step of an allocation derives from it."""

    def __init__(self, queue: SlurmQueue, job_id: str) -> None:
        self.id = job_id
        self._queue = queue
        self.since = time.monotonic()

    def end(self) -> QueueEntry | None:
        """Its end by the queue's last answer, or None. A job that Slurm doesn't know any more is ``LOST``."""
        entry = self._queue.entries.get(self.id)
        if entry is None and self._queue.asked > self.since:
            return QueueEntry(self.id, "LOST", reason="Slurm does not know the job any more")
        return entry if entry is not None and entry.ended else None


class _Step(_BatchJob):
    """A step of an allocation: an ``srun`` of ours."""

    def __init__(self, queue: SlurmQueue, allocation: str, command: list[str], folder: Path) -> None:
        super().__init__(queue, allocation)
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.process = subprocess.Popen(command, cwd=folder, env=clean_environment(), start_new_session=True, **quiet)
        self._ended = float("inf")

    def end(self) -> QueueEntry | None:
        """The step's own end, or its allocation's, which is no fault of the job unless it was cancelled."""
        code = self.process.poll()
        if code is not None:
            self._ended = min(self._ended, time.monotonic())
        if code is None or self._queue.asked < self._ended:  # an older answer may not know yet why it ended
            return None
        entry = super().end()
        if entry is None:
            return QueueEntry(self.id, "FAILED", code << 8 if code >= 0 else -code)
        if entry.state == "CANCELLED":
            return entry
        return replace(entry, state="LOST", reason=f"its allocation ended: {entry.state}")


@dataclass
class _Flight:
    """One job on its way: its control folder, and what was seen of it."""

    job: Job
    control: Path
    id: str  # of this submission; a result that carries another one is stale
    submission: _BatchJob | None = None  # None for a job whose result is there already
    follower: OutputFollower | None = None
    pruned: bool = False

    def document(self) -> dict[str, Any] | None:
        """What the node wrote about its end, once it has."""
        found = node.read_document(self.control / node.RESULT)
        return found if found is not None and found["id"] == self.id else None

    def look(self, *, last: bool = False) -> None:
        """Tell of new values. Once the watch says so, the node is told to end the job."""
        if self.follower is None or self.pruned:
            return
        self.pruned = self.follower.finish() if last else self.follower.look()
        if self.pruned and not last:
            with contextlib.suppress(OSError):
                (self.control / node.STOP).write_text("1\n")


class SlurmRunner:
    """Runs jobs on the nodes of a Slurm cluster (the ``ClusterRunner`` port).

    Trials' folders and the Python that runs this must be on a file system that the nodes share.

    Args:
        token: names the run, and is a part of its jobs' names.
        slots: how many jobs run at a time.
        config: the settings.
        scenario_dir: where the files lie that jobs use; shared as well.
    """

    Config: ClassVar[type[SlurmConfig]] = SlurmConfig
    uses_num_nodes: ClassVar[bool] = True

    def __init__(
        self, token: str, slots: int = 1, config: SlurmConfig | None = None, scenario_dir: Path | None = None
    ) -> None:
        del scenario_dir
        self._config = config or SlurmConfig()
        self._prefix = f"tunegym-{token[:12]}-"
        self._stop = StopFlag()
        self._queue = SlurmQueue(self._config.poll_interval_s)
        self._known: set[str] = set()  # ids of jobs that need not be found in the queue
        self._leftovers: dict[str, str] | None = None  # ids by name; None unless there was a driver before us
        self._closed = False
        self._allocation: _BatchJob | None = None  # the one that has our steps
        self._allocating = threading.Lock()
        self._nodes = self._config.allocation_nodes or slots
        self._shares = -(-slots // self._nodes)
        self._steps: list[subprocess.Popen[Any]] = []

    # the Runner port ------------------------------------------------------------------------------------

    def run(self, job: Job, started: Callable[[JobHandle], None], watch: ReportCallback | None = None) -> JobResult:
        """Run one job to its end, again if the cluster is at fault; ``watch`` may end it early.

        Raises:
            RunnerError: a folder can't be used, on the node either, there is no Slurm, or the runner is closed.
        """
        if self._stop.is_set:
            return JobResult("interrupted")
        if self._closed:
            raise RunnerError("the runner is closed", hint="make a new one")
        job = with_prefix(replace(job, folder=os.path.abspath(job.folder)), self._config.command_prefix)  # noqa: PTH100
        told: list[int] = []
        reasons: list[str] = []
        nodes: tuple[str, ...] = ()
        flight = self._adopted(job)
        while True:
            flight = flight or self._submitted(job)
            if isinstance(flight, JobResult):
                return flight
            result = self._awaited(flight, started, untold(watch, told) if watch and job.reports else None)
            nodes += tuple(filter(None, result.nodes))
            if isinstance(result, JobResult):
                return replace(result, nodes=nodes)
            if self._stop.is_set:
                return JobResult("interrupted")
            reasons.append(result.reason)
            if len(reasons) > self._config.retries:
                error = f"the cluster failed in {counted(len(reasons), 'attempt')}: {'; '.join(dict.fromkeys(reasons))}"
                return JobResult("exited", error=error, nodes=nodes)
            logger.warning("job %s is run again: %s", job.name, result.reason)
            flight = None

    def stop(self) -> None:
        """Cancel every job of this run; each ``run`` returns ``interrupted``, and so does every later one."""
        self._stop.set()

    def kill(self) -> None:
        """As ``stop``, without waiting for the jobs' ends."""
        self._stop.set()
        self._stop.set()
        ids = {*self._queue.watched, *([self._allocation.id] if self._allocation else [])}
        with contextlib.suppress(AwayError, SubmissionError, RunnerError):
            self._queue.call("scancel", "--quiet", *ids)

    def end_leftovers(self, handles: Iterable[JobHandle]) -> int:
        """Find the jobs that a killed driver left. ``run`` waits for those that it is asked for again.

        Those that it isn't asked for are cancelled by ``close``. Only an allocation is ended here, with its steps.
        """
        self._queue.patiently(self._queue.poll, self._stop)
        self._known.update(one.id for one in self._queue.entries.values() if one.ended)
        self._leftovers = {one.name: one.id for one in sorted(self._ours(), key=lambda one: int(one.id))}
        allocation = self._leftovers.pop(self._prefix + _ALLOCATION, None)
        if allocation is not None:
            self._cancel(_BatchJob(self._queue, allocation))
        return int(allocation is not None)

    def close(self) -> None:
        """Cancel the jobs of this run that are of no use, and release the rest. Calling it twice is fine."""
        if not self._closed and (self._known or self._leftovers or self._allocation or self.waiting):
            with contextlib.suppress(AwayError, SubmissionError, RunnerError):
                self._queue.poll()
            if useless := {one.id for one in self._ours()} - self._known:
                self._queue.cancel(*useless)
        self._closed = True
        for step in self._steps:
            step.kill()  # it ended with its allocation
            step.wait()
        self._queue.close()
        self._stop.close()

    def _ours(self) -> list[QueueEntry]:
        """The run's jobs in the queue's last answer that have not ended."""
        return [one for one in self._queue.entries.values() if one.name.startswith(self._prefix) and not one.ended]

    # the ClusterRunner port -----------------------------------------------------------------------------

    @property
    def waiting(self) -> str:
        """A controller that doesn't answer, or jobs that are pending and why."""
        return self._queue.waiting

    def script(self, job: Job) -> str:
        """The script that would be submitted for a job."""
        try:
            _ = self._excluded
        except (AwayError, SubmissionError, TunegymError):
            self._excluded = (f"<all but {','.join(self._config.nodes)}>", *self._config.exclude_nodes)
        text = self._script(with_prefix(job, self._config.command_prefix))
        if not self._config.single_sbatch:
            return text
        step = shlex.join(step_command(self._config, "ALLOCATION", job, "CPUS", self._shares, node.OUTPUT))
        return f"{self._holder()}\n# {node.SCRIPT} of this trial, by {step}:\n{text}"

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse experiments that the cluster can never run. A controller that is away is not waited for."""
        limit = sys.maxsize
        with contextlib.suppress(AwayError, SubmissionError):
            _, limit, _ = self._cluster()
        for one in experiments:
            if self._config.command_prefix is not None and "command" not in one.workload_args:
                what = f"{one.name}: command_prefix is for commands, and the workload {one.workload} has none"
                raise TunegymError(what, hint="remove command_prefix from [system], or use the command workload")
            most = one.most_nodes
            given = self._nodes if self._config.single_sbatch else most
            if most > given:
                what = f"{one.name}: num_nodes = {most} is more than the allocation has: {counted(self._nodes, 'node')}"
                raise TunegymError(what, hint=f"write allocation_nodes = {most} or more in [system]")
            if given > limit:
                what = f"{one.name}: a job of {counted(given, 'node')} can never run: the partition gives it {limit}"
                raise TunegymError(what, hint="ask for less, or change partition, nodes or exclude_nodes in [system]")

    # the cluster ----------------------------------------------------------------------------------------

    def _cluster(self) -> tuple[list[str], int, bool]:
        """The partition's nodes that jobs must not use, how many a job can have, and whether all of these are up.

        Raises as ``SlurmQueue.call``, and ``TunegymError``: settings name what Slurm doesn't have.
        """
        wanted = self._config.partition
        options = ["--noheader", "--Node", "--format=%N|%P|%s|%t", *([f"--partition={wanted}"] if wanted else [])]
        rows = [line.split("|") for line in self._queue.call("sinfo", *options).split()]
        rows = [row for row in rows if wanted or row[1].endswith("*")]
        sizes = {name: size.rpartition("-")[2] for name, _, size, _ in rows}
        if not sizes:
            what = f"Slurm has no partition {wanted!r}" if wanted else "Slurm has no default partition"
            raise TunegymError(what, hint="write partition = ... in [system]; `sinfo -s` lists the partitions")
        show = functools.partial(self._queue.call, "scontrol", "show", "hostnames")
        given = (self._config.nodes, self._config.exclude_nodes)
        only, without = (set(show(",".join(names)).split() if names else ()) for names in given)
        if unknown := sorted((only | without) - sizes.keys()):
            what = f"nodes, exclude_nodes: the partition has no node {', '.join(unknown)}"
            raise TunegymError(what, hint="`sinfo -N` lists the nodes")
        usable = (only or set(sizes)) - without
        most = next(iter(sizes.values()))
        is_up = all(state.rstrip("+-") in UP for name, *_, state in rows if name in usable)
        return sorted(sizes.keys() - usable), min(len(usable), int(most) if most.isdigit() else len(usable)), is_up

    @functools.cached_property
    def _excluded(self) -> Sequence[str]:
        """The nodes to exclude. Slurm's list of nodes asks for all of them, so the others are excluded."""
        return self._cluster()[0] if self._config.nodes else self._config.exclude_nodes

    # submitting -----------------------------------------------------------------------------------------

    def _script(self, job: Job) -> str:
        return job_script(self._config, self._prefix + job.name, job, _control(job), self._excluded)

    def _holder(self) -> str:
        return holder_script(self._config, self._prefix + _ALLOCATION, self._nodes, self._shares, self._excluded)

    def _adopted(self, job: Job) -> _Flight | None:
        """A job of an earlier session that is this one: its result, or the job that still runs."""
        if self._leftovers is None:
            return None
        control, leftover = Path(_control(job)), self._leftovers.pop(self._prefix + job.name, None)
        for place in (control, Path(job.folder, "job")):
            written = node.read_document(place / node.JOB)
            if written is None or written["job"] != node.job_document(job):
                continue
            flight = _Flight(job, place, written["id"])
            found = flight.document()
            if found is None and place == control and leftover is not None:
                self._known.add(leftover)
                return replace(flight, submission=_BatchJob(self._queue, leftover))
            if found and not (found["told"] or found["broken"] or found["result"]["ending"] == "interrupted"):
                return flight
        if leftover is not None:
            self._cancel(_BatchJob(self._queue, leftover))
        return None

    def _submitted(self, job: Job) -> _Flight | JobResult:
        """The job, submitted; or the result if it was refused, or if we are to stop."""
        control, name, new = Path(_control(job)), self._prefix + job.name, uuid.uuid4().hex
        if self._queue.patiently(lambda: self._excluded, self._stop) is None:
            return JobResult("interrupted")
        try:
            shutil.rmtree(control, ignore_errors=True)
            control.mkdir(parents=True, exist_ok=True)
            (control / node.STOP).touch()
            document = {"id": new, "step": self._config.single_sbatch, "job": node.job_document(job)}
            write_atomic(control / node.JOB, json.dumps(document))
            (control / node.SCRIPT).write_text(self._script(job), encoding="utf-8")
        except OSError as error:
            raise broken(f"the job's folder {control} can't be written", error) from error
        try:
            submission = self._step(control, job) if self._config.single_sbatch else self._sbatch(control, name)
        except SubmissionError as error:
            return JobResult("exited", error=f"sbatch refused the job: {error}")
        return JobResult("interrupted") if submission is None else _Flight(job, control, new, submission)

    def _step(self, control: Path, job: Job) -> _Step | None:
        allocation = self._allocated(control.parent / f"{_ALLOCATION}.job")
        if allocation is None:
            return None
        cpus = max(allocation.cpus // self._nodes // self._shares, 1)
        command = step_command(self._config, allocation.id, job, cpus, self._shares, _output(control))
        step = _Step(self._queue, allocation.id, command, control)
        self._steps = [one for one in self._steps if one.poll() is None] + [step.process]
        return step

    def _allocated(self, folder: Path) -> QueueEntry | None:
        """The running allocation, a new one if there is none; None if we are to stop. Raises ``SubmissionError``."""
        with self._allocating:
            while not self._stop.is_set:
                if self._allocation is None or self._allocation.end() is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / node.SCRIPT).write_text(self._holder(), encoding="utf-8")
                    self._allocation = self._sbatch(folder, self._prefix + _ALLOCATION)
                    if self._allocation is None:
                        break
                    self._known.discard(self._allocation.id)
                entry = self._queue.entries.get(self._allocation.id)
                if entry is not None and entry.state == "RUNNING":
                    return entry
                if reason := self._never(self._allocation, self._nodes):
                    self._cancel(self._allocation)
                    raise SubmissionError(f"the allocation can never be made: {reason}")
                with self._queue.watch(self._allocation.id):
                    self._stop.wait(0.1)
        return None

    def _sbatch(self, control: Path, name: str) -> _BatchJob | None:
        """Submit the script; None if we are to stop before it is in the queue. Raises ``SubmissionError``."""
        script = (control / node.SCRIPT).read_text(encoding="utf-8").splitlines()
        given = [shlex.split(line)[1] for line in script[1 : script.index("")]]  # else variables of sbatch would win
        command = ("sbatch", "--parsable", *given, f"--output={_output(control)}", node.SCRIPT)
        while not self._stop.is_set:
            try:
                found = [self._queue.call(*command, cwd=control).strip().partition(";")[0]]
            except AwayError:  # it may have been taken although we heard nothing
                self._stop.wait(self._config.poll_interval_s)
                entries = self._queue.patiently(self._queue.poll, self._stop) or {}
                found = [one.id for one in entries.values() if one.name == name and one.id not in self._known]
            if found:
                self._known.add(found[0])
                return _BatchJob(self._queue, found[0])
        return None

    # waiting --------------------------------------------------------------------------------------------

    def _awaited(
        self, flight: _Flight, started: Callable[[JobHandle], None], watch: ReportCallback | None
    ) -> JobResult | _Fault:
        """How the job ended."""
        job, submission = flight.job, flight.submission
        with contextlib.ExitStack() as ended:
            if submission is not None:
                ended.enter_context(self._queue.watch(submission.id))
                started({"slurm": submission.id})
            if watch is not None:
                if isinstance(job, CommandJob) and job.stream is not None:
                    flight.follower = OutputFollower(job.folder, job.stream, watch)
                else:
                    flight.follower = _ReportFollower(str(flight.control), Stream("", node.REPORTS), watch)
                ended.callback(flight.follower.close)
            result = self._wait(flight)
            flight.look(last=True)
        if flight.pruned and not self._stop.is_set:
            result = result if isinstance(result, JobResult) else JobResult("pruned", nodes=result.nodes)
            error = result.error if result.ending == "pruned" else None
            result = replace(result, ending="pruned", error=error, value=None)
        if isinstance(result, JobResult) and result.ending != "interrupted":
            _keep_control(flight)
        return result

    def _wait(self, flight: _Flight) -> JobResult | _Fault:
        begun, submission = time.monotonic(), flight.submission
        late = float("inf")  # when to give up waiting for the result of a job that has ended
        while True:
            found = flight.document()
            # Only Slurm knows who ended a job that was told to end, or was killed.
            is_unclear = found is not None and (found["told"] or found["result"]["exit_code"] in (-9, 137))
            if found is not None and (submission is None or not is_unclear):
                return self._finished(flight, found)
            assert submission is not None
            flight.look()
            now = time.monotonic()
            if (entry := submission.end()) is not None:
                if found is not None and entry.state in ("COMPLETED", "FAILED"):
                    return self._finished(flight, found)
                late = min(late, now + (FILES_S if entry.state == "COMPLETED" else LATE_S))
                if found is not None or now >= late:
                    said = error_lines(str(flight.control), node.OUTPUT)
                    return judged(entry, self._config.time_limit, f": {said}" if said else "")
            if reason := self._never(submission, flight.job.num_nodes):
                self._cancel(submission)
                return JobResult("exited", error=f"Slurm can never run this job: {reason}")
            # Short jobs are noticed at once, and many long ones cost the file system little.
            if self._stop.wait(min(max((now - begun) / 50, 0.03, len(self._queue.watched) / 200), 1.0)):
                self._cancel(submission, flight)
                return JobResult("interrupted")

    def _never(self, submission: _BatchJob, nodes: int) -> str | None:
        """Why a pending job can never run; None if waiting may help."""
        entry = self._queue.entries.get(submission.id)
        if entry is None or entry.state != "PENDING":
            return None
        if entry.reason == "PartitionConfig":  # nodes are too few or too small: for now, or for ever
            with contextlib.suppress(AwayError, SubmissionError):
                _, limit, is_up = self._cluster()
                few = f"{counted(nodes, 'node')} of {limit}" if nodes > limit else None
                is_sure = is_up and time.monotonic() - submission.since > UNCLEAR_S
                return few or ("no node is large enough (PartitionConfig)" if is_sure else None)
        return entry.reason if NEVER.match(entry.reason) else None

    def _cancel(self, submission: _BatchJob, flight: _Flight | None = None) -> None:
        """Cancel a job and wait for its end, as long as that may take."""
        deadline, asked = time.monotonic() + CANCEL_S, self._queue.cancel(submission.id)
        with self._queue.watch(submission.id):
            while time.monotonic() < deadline and not self._stop.wait(0.1, hurry=True):
                asked = asked or self._queue.cancel(submission.id)
                if asked and (submission.end() is not None or (flight is not None and flight.document() is not None)):
                    return
        if not asked:
            logger.warning("job %s was not cancelled: %s", submission.id, self._queue.waiting)

    def _finished(self, flight: _Flight, found: Mapping[str, Any]) -> JobResult:
        """The result that the node wrote, once the files are here that it speaks of."""
        result, nodes = JobResult(**{**found["result"], "nodes": (found["nodes"],)}), found["nodes"]
        if found["broken"]:
            raise RunnerError(f"on {nodes}: {result.error}", hint=found["broken"])
        deadline = time.monotonic() + FILES_S
        while missing := _missing_file(flight.job.folder, found["files"]):
            if self._stop.wait(0.1):
                return JobResult("interrupted")
            if time.monotonic() > deadline:
                return JobResult("exited", error=f"{nodes} wrote {missing}, which {_UNSEEN}", nodes=result.nodes)
        return result


def judged(entry: QueueEntry, time_limit: str | None, said: str = "") -> JobResult | _Fault:
    """The outcome of a job that ended without writing a result; ``said`` is what its output says."""
    nodes = (entry.nodes,)
    where = f" on {entry.nodes}" if entry.nodes else ""
    if entry.is_fault:
        why = f" ({entry.reason})" if entry.reason not in ("", "None") else ""
        return _Fault(f"the job ended with {entry.state}{where}{why}", nodes)
    if NEVER.match(entry.reason):
        return JobResult("exited", error=f"Slurm can never run this job: {entry.reason}")
    code = None
    match entry.state:
        case "TIMEOUT" | "DEADLINE":
            limit = f"time_limit = {time_limit}" if time_limit else "the partition's time limit"
            return JobResult("timed_out", error=f"ended by Slurm after {limit}", nodes=nodes)
        case "OUT_OF_MEMORY":
            code, error = -9, f"out of memory{where}"
        case "CANCELLED":
            error = f"the job was cancelled by someone else{where}"
        case "COMPLETED":
            error = f"the job ended{where}, and its result {_UNSEEN}"
        case _:
            code = os.waitstatus_to_exitcode(entry.status)
            error = f"the job {Exit(code, 0.0, 0).describe()}{where} without a result{said}"
    return JobResult("exited", code, error, nodes=nodes)


# files --------------------------------------------------------------------------------------------------


def _control(job: Job) -> str:
    return f"{job.folder}.job"


def _output(control: Path) -> str:
    """The output's path as an option of Slurm's, which replaces patterns in it, or else takes backslashes away."""
    path = str(control / node.OUTPUT)
    return path.replace("\\", "\\\\") if "\\" in path else path.replace("%", "%%")


def _keep_control(flight: _Flight) -> None:
    """Move the control folder into the trial's, so that they are kept or deleted together."""
    folder = Path(flight.job.folder)
    name = f"job-{flight.id}" if (folder / "job").exists() else "job"
    if flight.control.parent != folder:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            flight.control.rename(folder / name)


def _missing_file(folder: str, sizes: Mapping[str, int]) -> str | None:
    """The first file that isn't seen here in its size."""
    for name, size in sizes.items():
        path = Path(folder, name)
        with contextlib.suppress(OSError):
            next(path.parent.iterdir(), None)  # NFS looks again
            if path.stat().st_size == size:
                continue
        return f"{counted(size, 'byte')} to {path}"
    return None


class _ReportFollower(OutputFollower):
    """Tells ``watch`` of the values that a call on a node reports: a line ``step value`` for each."""

    def _tell(self, line: bytes) -> bool:
        step, _, value = line.partition(b" ")
        return bool(value) and self._watch(int(step), float(value))
