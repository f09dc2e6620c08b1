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
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import RunnerError, TunegymError
from tunegym.core.files import write_atomic
from tunegym.core.stop import StopFlag
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.trial import CommandJob, Job, JobHandle, JobResult, ReportCallback
from tunegym.tuning.model.values import counted
from tunegym.tuning.runners import node
from tunegym.tuning.runners.command import OutputFollower, broken, error_lines
from tunegym.tuning.runners.slurm_queue import (
    FAULTS,
    NEVER,
    AwayError,
    QueueEntry,
    RefusedError,
    SlurmQueue,
    clean_environment,
    is_readable,
    missing_command,
    no_slurm,
)
from tunegym.tuning.runners.slurm_script import (
    SCRIPT,
    SlurmConfig,
    holder_script,
    job_script,
    step_command,
    with_prefix,
)

logger = logging.getLogger(__name__)

FILES_S = 60.0
"""How long a file that a node wrote may take to be seen here."""
LATE_S = 5.0
"""How long a result may take that a job which did not end well may still have written."""
CANCEL_S = 20.0
"""How long a cancelled job may take to end, its teardown included."""

_OUTPUT = "job.out"
_ALLOCATION = "allocation"


@dataclass(frozen=True)
class _Fault:
    """An end that is no fault of the job."""

    reason: str
    nodes: str = ""


class _BatchJob:
    """A job in the queue. A step of an allocation derives from it."""

    def __init__(self, queue: SlurmQueue, job_id: str, name: str) -> None:
        self.handle: JobHandle = {"slurm": job_id, "name": name}
        self.watched = job_id
        self._queue = queue
        self._since = time.monotonic()
        self._gone: QueueEntry | None = None  # how it ended, if the queue has forgotten it

    def end(self) -> QueueEntry | None:
        """The queue's word, or after it has forgotten the job the accounting's."""
        entry = self._queue.entries.get(self.watched)
        if entry is not None:
            return entry if entry.ended else None
        if self._queue.asked < self._since:
            return None
        if self._gone is None:
            lost = QueueEntry(self.watched, "LOST", 0, "", 0, "", "Slurm does not know the job any more")
            self._gone = self._queue.recall(self.watched) or lost
        return self._gone

    def cancel(self) -> bool:
        """Whatever it does now."""
        return self._queue.cancel(self.watched)


class _Step(_BatchJob):
    """A step of an allocation: an ``srun`` of ours."""

    def __init__(self, queue: SlurmQueue, allocation: str, name: str, command: list[str], folder: Path) -> None:
        super().__init__(queue, allocation, name)
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        environment = clean_environment()
        self.process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **quiet)
        self._ended: float | None = None

    def end(self) -> QueueEntry | None:
        """The step's own end, or its allocation's, which is no fault of the job unless it was cancelled."""
        code = self.process.poll()
        if code is None:
            return None
        self._ended = self._ended or time.monotonic()
        if self._queue.asked < self._ended:
            return None
        entry = super().end()
        if entry is None:
            return QueueEntry(self.watched, "FAILED", (code & 0xFF) << 8 if code >= 0 else -code, "", 0, "", "")
        if entry.state == "CANCELLED":
            return entry
        return replace(entry, state="LOST", reason=f"its allocation ended: {entry.state}")


