"""Files on their way to and from nodes that share no file system, and where they lie there.

A folder travels as a stream of entries, read and written piece by piece, so that memory is bounded whatever its size.
For the few small files of a usual trial that takes a quarter of the time of ``tarfile``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import regex

from tunegym.core.errors import RunnerError
from tunegym.tuning.model.trial import Job
from tunegym.tuning.runners.command import broken, make_fresh

PIECE = 4 * 1024 * 1024
"""The size of the pieces of a large file, and of a batch of entries."""
MOST_SHIPPED_MB = 200

Entry: TypeAlias = tuple[str, int, int, bytes]
"""Path below the folder, mode, mtime in ns, and content: a link's target, or a file's next piece."""


# a folder as a stream ---------------------------------------------------------------------------------


def read_folder(folder: str, keep: Callable[[str, str], bool] | None = None) -> Iterator[Entry]:
    """The files, folders and links in a folder, each folder before its content; nothing if there is no folder.

    Anything else (sockets, pipes, devices) is left out, and so is what ``keep`` refuses, given its folder and name.
    """
    for place, folders, files in os.walk(folder):
        if keep is not None:
            folders[:], files = ([name for name in names if keep(place, name)] for names in (folders, files))
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118
            status = os.lstat(path)
            entry = os.path.relpath(path, folder), status.st_mode, status.st_mtime_ns
            if stat.S_ISLNK(status.st_mode):
                yield *entry, os.fsencode(os.readlink(path))  # noqa: PTH115
            elif stat.S_ISDIR(status.st_mode):
                yield *entry, b""
            elif stat.S_ISREG(status.st_mode):
                if keep is None and not status.st_mode & stat.S_IRUSR:  # what a job left; a user's own stays as it is
                    os.chmod(path, stat.S_IRUSR)  # noqa: PTH101
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                    yield *entry, file.read(PIECE)
                    while content := file.read(PIECE):
                        yield *entry, content


def write_folder(entries: Iterable[Entry], folder: str) -> None:
    """Make ``folder`` afresh with these entries; without any there is none. Raises ``RunnerError``: it can't be."""
    make_fresh(folder)
    attributes: dict[str, tuple[int, int]] = {}
    try:
        for name, mode, mtime, content in entries:
            path = os.path.join(folder, name)  # noqa: PTH118
            if stat.S_ISLNK(mode):
                os.symlink(content, os.fsencode(path))  # noqa: PTH211
            elif stat.S_ISDIR(mode):
                os.mkdir(path)  # noqa: PTH102
                attributes[path] = mode, mtime
            else:
                with open(path, "ab") as file:  # noqa: PTH123
                    file.write(content)
                attributes[path] = mode, mtime
        for path, (mode, mtime) in reversed(attributes.items()):  # a folder's content first: it may become read-only
            os.utime(path, ns=(mtime, mtime))
            os.chmod(path, stat.S_IMODE(mode))  # noqa: PTH101
    except OSError as error:
        raise broken(f"the files of a trial can't be written to {folder}", error) from error
    if not os.listdir(folder):  # noqa: PTH208
        os.rmdir(folder)  # noqa: PTH106


def next_batch(entries: Iterator[Entry]) -> tuple[list[Entry], bool]:
    """The next entries, of about ``PIECE`` bytes in all, and whether there may be more."""
    batch: list[Entry] = []
    left = PIECE
    while left > 0:
        if (entry := next(entries, None)) is None:
            return batch, False
        batch.append(entry)
        left -= len(entry[0]) + len(entry[3])
    return batch, True


def read_scenario(scenario_dir: str) -> list[Entry]:
    """The files of a scenario, without results, hidden files and folders, and compiled modules.

    Raises ``RunnerError``: they can't be read, or are too large to ship.
    """

    def keep(place: str, name: str) -> bool:
        is_result = name == "results" or Path(place, name, "journal.jsonl").exists()
        return not (name.startswith(".") or name == "__pycache__" or is_result)

    found: list[Entry] = []
    left = MOST_SHIPPED_MB * 1_000_000
    try:
        for entry in read_folder(scenario_dir, keep):
            found.append(entry)
            left -= len(entry[3])
            if left < 0:
                what = f"the scenario's folder {scenario_dir} has more than {MOST_SHIPPED_MB} MB, reached at {entry[0]}"
                hint = "keep large data elsewhere, where the nodes can see it: all of it is shipped"
                raise RunnerError(what, hint=hint)
    except OSError as error:
        raise broken(f"the scenario's files in {scenario_dir} can't be read", error) from error
    return found


# jobs -------------------------------------------------------------------------------------------------


def relocated(job: Job, places: Mapping[str, str]) -> Job:
    """The job with every path that begins with one of ``places`` moved to the place beside it.

    New places need no quotes in a shell. In the texts of commands an old one may be written in any quotes.
    """
    longest_first = sorted(places.items(), key=lambda item: -len(item[0]))

    def move(value: Any) -> Any:
        if isinstance(value, str):
            if value in places:
                return places[value]
            for old, new in longest_first:
                if any(form in value for form in _forms(old)):  # a pattern takes half a millisecond to compile
                    value = _pattern(old).sub(lambda _, new=new: new, value)
        elif isinstance(value, Mapping):
            return {key: move(item) for key, item in value.items()}
        elif isinstance(value, list | tuple):
            return type(value)(move(item) for item in value)
        return value

    return replace(job, **{one.name: move(getattr(job, one.name)) for one in fields(job)})


def _forms(path: str) -> set[str]:
    """The path as it is written bare, in single quotes and in double quotes."""
    return {path, path.replace("'", "'\"'\"'"), re.sub(r'(["$`\\])', r"\\\1", path)}


def _pattern(path: str) -> regex.Pattern[str]:
    """The path by itself or followed by a slash. It may follow an option (``-I``), but not other parts of a name."""
    spelled = "|".join(re.escape(form) for form in sorted(_forms(path), key=len, reverse=True))
    return regex.compile(rf"(?:(?<![\w.~-])|(?<=(?:^|\s)-\w+))(?:{spelled})(?![\w.~-])")


# on the node ------------------------------------------------------------------------------------------


class ScratchFolder:
    """A new folder in the system's temporary one, for this process.

    It is locked while the process uses it. The kernel releases the locks of a killed process, so the next one removes
    what it left.
    """

    def __init__(self) -> None:
        prefix = f"tunegym-{os.geteuid()}-"
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with contextlib.suppress(OSError, RunnerError), _locked(left):
                remove(str(left))
        self._lock = contextlib.ExitStack()
        try:
            fresh = Path(tempfile.mkdtemp(prefix=".tunegym-"))  # found by others only once it is locked
            self._lock.enter_context(_locked(fresh))
            self.path = fresh.rename(fresh.with_name(f"{prefix}{fresh.name[-8:]}"))
        except OSError as error:
            raise broken(f"no folder can be made in {tempfile.gettempdir()}", error) from error

    def close(self) -> None:
        """Remove it, or leave what can't be removed to the next process. Calling it twice is fine."""
        with contextlib.suppress(OSError, RunnerError):
            remove(str(self.path))
        self._lock.close()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process. Raises ``OSError``: another process has locked it."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def remove(folder: str) -> None:
    """Remove a folder, whatever a job has done to it; one that isn't there is fine. Raises ``RunnerError``."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # a job has made folders read-only
        make_fresh(folder)
        os.rmdir(folder)  # noqa: PTH106
