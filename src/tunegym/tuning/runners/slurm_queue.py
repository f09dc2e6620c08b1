"""Slurm's commands and its queue, as the runner sees them.

``SlurmQueue`` asks ``squeue`` once for all jobs, on a thread that runs while jobs are watched. A controller that
doesn't answer is an ``AwayError``, which is waited for; a request that it refuses is a ``RefusedError``.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tunegym.core.errors import RunnerError
from tunegym.core.processes import Exit, milliseconds
from tunegym.core.stop import StopFlag
from tunegym.tuning.model.values import counted

COMMAND_S = 60.0
"""How long a command may take before the controller counts as away."""
LONGEST_PAUSE_S = 30.0

FAULTS = frozenset(
    ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED", "REQUEUED", "SPECIAL_EXIT")
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
    "unable to establish|backup controller|connection reset|unexpected message|try again|network is unreachable",
    re.IGNORECASE,
)
_COLUMNS = {"JobID": 16, "State": 20, "exit_code": 12, "Name": 128, "NumCPUs": 12, "NodeList": 256, "Reason": 128}
_OURS = ("SLURM_CONF", "SLURM_CLUSTERS")

T = TypeVar("T")


class AwayError(Exception):
    """The controller doesn't answer now."""


class RefusedError(Exception):
    """Slurm refused a request; the message says why."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A job as ``squeue`` shows it."""

    id: str
    state: str
    status: int  # as of wait(2)
    name: str
    cpus: int
    nodes: str  # such as ``n[1-2]``; empty before it has any
    reason: str  # why it is pending, or why it failed

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self.state in ENDED

    def describe(self) -> str:
        """How it ended, such as ``NODE_FAIL on n2``."""
        where = f" on {self.nodes}" if self.nodes else ""
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"{self.state}{where}{why}"

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None if that can't be told."""
        try:
            return os.waitstatus_to_exitcode(self.status)
        except ValueError:
            return None

    def how(self) -> str:
        """``exited with 3`` or ``killed by SIGSEGV``."""
        code = self.exit_code
        return "ended in an unknown way" if code is None else Exit(code, 0.0, 0).describe()


class SlurmQueue:
    """The user's jobs. Thread-safe.

    Attributes:
        entries: every job of the last answer, by id; those that ended are in it for as long as Slurm remembers them.
        asked: when the question was asked that ``entries`` answers, by the monotonic clock.
    """

    def __init__(self, interval_s: float) -> None:
        self.entries: dict[str, QueueEntry] = {}
        self.asked = float("-inf")
        self._interval = interval_s
        self._away: tuple[float, str] | None = None
        self._lock = threading.Lock()
        self._watched: Counter[str] = Counter()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    # commands -------------------------------------------------------------------------------------------

    def call(self, *command: str, cwd: Path | None = None) -> str:
        """What a command of Slurm's prints.

        Raises:
            AwayError: the controller doesn't answer.
            RefusedError: it refuses the request.
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
            raise no_slurm(command[0]) from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            words = [line.removeprefix(f"{command[0]}: ").removeprefix("error: ") for line in lines]
            text = words[-1] if words else f"{command[0]} exited with {done.returncode}"
            raise self._is_away(text) if _AWAY.search(" ".join(words)) else RefusedError("; ".join(words) or text)
        self._away = None
        return done.stdout.decode(errors="surrogateescape")

    def patiently(self, ask: Callable[[], T], stop: StopFlag) -> T | None:
        """What ``ask`` returns, asked again while the controller is away; None if we are to stop."""
        pause = 1.0
        while True:
            try:
                return ask()
            except AwayError:
                if is_readable(stop.fd, pause):
                    return None
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def cancel(self, *what: str) -> bool:
        """Cancel jobs by id, or by ``--name``; False if the controller doesn't answer."""
        try:
            self.call("scancel", "--quiet", *what)
        except RefusedError:  # it has ended
            pass
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
            entries = map(_entry, text.encode(errors="surrogateescape").split(b"\n"))
            self.entries = {entry.id: entry for entry in entries if entry.id.isdigit()}
            self.asked = asked
            return self.entries

    def recall(self, job_id: str) -> QueueEntry | None:
        """A job that has left the queue, from the accounting or the file of ended jobs; None if neither knows it."""
        for more in ([], ["--completion"]):
            with contextlib.suppress(AwayError, RefusedError, RunnerError):
                options = ["--noheader", "--parsable2", "--jobs", job_id, "--format=State,ExitCode,NodeList,JobName"]
                first = self.call("sacct", *more, *options, *([] if more else ["--allocations"])).splitlines()[:1]
                if first and (state := first[0].split("|")[0].split()):
                    _, code, nodes, name = (*first[0].split("|"), "", "", "")[:4]
                    exited, _, signalled = code.partition(":")
                    status = int(exited or 0) << 8 | int(signalled or 0)
                    return QueueEntry(job_id, state[0], status, name, 0, nodes, "")
        return None

    # polling --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watched(self, job_id: str) -> Iterator[None]:
        """Keep ``entries`` fresh meanwhile."""
        with self._lock:
            self._watched[job_id] += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._poll_on, name="tunegym-squeue", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._watched[job_id] -= 1

    def _poll_on(self) -> None:
        pause = self._interval
        while not self._closed:
            if self._wake.wait(pause):
                self._wake.clear()
                time.sleep(0.05)  # a job needs a moment to be cancelled
            try:
                if +self._watched and not self._closed:
                    self.poll()
                pause = self._interval
            except (AwayError, RefusedError, RunnerError):
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
            return f"slurmctld doesn't answer for {time.monotonic() - away[0]:.0f} s: {away[1]}"
        entries = [self.entries.get(job_id) for job_id in list(+self._watched)]
        reasons = Counter(one.reason for one in entries if one is not None and one.state == "PENDING")
        return ", ".join(f"{counted(count, 'job')} pending: {reason}" for reason, count in reasons.items())

    def _is_away(self, why: str) -> AwayError:
        self._away = self._away or (time.monotonic(), why)
        return AwayError(why)


def _entry(line: bytes) -> QueueEntry:
    values: list[str] = []
    for width in _COLUMNS.values():  # in bytes: others' jobs may have any name
        values.append(line[:width].decode(errors="replace").strip())
        line = line[width:]
    job_id, state, status, name, cpus, nodes, reason = values
    return QueueEntry(job_id, state, _number(status), name, _number(cpus), nodes, reason)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def clean_environment() -> dict[str, str]:
    """Our environment without variables that change what Slurm's commands do, such as those of a job around us."""
    changing = ("SLURM_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
    return {key: value for key, value in os.environ.items() if key in _OURS or not key.startswith(changing)}


def no_slurm(command: str) -> RunnerError:
    """The error where Slurm is not installed."""
    hint = 'run tunegym where you can call sbatch, such as a login node, or write runner = "local"'
    return RunnerError(f"there is no command {command!r}, so no Slurm can be reached from here", hint=hint)


def missing_command(commands: Iterable[str]) -> str | None:
    """The first command that is not installed."""
    return next((command for command in commands if shutil.which(command) is None), None)


def is_readable(fd: int, timeout_s: float) -> bool:
    """Whether the descriptor becomes readable in time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(milliseconds(timeout_s)))
