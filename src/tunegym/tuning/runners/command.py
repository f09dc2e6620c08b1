"""Command jobs: setup, command, teardown, and nothing left behind.

Commands are started by a small process, the launcher (see ``launcher_main``), so that their peak memory is theirs and a
command that kills its parent (``kill $PPID``) does not hit the driver.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import marshal
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tunegym.core.errors import RunnerError
from tunegym.core.processes import MARK, UNKNOWN, Child, Exit, PidMark, Tree, end_tree, left_behind, start_script
from tunegym.core.stop import StopFlag
from tunegym.tuning.model.trial import SHELLS, CommandJob, Ending, JobHandle, JobResult, ReportCallback, Stream

STDOUT = "stdout.txt"
STDERR = "stderr.txt"
INTERRUPTED_TEARDOWN_S = 10.0
LOOK_S = 0.1
"""How often a followed file is read."""
LONGEST_LINE = 64 * 1024
"""Of a longer line of a followed file only the end is read."""

MATCH_S = 1.0
"""How long matching a line may take. After that the pattern is given up: the job must not wait for us."""

Part: TypeAlias = Literal["setup", "command", "teardown"]

_FILES: dict[Part, tuple[str, str]] = {
    "setup": ("setup.txt", "setup.txt"),
    "command": (STDOUT, STDERR),
    "teardown": ("teardown.txt", "teardown.txt"),
}
_PLAIN = re.compile(r"[\w@%+:,./-]+(?:[ \t]+[\w@%+=:,./-]+)*\Z", re.ASCII)
_TELLING = re.compile("(?i)error|fail|fatal|not found|no such|denied|invalid|unknown|unrecogni|usage|cannot|unable")
_LAUNCHER = Path(__file__).with_name("launcher_main.py")
_CHUNK = 256 * 1024
_LONGEST_LOOK = 32 * _CHUNK  # so that a command that prints without end doesn't keep us from its time-out


@dataclass(frozen=True)
class CommandRun:
    """One run of one command job.

    Processes that setup leaves running (a server, say) run until teardown has ended; those of the command are ended
    before teardown begins. ``stop`` ends the job early; teardown then has ten seconds, or none if it is set twice.
    """

    job: CommandJob
    marker: str  # carried by all its processes, followed by the part they belong to
    launcher: Launcher
    stop: StopFlag
    started: Callable[[JobHandle], None]
    watch: ReportCallback | None = None

    def run(self) -> JobResult:
        """Run the job to its end. Raises ``RunnerError``: the folder can't be used, or no process can be started."""
        job = self.job
        make_fresh(job.folder)
        if job.setup is None and job.teardown is None:
            return self._part("command", job.command, self._deadline())
        begun = PidMark()
        try:
            deadline = self._deadline()
            result = self._part("setup", job.setup, deadline) if job.setup is not None else JobResult("exited")
            if result.ending == "exited" and result.error is None:
                result = self._part("command", job.command, deadline)
            return result if job.teardown is None else self._teardown(job.teardown, result)
        finally:
            tree = Tree(self.marker)
            if left_behind(tree, begun):
                end_tree(tree, hurry_fd=self.stop.hurry_fd)

    def _deadline(self) -> float | None:
        return None if self.job.timeout_s is None else time.monotonic() + self.job.timeout_s

    def _teardown(self, text: str, result: JobResult) -> JobResult:
        ended = self._part("teardown", text, self._deadline())
        if ended.ending == "interrupted":
            return replace(result, ending="interrupted")
        return replace(result, error="; ".join(filter(None, (result.error, ended.error))) or None)

    def _part(self, part: Part, text: str, deadline: float | None) -> JobResult:
        """How a part went. The error of setup and teardown begins with the part's name."""
        prefix = "" if part == "command" else f"{part} "
        marker = f"{self.marker}/{part}"
        try:
            child, begun = self.launcher.start(self.job, text, _FILES[part], marker)
        except StartError as error:
            return JobResult("exited", error=f"{prefix}{error}")
        except OSError as error:
            raise broken(f"job {self.job.name} can't be started in {self.job.folder}", error) from error
        try:
            mark = PidMark(child.pid, time.monotonic())
            self.started(child.handle)
            ending = self._wait(child, part, deadline)
            duration = time.monotonic() - begun
            if ending != "exited" or (part != "setup" and left_behind(child.tree, mark)):
                end_tree(child.tree, hurry_fd=self.stop.hurry_fd)
        except BaseException:
            end_tree(child.tree, grace_s=0.0)
            raise
        finally:
            ended = child.reap()
        error = None
        if ending == "exited" and ended.code:
            lines = error_lines(self.job.folder, _FILES[part][1])
            pipe = " (SIGPIPE: the next stage of a pipe ended first)" if ended.code == 141 else ""
            error = f"{prefix}{ended.describe()}{pipe}" + (f": {lines}" if lines else "")
        elif ending == "timed_out" and prefix:
            error = f"{prefix}timed out"
        memory = ended.max_rss_kb / 1024 if ended.max_rss_kb else None
        return JobResult(ending, ended.code, error, None, duration, ended.cpu_s, memory)

    def _wait(self, child: Child, part: Part, deadline: float | None) -> Ending:
        if self.job.stream is not None and self.watch is not None and part == "command":
            with contextlib.closing(OutputFollower(self.job.folder, self.job.stream, self.watch)) as follower:
                return self._follow(child, deadline, follower)
        ending = _wait(child, deadline, self.stop.fd)
        if part != "teardown" or ending != "interrupted":
            return ending
        soon = time.monotonic() + INTERRUPTED_TEARDOWN_S
        ending = _wait(child, soon if deadline is None else min(soon, deadline), self.stop.hurry_fd)
        return "exited" if ending == "exited" else "interrupted"  # it was us who had no more time

    def _follow(self, child: Child, deadline: float | None, follower: OutputFollower) -> Ending:
        """As ``_wait``, with a look at the output now and then."""
        while True:
            soon = time.monotonic() + LOOK_S
            ending = _wait(child, soon if deadline is None else min(soon, deadline), self.stop.fd)
            if ending == "exited":
                # The last values are judged like the rest: pruning must not depend on our pace.
                return "pruned" if follower.finish() else ending
            if ending == "interrupted":
                return ending
            if follower.look():
                return "pruned"
            if deadline is not None and time.monotonic() >= deadline:
                return ending