@dataclass
class _Flight:
    """One job on its way: its control folder, and what was seen of it."""

    job: Job
    control: Path
    id: str  # of this submission; a result that carries another one is stale
    submission: _BatchJob | None  # None for a job whose result is there already
    follower: OutputFollower | ReportFollower | None = None
    pruned: bool = False

    def result(self) -> dict[str, Any] | None:
        """What the node wrote, once it has."""
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
        self._slots = slots
        run = token[:12] if token.isalnum() and len(token) >= 12 else blake2b(token.encode(), digest_size=6).hexdigest()
        self._prefix = f"tunegym-{run}-"
        self._stop = StopFlag()
        self._queue = SlurmQueue(self._config.poll_interval_s)
        self._excluded = None if self._config.nodes else self._config.exclude_nodes  # None until Slurm was asked
        self._live: dict[str, _BatchJob] = {}
        self._known: set[str] = set()  # ids of this session's jobs
        self._leftovers: dict[str, list[str]] | None = None  # ids by name; None unless there was a driver before us
        self._answer_lost = False
        self._lock = threading.Lock()
        self._closed = False
        self._allocation: str | None = None  # the id of the one that has our steps
        self._allocating = threading.Lock()
        self._nodes = self._config.allocation_nodes or slots
        self._shares = -(-slots // self._nodes)
        self._resources = contextlib.ExitStack()
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
        told = None if watch is None else _OnceTold(watch)
        faults: list[_Fault] = []
        while True:
            flight = self._adopted(job) or self._submitted(job)
            if isinstance(flight, JobResult):
                return flight
            result = self._awaited(flight, started, told)
            if isinstance(result, JobResult):
                nodes = (*(fault.nodes for fault in faults), *result.nodes)
                return replace(result, nodes=tuple(filter(None, nodes)))
            faults.append(result)
            if self._stop.is_set:
                return JobResult("interrupted")
            if len(faults) > self._config.retries:
                reasons = "; ".join(dict.fromkeys(fault.reason for fault in faults))
                nodes = tuple(fault.nodes for fault in faults if fault.nodes)
                return JobResult("exited", error=f"the cluster failed {_times(len(faults))}: {reasons}", nodes=nodes)
            logger.warning("job %s is run again: %s", job.name, result.reason)

    def stop(self) -> None:
        """Cancel every job of this run; each ``run`` returns ``interrupted``, and so does every later one."""
        self._stop.set()

    def kill(self) -> None:
        """As ``stop``, without waiting for the jobs' ends."""
        self._stop.set()
        self._stop.set()
        ids = {self._allocation, *(submission.watched for submission in list(self._live.values()))}
        with contextlib.suppress(AwayError, RefusedError, RunnerError):
            self._queue.call("scancel", "--quiet", *filter(None, ids))

    def end_leftovers(self, handles: Iterable[JobHandle]) -> int:
        """Find the jobs that a killed driver left. ``run`` waits for those that it is asked for again.

        Those that it isn't asked for are cancelled by ``close``. Only an allocation is ended here, with its steps.
        """
        entries = self._queue.patiently(self._queue.poll, self._stop) or {}
        left = [one for one in entries.values() if one.name.startswith(self._prefix) and not one.ended]
        allocations = [one for one in left if one.name == self._prefix + _ALLOCATION]
        self._cancel_leftovers([one.id for one in allocations], _ALLOCATION)
        self._leftovers = {}
        for one in left:
            if one not in allocations:
                self._leftovers.setdefault(one.name, []).append(one.id)
        return len(allocations)

    def close(self) -> None:
        """Cancel the jobs of earlier sessions that are of no use, and release the rest. Calling it twice is fine."""
        if not self._closed:
            self._closed = True
            useless = [job_id for ids in (self._leftovers or {}).values() for job_id in ids]
            useless += [] if self._allocation is None else [self._allocation]
            if self._answer_lost:  # there may be a job that we don't know of
                with contextlib.suppress(AwayError, RefusedError, RunnerError):
                    entries = self._queue.poll().values()
                    useless += [one.id for one in entries if one.name.startswith(self._prefix) and not one.ended]
            if useless:
                self._queue.cancel(*useless)
        for step in self._steps:
            step.kill()  # it ended with its allocation
            step.wait()
        self._resources.close()
        self._queue.close()
        self._stop.close()

    # the ClusterRunner port -----------------------------------------------------------------------------

    @property
    def waiting(self) -> str:
        """A controller that doesn't answer, or jobs that are pending and why."""
        return self._queue.waiting

    def script(self, job: Job) -> str:
        """The script that would be submitted for a job."""
        try:
            self._exclude()
        except (AwayError, RefusedError, TunegymError):
            self._excluded = (f"<all but {','.join(self._config.nodes)}>", *self._config.exclude_nodes)
        text = self._script(with_prefix(job, self._config.command_prefix), _control(job))
        if not self._config.single_sbatch:
            return text
        step = shlex.join(step_command(self._config, "ALLOCATION", job, "CPUS", self._shares, _OUTPUT))
        return f"{self._holder()}\n# {SCRIPT} of this trial, by {step}:\n{text}"

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse experiments that the cluster can never run. A controller that is away is not waited for."""
        lacking = missing_command(("sbatch", "squeue", "scancel", "sinfo"))
        if lacking is not None:
            raise no_slurm(lacking)
        if self._config.command_prefix is not None:
            for one in experiments:
                if "command" not in one.workload_args:
                    what = f"{one.name}: command_prefix is for commands, and the workload {one.workload} has none"
                    raise TunegymError(what, hint="remove command_prefix from [system], or use the command workload")
        try:
            limit = self._most_nodes()
        except (AwayError, RefusedError):
            return
        wanted = self._config.partition
        for one in experiments:
            domain = one.space.knobs.get("num_nodes")
            values = domain.values if isinstance(domain, Choice) else [one.space.fixed.get("num_nodes", 1)]
            most = max(int(value) for value in values)
            if self._config.single_sbatch and most > self._nodes <= limit:
                what = f"{one.name}: num_nodes = {most} is more than the allocation has: {counted(self._nodes, 'node')}"
                raise TunegymError(what, hint=f"write allocation_nodes = {most} or more in [system]")
            if (most := max(most, self._nodes if self._config.single_sbatch else 1)) > limit:
                where = f"the partition {wanted!r}" if wanted else "the default partition"
                what = f"{one.name}: num_nodes = {most} is more than {where} gives a job: {counted(limit, 'node')}"
                raise TunegymError(what, hint="ask for fewer nodes, or choose another partition in [system]")

    # the cluster ----------------------------------------------------------------------------------------

    def _partitions(self) -> dict[str, tuple[set[str], int]]:
        """Each partition's nodes, and the most that a job may have; the default one also by an empty name."""
        partitions: dict[str, tuple[set[str], int]] = {}
        for line in self._queue.call("sinfo", "--noheader", "--Node", "--format=%N|%P|%s").splitlines():
            name, partition, size = line.strip().split("|")
            most = size.rpartition("-")[2]
            for key in {partition.rstrip("*"), *([""] if partition.endswith("*") else [])}:
                nodes, _ = partitions.setdefault(key, (set(), int(most) if most.isdigit() else sys.maxsize))
                nodes.add(name)
        wanted = self._config.partition or ""
        if wanted not in partitions:
            names = ", ".join(sorted(filter(None, partitions))) or "none"
            what = f"Slurm has no partition {wanted!r}" if wanted else "Slurm has no default partition"
            raise TunegymError(f"{what}; there is: {names}", hint="write partition = ... in [system]")
        return partitions

    def _usable(self, partitions: Mapping[str, tuple[set[str], int]]) -> set[str]:
        """The nodes that jobs may use."""
        there = partitions[self._config.partition or ""][0]
        only, without = (set(self._hosts(names)) for names in (self._config.nodes, self._config.exclude_nodes))
        for key, names in (("nodes", only), ("exclude_nodes", without)):
            if unknown := sorted(names - there):
                what = f"{key}: the partition has no node {', '.join(unknown)}"
                raise TunegymError(what, hint="`sinfo -N` lists the nodes")
        usable = (only or there) - without
        if not usable:
            raise TunegymError("nodes and exclude_nodes leave no node", hint="remove one of them from [system]")
        return usable

    def _most_nodes(self) -> int:
        """How many nodes a job can have."""
        partitions = self._partitions()
        return min(len(self._usable(partitions)), partitions[self._config.partition or ""][1])

    def _hosts(self, names: Sequence[str]) -> list[str]:
        return self._queue.call("scontrol", "show", "hostnames", ",".join(names)).split() if names else []

    def _exclude(self) -> bool:
        """Find the nodes to exclude. Slurm's list of nodes asks for all of them, so the others are excluded."""
        if self._excluded is None:
            partitions = self._partitions()
            others = partitions[self._config.partition or ""][0] - self._usable(partitions)
            self._excluded = tuple(sorted(others))
        return True

    # submitting -----------------------------------------------------------------------------------------

    def _name(self, job: Job) -> str:
        return self._prefix + re.sub(r"[^\w.-]", "_", job.name, flags=re.ASCII)

    def _script(self, job: Job, control: str) -> str:
        excluded = self._excluded or ()
        return job_script(self._config, self._name(job), job, control, excluded, self._config.single_sbatch)

    def _holder(self) -> str:
        name = self._prefix + _ALLOCATION
        return holder_script(self._config, name, self._nodes, self._shares, self._excluded or ())

    def _adopted(self, job: Job) -> _Flight | None:
        """A job of an earlier session that is this one: its result, or the job that still runs. Only once."""
        if self._leftovers is None:
            return None
        name, control = self._name(job), Path(_control(job))
        with self._lock:
            ids = self._leftovers.pop(name, None)
            if name in self._known:
                return None
            self._known.add(name)
        for place in (control, Path(job.folder, "job")):
            written = node.read_document(place / node.JOB)
            if written is None or written["job"] != node.job_document(job):
                continue
            flight = _Flight(job, place, written["id"], None)
            result = flight.result()
            if result is not None and result["ending"] != "interrupted" and not {"broken"} & result.keys():
                if not result["told"]:
                    return flight
            elif place == control and ids:
                self._known.add(newest := ids.pop())
                self._cancel_leftovers(ids, name)
                return replace(flight, submission=_BatchJob(self._queue, newest, name))
        self._cancel_leftovers(ids or (), name)
        return None

    def _cancel_leftovers(self, ids: Iterable[str], name: str) -> None:
        for job_id in ids:
            self._cancel(_BatchJob(self._queue, job_id, name))

    def _submitted(self, job: Job) -> _Flight | JobResult:
        """The job, submitted; or the result if it was refused, or if we are to stop."""
        control, name, new = Path(_control(job)), self._name(job), uuid.uuid4().hex
        if self._queue.patiently(self._exclude, self._stop) is None:
            return JobResult("interrupted")
        try:
            shutil.rmtree(control, ignore_errors=True)
            control.mkdir(parents=True, exist_ok=True)
            (control / node.STOP).touch()
            document = {"id": new, "step": self._config.single_sbatch, "job": node.job_document(job)}
            write_atomic(control / node.JOB, json.dumps(document))
            (control / SCRIPT).write_text(self._script(job, str(control)), encoding="utf-8")
        except OSError as error:
            raise broken(f"the job's folder {control} can't be written", error) from error
        try:
            submit = self._step if self._config.single_sbatch else self._batch_job
            submission = submit(control, name, job)
        except RefusedError as error:
            return JobResult("exited", error=f"sbatch refused the job: {error}")
        if submission is None:
            return JobResult("interrupted")
        return _Flight(job, control, new, submission)

    def _batch_job(self, control: Path, name: str, _: Job) -> _BatchJob | None:
        job_id = self._sbatch(control, name)
        return None if job_id is None else _BatchJob(self._queue, job_id, name)

    def _step(self, control: Path, name: str, job: Job) -> _BatchJob | None:
        allocation = self._allocated(control.parent / f"{_ALLOCATION}.job")
        if allocation is None:
            return None
        cpus = max(allocation.cpus // self._nodes // self._shares, 1)
        output = _spelled(control / _OUTPUT)
        command = step_command(self._config, allocation.id, job, cpus, self._shares, output)
        step = _Step(self._queue, allocation.id, name, command, control)
        self._steps = [one for one in self._steps if one.poll() is None]
        self._steps.append(step.process)
        return step

    def _allocated(self, folder: Path) -> QueueEntry | None:
        """The running allocation, a new one if there is none; None if we are to stop. Raises ``RefusedError``."""
        name = self._prefix + _ALLOCATION
        with self._allocating:
            while not self._stop.is_set:
                allocation = None if self._allocation is None else _BatchJob(self._queue, self._allocation, name)
                if allocation is None or allocation.end() is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / SCRIPT).write_text(self._holder(), encoding="utf-8")
                    self._allocation = self._sbatch(folder, name)
                    if self._allocation is not None:
                        self._resources.enter_context(self._queue.watched(self._allocation))
                    continue
                entry = self._queue.entries.get(allocation.watched)
                if entry is not None and entry.state == "RUNNING":
                    return entry
                if reason := self._never(entry, self._nodes):
                    self._cancel(allocation)
                    raise RefusedError(f"the allocation can never be made: {reason}")
                is_readable(self._stop.fd, 0.1)
        return None

    def _sbatch(self, control: Path, name: str) -> str | None:
        """The id of the submitted job; None if we are to stop before there is one. Raises ``RefusedError``."""
        output, pause = _spelled(control / _OUTPUT), 1.0
        while not self._stop.is_set:
            try:
                answer = self._queue.call("sbatch", "--parsable", f"--output={output}", SCRIPT, cwd=control)
                job_id = answer.strip().partition(";")[0]
            except AwayError:
                self._answer_lost = True
                is_readable(self._stop.fd, pause)
                entries = self._queue.patiently(self._queue.poll, self._stop)
                if entries is None:
                    self._queue.cancel("--me", f"--name={name}")
                    return None
                pause = min(2 * pause, FILES_S)
                # It may have been taken although we heard nothing.
                found = [one.id for one in entries.values() if one.name == name and one.id not in self._known]
                if not found:
                    continue
                job_id = found[-1]
            self._known.add(job_id)
            return job_id
        return None

    # waiting --------------------------------------------------------------------------------------------

    def _awaited(
        self, flight: _Flight, started: Callable[[JobHandle], None], watch: _OnceTold | None
    ) -> JobResult | _Fault:
        """How the job ended."""
        job, submission = flight.job, flight.submission
        with contextlib.ExitStack() as ended:
            if submission is not None:
                self._live[flight.id] = submission
                ended.callback(self._live.pop, flight.id)
                ended.enter_context(self._queue.watched(submission.watched))
            if watch is not None and job.reports:
                watch.start_over()
                if isinstance(job, CommandJob) and job.stream is not None:
                    flight.follower = OutputFollower(job.folder, job.stream, watch)
                else:
                    flight.follower = ReportFollower(flight.control / node.REPORTS, watch)
                ended.callback(flight.follower.close)
            try:
                if submission is not None:
                    started(submission.handle)
                result = self._wait(flight)
                flight.look(last=True)
            except BaseException:  # the run is broken, and nobody waits for the job any more
                if submission is not None:
                    submission.cancel()
                raise
        if flight.pruned and not (isinstance(result, JobResult) and result.ending == "interrupted"):
            result = result if isinstance(result, JobResult) else JobResult("pruned", nodes=(result.nodes,))
            error = result.error if result.ending == "pruned" else None
            result = replace(result, ending="pruned", error=error, value=None)
        if isinstance(result, JobResult) and result.ending != "interrupted":
            _keep_control(flight)
        return result

    def _wait(self, flight: _Flight) -> JobResult | _Fault:
        begun = time.monotonic()
        late: float | None = None  # when to give up waiting for the result of a job that has ended
        submission = flight.submission
        while True:
            result = flight.result()
            if result is not None and (not result["told"] or submission is None):
                return self._finished(flight, result)
            flight.look()
            entry = None if submission is None else submission.end()
            if entry is not None and result is not None and entry.state in ("COMPLETED", "FAILED"):
                return self._finished(flight, result)
            if entry is not None and (result is not None or (late is not None and time.monotonic() >= late)):
                return self._judged(flight, entry)
            if entry is not None and late is None:
                late = time.monotonic() + (FILES_S if entry.state == "COMPLETED" else LATE_S)
            seen = None if submission is None else self._queue.entries.get(submission.watched)
            if submission is not None and (reason := self._never(seen, flight.job.num_nodes)):
                self._cancel(submission)
                error = f"Slurm can never run this job: {reason} (job {submission.watched})"
                return JobResult("exited", error=error)
            # Short jobs are noticed at once, and many long ones cost the file system little.
            pause = min(max((time.monotonic() - begun) / 50, 0.03, len(self._live) / 200), 1.0)
            if is_readable(self._stop.fd, pause):
                if submission is not None:
                    self._cancel(submission, flight)
                return JobResult("interrupted")

    def _never(self, entry: QueueEntry | None, nodes: int) -> str | None:
        """Why a pending job can never run; None if waiting may help."""
        if entry is None or entry.state != "PENDING":
            return None
        if entry.reason == "PartitionConfig":  # too few nodes: for now, or there will never be more
            with contextlib.suppress(AwayError, RefusedError):
                limit = self._most_nodes()
                return f"{counted(nodes, 'node')} of {limit}" if nodes > limit else None
        return entry.reason if NEVER.match(entry.reason) else None

    def _cancel(self, submission: _BatchJob, flight: _Flight | None = None) -> None:
        """Cancel a job and wait for its end, as long as that may take."""
        deadline, asked = time.monotonic() + CANCEL_S, False
        with self._queue.watched(submission.watched):
            while time.monotonic() < deadline and not is_readable(self._stop.hurry_fd, 0.1 if asked else 0.0):
                asked = asked or submission.cancel()
                if asked and (submission.end() is not None or (flight is not None and flight.result() is not None)):
                    return
        if not asked and not submission.cancel():
            logger.warning("job %s was not cancelled: %s", submission.watched, self._queue.waiting)

    def _finished(self, flight: _Flight, document: Mapping[str, Any]) -> JobResult | _Fault:
        """The result that the node wrote, once the files are here that it speaks of."""
        if "broken" in document:
            raise RunnerError(f"on {document['host']}: {document['error']}", hint=document["broken"])
        result = node.result_of(document, document["nodes"])
        missing = _await_files(flight.job.folder, document["files"], self._stop)
        if missing and self._stop.is_set:
            return JobResult("interrupted")
        if missing:
            error = f"{document['nodes']} wrote {missing} after {FILES_S:g} s: is this file system shared?"
            return JobResult("exited", error=error, nodes=result.nodes)
        if result.error and result.exit_code in (-9, 137) and self._is_out_of_memory(flight.submission):
            return replace(result, error=f"out of memory on {document['nodes']}: {result.error}")
        return result

    def _is_out_of_memory(self, submission: _BatchJob | None) -> bool:
        """Whether Slurm says so of a job that is about to end; it kills a process, and the job goes on."""
        deadline = time.monotonic() + LATE_S
        entry = None
        while submission is not None and entry is None and time.monotonic() < deadline:
            with contextlib.suppress(AwayError, RefusedError):
                self._queue.poll()
            entry = submission.end()
            if entry is None and is_readable(self._stop.fd, 0.5):
                break
        return entry is not None and entry.state == "OUT_OF_MEMORY"

    def _judged(self, flight: _Flight, entry: QueueEntry) -> JobResult | _Fault:
        """What the queue says of a job that left no result, or was ended from outside."""
        said = error_lines(str(flight.control), _OUTPUT)
        return judged(entry, self._config.time_limit, f": {said}" if said else "")


def judged(entry: QueueEntry, time_limit: str | None, said: str = "") -> JobResult | _Fault:
    """The outcome of a job that ended without a result of its own; ``said`` is what its output tells."""
    nodes, where = (entry.nodes,), f" on {entry.nodes}" if entry.nodes else ""
    state, job = entry.state, f"job {entry.id}"
    if state in FAULTS or state == "LOST" or "launch" in entry.reason.lower():
        return _Fault(f"{job} ended with {entry.describe()}", entry.nodes)
    if state in ("TIMEOUT", "DEADLINE"):
        limit = f"time_limit = {time_limit}" if time_limit else "the partition's time limit"
        return JobResult("timed_out", error=f"ended by Slurm after {limit}", nodes=nodes)
    if NEVER.match(entry.reason):
        return JobResult("exited", error=f"Slurm can never run this job: {entry.reason} ({job})")
    if state == "OUT_OF_MEMORY":
        return JobResult("exited", -9, error=f"out of memory{where}", nodes=nodes)
    if state == "CANCELLED":
        return JobResult("exited", error=f"{job} was cancelled by someone else{where}", nodes=nodes)
    if state == "COMPLETED":
        error = (
            f"{job} ended{where}, but its result can't be seen here after {FILES_S:g} s: is this file system shared?"
        )
        return JobResult("exited", error=error, nodes=nodes)
    return JobResult("exited", entry.exit_code, f"{job} {entry.how()}{where} without a result{said}", nodes=nodes)


# files --------------------------------------------------------------------------------------------------


def _control(job: Job) -> str:
    return f"{job.folder}.job"


def _spelled(path: Path) -> str:
    """The path as an option of Slurm's, which replaces patterns in it, or takes backslashes away if there are any."""
    text = str(path)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")


def _keep_control(flight: _Flight) -> None:
    """Move the control folder into the trial's, so that they are kept or deleted together."""
    folder = Path(flight.job.folder)
    if flight.control.parent == folder:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / "job"
        flight.control.rename(place if not place.exists() else folder / f"job-{flight.id}")


def _await_files(folder: str, sizes: Mapping[str, int], stop: StopFlag) -> str | None:
    """Wait until the files are seen here in these sizes; what is missing if they aren't in time."""
    deadline = time.monotonic() + FILES_S
    while True:
        for name, size in sizes.items():
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                next(path.parent.iterdir(), None)  # NFS looks again
            seen = path.stat().st_size if path.exists() else None
            if seen != size:
                break
        else:
            return None
        if time.monotonic() > deadline or is_readable(stop.fd, 0.1):
            found = "it is not there" if seen is None else f"it has {counted(seen, 'byte')}"
            return f"{path} with {counted(size, 'byte')}, and {found}"


class ReportFollower:
    """Tells ``watch`` of the values that a call on a node has reported so far."""

    def __init__(self, path: Path, watch: ReportCallback) -> None:
        self._path = path
        self._watch = watch
        self._offset = 0
        self._told = False

    def look(self) -> bool:
        """Tell of new values; True if the job is to end now."""
        if self._told:
            return True
        try:
            with self._path.open("rb") as file:  # opened each time, so that NFS looks again
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return False
        *lines, _ = content.split(b"\n")
        for line in lines:
            self._offset += len(line) + 1
            step, value = line.split()
            if self._watch(int(step), float(value)):
                self._told = True
                break
        return self._told

    def finish(self) -> bool:
        """Tell of the rest."""
        return self.look()

    def close(self) -> None:
        """Nothing is open."""


class _OnceTold:
    """Passes values on. After a fault of the cluster the job starts over: values that are known are left out."""

    def __init__(self, watch: ReportCallback) -> None:
        self._watch = watch
        self._told = 0
        self._seen = 0

    def start_over(self) -> None:
        """The job begins, or begins again."""
        self._seen = 0

    def __call__(self, step: int, value: float) -> bool:
        self._seen += 1
        if self._seen <= self._told:
            return False
        self._told = self._seen
        return self._watch(step, value)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
