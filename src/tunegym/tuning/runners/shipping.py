"""Files on their way to and from nodes that share no file system, and where they lie there.

A folder travels as a tar stream, made and read piece by piece, so that memory is bounded whatever its size. On a node
everything lies in entries of one folder (``Scratch``). An entry is locked by the processes that use it, and the kernel
gives the locks of a killed process back, so that ``sweep`` finds what nobody uses any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import stat
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import regex

from tunegym.core.errors import RunnerError
from tunegym.tuning.model.trial import CallJob, Job
from tunegym.tuning.runners.command import broken, make_fresh

PIECE = 4 * 1024 * 1024
"""The size of the pieces of a large stream."""
MOST_SHIPPED_MB = 200
RESULTS = "results"
_JOURNAL = "journal.jsonl"


# a folder as a stream ---------------------------------------------------------------------------------


def pack(folder: str, leave_out: Callable[[str, list[str], list[str]], None] | None = None) -> Iterator[bytes]:
    """The folder's content as a tar stream, in pieces of any size: links, modes and names as they are.

    Sockets and devices are left out. ``leave_out`` may take names out of the folders and files at a path.
    """
    with tarfile.open(fileobj=io.BytesIO(), mode="w", format=tarfile.PAX_FORMAT) as tar:
        for place, folders, files in os.walk(folder):
            if leave_out is not None:
                leave_out(place, folders, files)
            folders.sort()
            for name in sorted([*folders, *files]):
                path = os.path.join(place, name)  # noqa: PTH118
                info = tar.gettarinfo(path, os.path.relpath(path, folder))
                if info is None or info.ischr() or info.isblk():
                    continue
                if info.isdir() and not os.access(path, os.R_OK | os.X_OK):
                    os.chmod(path, 0o700)  # noqa: PTH101
                yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                if info.isreg():
                    yield from _content(path, info.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _content(path: str, size: int) -> Iterator[bytes]:
    try:
        file = open(path, "rb", buffering=0)  # noqa: PTH123, SIM115
    except PermissionError:  # of our own job's doing
        os.chmod(path, stat.S_IRUSR)  # noqa: PTH101
        file = open(path, "rb", buffering=0)  # noqa: PTH123, SIM115
    with file:
        left = size
        while left and (content := file.read(min(left, PIECE))):
            left -= len(content)
            yield content
    while left:  # it was cut short meanwhile
        yield bytes(min(left, PIECE))
        left -= min(left, PIECE)
    yield bytes(-size % tarfile.BLOCKSIZE)


SmallFiles: TypeAlias = tuple[tuple[str, int, bytes], ...]
"""Plain files of one folder: name, mode and content."""


def take_small(folder: str, most: int) -> SmallFiles | None:
    """Read a folder of few plain files, and remove it; None, and nothing done, if it is another one.

    Most trials leave such a folder, and a tar stream takes a millisecond.
    """
    found, left = [], most
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            left -= status.st_size + 512
            if left < 0 or not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or not status.st_mode & stat.S_IRUSR:
                return None
            found.append((entry.path, entry.name, status.st_mode))
    content = []
    for path, name, mode in found:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            content.append((name, stat.S_IMODE(mode), file.readall()))
        os.unlink(path)  # noqa: PTH108
    os.rmdir(folder)  # noqa: PTH106
    return tuple(content)


def put_small(files: SmallFiles, folder: str) -> None:
    """Make ``folder`` afresh with these files. Raises ``RunnerError`` if it can't be written."""
    make_fresh(folder)
    try:
        for name, mode, content in files:
            path = os.path.join(folder, name)  # noqa: PTH118
            with open(path, "xb", buffering=0) as file:  # noqa: PTH123
                os.fchmod(file.fileno(), mode)
                if content and file.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise broken(f"the files of a trial can't be written to {folder}", error) from error


def in_pieces(stream: Iterable[bytes], size: int = PIECE) -> Iterator[bytes]:
    """The same bytes in pieces of at least ``size``, but for the last."""
    waiting, length = [], 0
    for content in stream:
        waiting.append(content)
        length += len(content)
        if length >= size:
            yield b"".join(waiting)
            waiting, length = [], 0
    if waiting:
        yield b"".join(waiting)