def _wait(child: Child, deadline: float | None, stop_fd: int) -> Ending:
    ending = child.wait(None if deadline is None else deadline - time.monotonic(), stop_fd=stop_fd)
    return "interrupted" if ending == "stopped" else ending


# starting ---------------------------------------------------------------------------------------------


class StartError(Exception):
    """A command that can't be started, by its own fault; says why."""


class Launcher:
    """Starts each command in a new session, through the launcher process. Thread-safe.

    A launcher process that is killed is replaced. With ``kill_orphans``, commands are killed when this process is gone;
    else a later driver ends them.
    """

    def __init__(self, token: str, *, kill_orphans: bool = False) -> None:
        self._marker = f"{token}/launcher"
        self._orphans = token if kill_orphans else ""
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._process: Child | None = None
        self._retired = False

    def start(self, job: CommandJob, text: str, files: tuple[str, str], marker: str) -> tuple[Child, float]:
        """Start ``text`` by the job's shell; the process, and when it was started by the monotonic clock.

        ``files`` are the names of its output and error files in the folder; the same one for both is fine.

        Raises:
            OSError: it can't be started.
            StartError: no program can be given this text or environment, or it kills the process that starts it.
        """
        command = os.fsencode(text)
        if b"\0" in command:
            raise StartError("can't be started: a null character in the command")
        names = [os.fsencode(name) for name in (os.path.abspath(job.folder), *files)]  # noqa: PTH100
        environment = _environment(job, marker)
        request = (_programs(job.shell, text, environment), environment, *names, job.measures_memory)
        for _ in range(2):  # a launcher that was killed is replaced, once
            try:
                pid, error, begun = self._exchange(request)
            except BaseException as problem:
                end_tree(Tree(marker), grace_s=0.0)  # it may have started the command without our hearing of it
                if not isinstance(problem, EOFError | ConnectionError):
                    raise
                continue
            if error == errno.E2BIG:
                raise StartError(f"can't be started: {os.strerror(error)}")
            if error:
                raise OSError(error, os.strerror(error))
            return Child(pid, marker, reap=self._reap), begun
        raise StartError(f"{UNKNOWN.describe()}, twice")

    def retire(self) -> None:
        """Start nothing any more. Takes no lock: a signal handler may call it."""
        self._retired = True

    def close(self) -> None:
        """End the process. Calling it twice is fine."""
        with self._lock:
            self._hang_up()

    def _reap(self, pid: int) -> Exit:
        try:
            seen = self._exchange(pid)
        except (EOFError, ConnectionError):
            return UNKNOWN
        return UNKNOWN if seen is None else Exit(os.waitstatus_to_exitcode(seen[0]), *seen[1:])

    def _exchange(self, request: tuple[Any, ...] | int) -> Any:
        with self._lock:
            try:
                connection = self._connection or self._begin()
                connection.send_bytes(marshal.dumps(request))
                return marshal.loads(connection.recv_bytes())
            except BaseException:
                self._hang_up()  # its answer would be taken for the answer to another request
                raise

    def _begin(self) -> Connection:
        if self._retired:
            raise RunnerError("the run was told to stop at once", hint="resume it")
        self._connection, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            signals = [str(int(one)) for one in (signal.SIGPIPE, signal.SIGXFSZ)]
            self._process = start_script(_LAUNCHER, str(fd), self._orphans, *signals, marker=self._marker, fds=[fd])
        try:
            self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            if self._retired:
                raise
            what = "the process that starts commands doesn't start"
            raise RunnerError(what, hint="is there enough memory? resume the run") from None
        return self._connection

    def _hang_up(self) -> None:
        connection, process, self._connection, self._process = self._connection, self._process, None, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.wait(0.2)
            process.end(0.0)


