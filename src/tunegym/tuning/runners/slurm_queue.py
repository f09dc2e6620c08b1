"""Slurm's commands and its queue, as the runner sees them.

``SlurmQueue`` asks ``squeue`` once for all jobs, on a thread that runs while jobs are watched. A controller that
doesn't answer is an ``AwayError``, which is waited for; a request that it refuses is a ``SubmissionError``.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

from tunegym.core.errors import RunnerError
from tunegym.core.stop import StopFlag
from tunegym.tuning.model.values import counted

COMMAND_S = 60.0
"""How long a command may take before the controller counts as away."""
LONGEST_PAUSE_S = 30.0

FAULTS = frozenset(
    ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED", "REQUEUED", "LOST")
)
"""Ends that are no fault of the job: it is run again."""
ENDED = FAULTS | {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"}
NEVER = re.compile(
    "PartitionNodeLimit|PartitionTimeLimit|BadConstraints|Invalid(Account|QOS)|AccountNotAllowed|"
    "QOSNotAllowed|PerJobLimit|MaxWallDuration|.*(Account|Qos|QOS|Group)NotPermitted|DependencyNeverSatisfied"
)
"""Reasons of a pending job that no waiting changes."""

_AWAY = re.compile(
    "unable to contact|connection refused|timed out|connect failure|communication connection failure|"
    "zero bytes were transmitted|temporarily unable|slurmctld.*(down|not respond)|no route to host|"
    "unable to establish|backup controller|connection reset|unexpected message|try again|network is unreachable|"
    "SubmitJob",  # a limit on a user's jobs in the queue
    re.IGNORECASE,
)
_COLUMNS = {"JobID": 16, "State": 20, "exit_code": 12, "NumCPUs": 12, "Name": 128, "NodeList": 256, "Reason": 128}
_CHANGING = re.compile("(?!SLURM_(CONF|CLUSTERS)$)(SLURM|SQUEUE|SINFO|SCANCEL)_")

T = TypeVar("T")


class AwayError(Exception):
    """The controller doesn't answer now, or takes no more jobs now."""


class SubmissionError(Exception):
    """Slurm refused a request; the message says why."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A job as ``squeue`` shows it."""

    id: str
    state: str
    status: int = 0  # as of wait(2)
    cpus: int = 0
    name: str = ""
    nodes: str = ""  # such as ``n[1-2]``; empty before it has any
    reason: str = ""  # why it is pending, or why it failed

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self.state in ENDED

    @property
    def is_fault(self) -> bool:
        """Whether it came to an end that is no fault of the job."""
        return self.state in FAULTS or "launch" in self.reason.lower()


class SlurmQueue:
    """The user's jobs. Thread-safe.

    Attributes:
        entries: every job of the last answer, by id; those that ended are in it for as long as Slurm remembers them.
        asked: when the question was asked that ``entries`` answers, by the monotonic clock.
        watched: ids of the jobs for which the queue is asked; once for each ``watch``.
    """

    def __init__(self, interval_s: float) -> None:
        self.entries: dict[str, QueueEntry] = {}
        self.asked = float("-inf")
        self.watched: list[str] = []
        self._interval = interval_s
        self._away: tuple[float, str] | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call(self, *command: str, cwd: Path | None = None) -> str:
        """What a command of Slurm's prints.

        Raises:
            AwayError: the controller doesn't answer.
            SubmissionError: it refuses the request.
            RunnerError: there is no such command.
        """
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=COMMAND_S,
                start_new_session=True,  # a Ctrl-C is for the driver
            )
        except subprocess.TimeoutExpired:
            raise self._is_away(f"no answer within {COMMAND_S:g} s") from None
        except FileNotFoundError as error:
            hint = 'run tunegym where you can call sbatch, such as a login node, or write runner = "local"'
            raise RunnerError(f"there is no command {command[0]!r} here, so no Slurm", hint=hint) from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            words = [line.removeprefix(f"{command[0]}: ").removeprefix("error: ") for line in lines]
            text = "; ".join(words) or f"{command[0]} exited with {done.returncode}"
            raise self._is_away(words[-1]) if _AWAY.search(text) else SubmissionError(text)
        self._away = None
        return done.stdout.decode(errors="surrogateescape")

    def patiently(self, ask: Callable[[], T], stop: StopFlag) -> T | None:
        """What ``ask`` returns, asked again while the controller is away; None if we are to stop."""
        pause = 1.0
        while True:
            try:
                return ask()
            except AwayError:
                if stop.wait(pause):
                    return None
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def cancel(self, *job_ids: str) -> bool:
        """Cancel jobs; False if the controller doesn't answer."""
        try:
            with contextlib.suppress(SubmissionError):  # they have ended
                self.call("scancel", "--quiet", *job_ids)
        except AwayError:
            return False
        self._wake.set()
        return True

    def poll(self) -> dict[str, QueueEntry]:
        """Ask for all jobs now. Raises as ``call``."""
        with self._lock:
            asked = time.monotonic()
            widths = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
            text = self.call("squeue", "--me", "--noheader", "--states=all", f"--Format={widths}")
            entries = map(_entry, text.encode(errors="surrogateescape").splitlines())
            self.entries = {entry.id: entry for entry in entries if entry.id.isdigit()}
            self.asked = asked
            return self.entries

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Iterator[None]:
        """Poll the queue inside the block. An exception cancels the job, since nobody waits for it then."""
        self.watched.append(job_id)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._poll_on, name="tunegym-squeue", daemon=True)
                self._thread.start()
        try:
            yield
        except BaseException:
            self.cancel(job_id)
            raise
        finally:
            self.watched.remove(job_id)

    def _poll_on(self) -> None:
        pause = self._interval
        while not self._closed:
            if self._wake.wait(pause):
                self._wake.clear()
                time.sleep(0.05)  # a job needs a moment to be cancelled
            try:
                if self.watched and not self._closed:
                    self.poll()
                pause = self._interval
            except (AwayError, SubmissionError, RunnerError):
                pause = min(2 * pause, max(LONGEST_PAUSE_S, self._interval))

    def close(self) -> None:
        """End the thread. Calling it twice is fine."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def waiting(self) -> str:
        """What keeps watched jobs from running; empty if nothing does."""
        if (away := self._away) is not None:
            return f"slurmctld takes no requests for {time.monotonic() - away[0]:.0f} s: {away[1]}"
        entries = [self.entries.get(job_id) for job_id in set(self.watched)]
        reasons = Counter(one.reason for one in entries if one is not None and one.state == "PENDING")
        return ", ".join(f"{counted(count, 'job')} pending: {reason}" for reason, count in reasons.items())

    def _is_away(self, why: str) -> AwayError:
        self._away = self._away or (time.monotonic(), why)
        return AwayError(why)


def _entry(line: bytes) -> QueueEntry:
    columns = pairwise(accumulate(_COLUMNS.values(), initial=0))  # in bytes: others' jobs may have any name
    values = [line[begin:end].decode(errors="replace").strip() for begin, end in columns]
    job_id, state, *counts, name, nodes, reason = values
    status, cpus = (int(text) if text.isdigit() else 0 for text in counts)
    return QueueEntry(job_id, state, status, cpus, name, nodes, reason)


def clean_environment() -> dict[str, str]:
    """Our environment without variables that change what Slurm's commands do, such as those of a job around us."""
    return {key: value for key, value in os.environ.items() if not _CHANGING.match(key)}