def unpack(pieces: Iterator[bytes], folder: str) -> None:
    """Make ``folder`` afresh with the content of a stream. Raises ``RunnerError`` if it can't be written."""
    make_fresh(folder)
    source: Any = _Pieces(pieces)
    try:
        with tarfile.open(fileobj=source, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
            tar.extractall(folder, filter=_without_owner)
    except OSError as error:
        raise broken(f"the files of a trial can't be written to {folder}", error) from error


def _without_owner(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    """As it is, but ours: we made the stream ourselves, of a real folder."""
    nobody: Any = None
    return member.replace(uid=nobody, gid=nobody, uname=nobody, gname=nobody, deep=False)


class _Pieces(io.RawIOBase):
    """Pieces as a file to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Exactly ``size`` bytes, unless the stream ends before."""
        found, length = [], 0
        while length < size:
            if not self._rest:
                self._rest = memoryview(next(self._pieces, b""))
                if not self._rest:
                    break
            found.append(self._rest[: size - length])
            self._rest = self._rest[len(found[-1]) :]
            length += len(found[-1])
        return b"".join(found)


# the scenario's files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shipment:
    """The scenario's files: where they lie at the driver, and what is in them."""

    scenario_dir: str
    digest: str


def pack_scenario(scenario_dir: str) -> tuple[Shipment, bytes]:
    """The files of a scenario, without results, hidden files and folders, and compiled modules.

    Raises ``RunnerError``: there is too much of it.
    """
    largest: dict[str, int] = {}

    def leave_out(place: str, folders: list[str], files: list[str]) -> None:
        folders[:] = [name for name in folders if not _is_left_out(place, name)]
        files[:] = [name for name in files if not name.startswith(".")]
        top = (*Path(place).relative_to(scenario_dir).parts, ".")[0]
        for name in files:
            size = os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118
            key = name if top == "." else f"{top}/"
            largest[key] = largest.get(key, 0) + size
        if sum(largest.values()) > MOST_SHIPPED_MB * 1_000_000:
            name, size = max(largest.items(), key=lambda item: item[1])
            raise RunnerError(
                f"the scenario's folder {scenario_dir} has more than {MOST_SHIPPED_MB} MB, too much to ship to the "
                f"nodes: {name} alone has {size / 1e6:.0f} MB or more",
                hint="put large data where the nodes can see it, and keep it out of the scenario's folder",
            )

    try:
        content = b"".join(pack(scenario_dir, leave_out))
    except OSError as error:
        raise broken(f"the scenario's files in {scenario_dir} can't be read", error) from error
    return Shipment(scenario_dir, hashlib.blake2b(content, digest_size=12).hexdigest()), content


def _is_left_out(place: str, name: str) -> bool:
    path = Path(place, name)
    return name.startswith(".") or name in (RESULTS, "__pycache__") or (path / _JOURNAL).exists()


def relocated(job: Job, places: Mapping[str, str]) -> Job:
    """The job with every path that begins with one of ``places`` moved to the place beside it.

    New places need no quotes in a shell. In the texts of commands an old one may be written in any quotes.
    """
    patterns = [(_pattern(old), new) for old, new in sorted(places.items(), key=lambda item: -len(item[0]))]

    def move(value: Any) -> Any:
        found = value
        if isinstance(found, str):
            for pattern, new in patterns:
                found = pattern.sub(lambda _, new=new: new, found)
        elif isinstance(found, Mapping):
            found = {key: move(item) for key, item in found.items()}
        elif isinstance(found, list | tuple):
            found = type(found)(move(item) for item in found)
        return found

    env = move(dict(job.env))
    if isinstance(job, CallJob):
        return replace(job, folder=move(job.folder), arguments=move(job.arguments), paths=move(job.paths), env=env)
    texts = {name: move(getattr(job, name)) for name in ("command", "setup", "teardown")}
    return replace(job, folder=move(job.folder), env=env, **texts)


def _pattern(path: str) -> regex.Pattern[str]:
    """The path by itself or followed by a slash, as it is written bare, in single quotes and in double quotes.

    It may follow an option (``-I``), but not other parts of a name.
    """
    forms = {path, path.replace("'", "'\"'\"'"), re.sub(r'(["$`\\])', r"\\\1", path)}
    spelled = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    return regex.compile(rf"(?:(?<![\w.~-])|(?<=(?:^|\s)-\w+))(?:{spelled})(?![\w.~-])")


# on the node ------------------------------------------------------------------------------------------


class Scratch:
    """The folder of this user's entries on this machine. An entry lives as long as a process uses it."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or Path(tempfile.gettempdir()) / f"tunegym-{os.geteuid()}"
        self._locks: dict[Path, int] = {}
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.root.stat().st_uid != os.geteuid():
                raise PermissionError(0, "it belongs to another user")
        except OSError as error:
            raise broken(f"the folder {self.root} can't be used", error) from error

    def use(self, name: str, fill: Callable[[Path], None] | None = None) -> Path:
        """The entry of this name, for this process to use; ``fill`` makes its content if it isn't there yet."""
        path = self.root / name
        while path not in self._locks:
            fd = os.open(self._lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if self._is_current(fd, path):
                self._locks[path] = fd
            else:  # swept in between
                os.close(fd)
        with (self.root / "filling").open("w") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            if not path.exists():
                fresh = self.root / f"{name}.{uuid.uuid4().hex}"
                fresh.mkdir()
                if fill is not None:
                    fill(fresh)
                fresh.rename(path)
        return path

    def sweep(self) -> None:
        """Remove the entries that no process uses."""
        for lock in self.root.glob("*.lock"):
            with contextlib.suppress(OSError):
                fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path = lock.with_suffix("")
                    for one in (path, *self.root.glob(f"{path.name}.*[!k]")):
                        remove(str(one))
                    lock.unlink()
                finally:
                    os.close(fd)

    def close(self) -> None:
        """Use nothing any more, and sweep. Calling it twice is fine."""
        locks, self._locks = self._locks, {}
        for fd in locks.values():
            os.close(fd)
        self.sweep()

    @staticmethod
    def _lock_of(path: Path) -> Path:
        return path.with_name(f"{path.name}.lock")

    def _is_current(self, fd: int, path: Path) -> bool:
        with contextlib.suppress(OSError):
            return os.fstat(fd).st_ino == self._lock_of(path).stat().st_ino
        return False


def remove(folder: str) -> None:
    """Remove a folder, whatever a job has done to it; one that isn't there is fine. Raises ``RunnerError``."""
    if os.path.lexists(folder):
        make_fresh(folder)
        os.rmdir(folder)  # noqa: PTH106