def _programs(shell: str | None, text: str, environment: dict[bytes, bytes]) -> list[tuple[bytes, list[bytes]]]:
    """Programs that run ``text``, each a path with its arguments. The last is the shell.

    Text that a shell would only split at spaces needs none, which saves a millisecond. If it can't be started, the
    shell says why, or runs it as a script without a ``#!``.
    """
    program, options = _shell(shell)
    found = [(program, [*options, os.fsencode(text)])]
    if shell is None and _PLAIN.match(text) and not text.startswith("time "):  # a keyword, and another program
        words = text.split()
        path = words[0] if "/" in words[0] else _which(words[0], os.X_OK, os.fsdecode(environment.get(b"PATH", b"")))
        if path:
            found.insert(0, (os.fsencode(path), list(map(os.fsencode, words))))
    return found


_which = functools.lru_cache(shutil.which)  # what has gone since then, the shell looks for again


@functools.cache
def _shell(name: str | None) -> tuple[bytes, list[bytes]]:
    """A shell's path, and its arguments before the text."""
    name = name or ("bash" if shutil.which("bash") else "sh")
    words = (Path(name).name, *SHELLS[Path(name).name], "-c")
    return os.fsencode(shutil.which(name) or f"/bin/{name}"), [word.encode() for word in words]


def _environment(job: CommandJob, marker: str) -> dict[bytes, bytes]:
    """Our environment, as it is now, with the job's variables, its folder and its mark."""
    # Python keeps the environment as bytes already; going through the mapping would encode it all again.
    environment: dict[bytes, bytes] = dict(getattr(os.environb, "_data", os.environb))
    folder = os.path.abspath(job.folder)  # noqa: PTH100
    for name, value in (("PWD", folder), *job.env.items(), (MARK, marker)):
        key, content = os.fsencode(name), os.fsencode(value)
        if not key or b"=" in key or b"\0" in key or b"\0" in content:
            raise StartError(f"can't be started: {name!r} can't be an environment variable of this value")
        environment[key] = content
    return environment


# following --------------------------------------------------------------------------------------------


class OutputFollower:
    """Tells ``watch`` of the values that a growing file has, match by match, in whole lines only.

    The file may appear late. One that is cut short is read from its start again, one that is replaced is read to
    its end and then the new one; the matches are numbered on.

    Args:
        folder: of the job.
        stream: what to look for, and where.
        watch: called with the match's number and its value, until it says True.
    """

    def __init__(self, folder: str, stream: Stream, watch: ReportCallback) -> None:
        import regex  # unlike re, it can be stopped

        self._path = os.path.join(folder, stream.file)  # noqa: PTH118
        self._pattern = regex.compile(stream.pattern.encode(), regex.MULTILINE)
        self._watch = watch
        self._fd = -1
        self._known = (0, 0)
        self._matches = 0
        self._pruned = False
        self._too_slow = False
        self._rewind()

    def _rewind(self) -> None:
        self._offset, self._line = 0, b""

    def look(self, *, whole: bool = False) -> bool:
        """Tell of new values, of a flood a part unless ``whole``; True if the job is to end now."""
        most = sys.maxsize if whole else _LONGEST_LOOK
        # A file that can't be read gives no values; the metric itself will complain about it.
        with contextlib.suppress(OSError):
            self._pruned = self._pruned or self._read(most)
            there = os.stat(self._path)  # noqa: PTH116
            is_new = (there.st_dev, there.st_ino) != self._known
            if is_new and not self._pruned and stat.S_ISREG(there.st_mode):  # opening a FIFO would take from its writer
                self.close()
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                opened = os.fstat(self._fd)
                self._known = opened.st_dev, opened.st_ino
                self._rewind()
                self._pruned = self._read(most)
        return self._pruned

    def finish(self) -> bool:
        """Nothing is written any more: tell of all that is left, a last line without an end included."""
        if not self.look(whole=True):
            line, self._line = self._line, b""
            self._pruned = self._tell(line)
        return self._pruned

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, most: int) -> bool:
        """Read the new part of the open file, at most so many bytes; True if the job is to end."""
        if self._fd < 0:
            return False
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            self._rewind()
        end = min(size, self._offset + most)
        while self._offset < end and (content := os.pread(self._fd, min(_CHUNK, end - self._offset), self._offset)):
            self._offset += len(content)
            *lines, rest = content.split(b"\n")
            for line in lines:
                whole, self._line = self._line + line, b""
                if self._tell(whole[-LONGEST_LINE:]):
                    return True
            self._line = (self._line + rest)[-LONGEST_LINE:]
        return False

    def _tell(self, line: bytes) -> bool:
        for match in self._found(line):
            self._matches += 1
            groups = match.groups() or (match[0],)
            text = next((group for group in groups if group is not None), b"")
            try:
                value = float(text if b"_" not in text else b"")  # only Python reads 1_000 as a number
            except ValueError:  # the metric itself will complain about it
                continue
            if self._watch(self._matches, value):
                return True
        return False

    def _found(self, line: bytes) -> Iterator[Any]:
        try:
            yield from () if self._too_slow else self._pattern.finditer(line, timeout=MATCH_S)
        except TimeoutError:  # the metric itself will complain about it
            self._too_slow = True


def untold(watch: ReportCallback, told: list[int]) -> ReportCallback:
    """The watch of one attempt, without the values that earlier ones have ``told``: the job starts over."""
    numbers = itertools.count(1)

    def tell(step: int, value: float) -> bool:
        if next(numbers) <= len(told):
            return False
        told.append(step)
        return watch(step, value)

    return tell


# the folder of a job ----------------------------------------------------------------------------------

_NO_RIGHT = "give yourself the right to write there, or choose another --output folder"
_HINTS = {
    errno.ENOSPC: "the disk is full: make room, then resume the run",
    errno.EDQUOT: "the disk quota is used up: make room, then resume the run",
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: "the file system is read-only: choose another --output folder",
    errno.EMFILE: "too many open files: raise `ulimit -n`, or use fewer slots",
    errno.ENFILE: "too many open files on this machine: use fewer slots",
    errno.EAGAIN: "too many processes: raise `ulimit -u`, or use fewer slots",
    errno.ENOMEM: "out of memory: use fewer slots",
}


def broken(what: str, error: OSError) -> RunnerError:
    """The error for infrastructure that refuses to work."""
    hint = _HINTS.get(error.errno or 0, "remove the cause, then resume the run")
    return RunnerError(f"{what}: {error.strerror or error}", hint=hint)


def make_fresh(folder: str) -> None:
    """Make the folder, and empty it of the files of an earlier, killed attempt.

    Raises ``RunnerError``: it can't be made or emptied.
    """
    try:
        try:
            os.mkdir(folder)  # noqa: PTH102 (this runs for every trial)
        except FileExistsError:
            for place, names, _ in os.walk(folder):  # a job may have made folders read-only
                for path in (Path(place, name) for name in names):
                    if not path.is_symlink():
                        path.chmod(0o700)
            with os.scandir(folder) as entries:  # the folder itself stays: on a busy disk rmdir takes milliseconds
                for entry in entries:
                    shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)  # noqa: PTH108
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except OSError as error:
        raise broken(f"the trial's folder {folder} can't be made", error) from error


def tidy(folder: str) -> None:
    """Remove the output files if they are empty, and the folder if nothing else is in it."""
    for path in (f"{folder}/{STDOUT}", f"{folder}/{STDERR}"):
        with contextlib.suppress(OSError):
            if os.stat(path).st_size == 0:  # noqa: PTH116
                os.unlink(path)  # noqa: PTH108
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # noqa: PTH106


def error_lines(folder: str, name: str, limit: int = 200) -> str:
    """The first line that speaks of an error, if any, and the last one, fit to be shown; empty without output."""
    try:
        with Path(folder, name).open("rb") as file:
            text = file.read(_CHUNK)
            if len(text) == _CHUNK:
                file.seek(-4096, os.SEEK_END)
                text += b"\n" + file.read()
    except OSError:
        return ""
    lines = [" ".join(line.split()) for line in text.decode(errors="replace").splitlines() if line.strip()]
    first = next(filter(_TELLING.search, lines), "")
    shown = ["".join(c if c.isprintable() else "\ufffd" for c in line) for line in dict.fromkeys([first, *lines[-1:]])]
    return " ... ".join(line if len(line) <= limit else line[: limit - 3] + "..." for line in shown if line)


def check_disk(folder: str) -> None:
    """Refuse to believe a job that ran on a full disk, be it a failure or a metric that was cut short.

    Raises ``RunnerError``: nothing more can be written to the folder.
    """
    try:
        room = os.statvfs(folder)
    except OSError:  # no folder, no output that could have been cut short
        return
    if (room.f_bavail or not room.f_blocks) and (room.f_favail or not room.f_files):
        return
    try:  # some may still write where others can't any more
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            if file.write(bytes(4096)) == 4096:
                return
    except OSError:
        pass
    what = f"the disk of {folder} is full, so what a job says there can't be believed"
    raise RunnerError(what, hint="free some space, then resume: the trial is run again")
