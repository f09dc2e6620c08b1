"""The folder of an mmap plane: its format, its owner, its locks, and its host, which is found or started there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import orjson

from tunegym.core.processes import start_python
from tunegym.dataplane.errors import NoPlaneError, StorageError
from tunegym.dataplane.hosts.operations import as_error

FORMAT = 4
"""Of the folder, the journal and the messages. Other formats are refused."""
SOCKET = "host.sock"
LOG = "host.log"
SEGMENTS = "segments"
START_S = 60.0
"""How long a host may take to recover the ledger and listen."""
_PLANE = "plane.json"
_START_LOCK = "start.lock"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def bootstrap(folder: Path) -> None:
    """Make ``folder`` a plane, unless it is one. Raises ``StorageError``."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid() and not any(folder.iterdir()):
            folder.chmod(0o700)
        _check_owner(folder)
        with start_lock(folder):
            fresh = folder / f"{_PLANE}.new"
            if not (folder / _PLANE).exists():
                if any(path.name not in (_START_LOCK, fresh.name) for path in folder.iterdir()):
                    raise StorageError(f"{folder} is not empty, and not a plane", hint="give an empty folder")
                fresh.write_bytes(orjson.dumps({"format": FORMAT}))
                fresh.replace(folder / _PLANE)
    except OSError as error:
        raise StorageError(f"{folder} can't be used: {error.strerror}", hint="is it yours?") from error
    check(folder)


def check(folder: Path) -> None:
    """Raise unless ``folder`` is a plane of this format and this user."""
    try:
        _check_owner(folder)
        found = orjson.loads((folder / _PLANE).read_bytes())
    except FileNotFoundError:
        raise NoPlaneError(f"there is no plane at {folder}", hint="connect() makes one, attach() only joins") from None
    except OSError as error:
        raise StorageError(f"{folder} can't be read: {error.strerror}", hint="is it yours?") from error
    except ValueError as error:
        raise StorageError(f"{folder / _PLANE} is damaged: {error}") from error
    known = found.get("format") if isinstance(found, dict) else found
    if known != FORMAT:
        raise StorageError(
            f"{folder} has format {known!r}, this tunegym knows {FORMAT}",
            hint="use the version of tunegym that made it, or give another folder",
        )


def _check_owner(folder: Path) -> None:
    """Raise ``StorageError`` if another user may have written to it, or ``OSError``."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise StorageError(f"{folder} belongs to another user ({found.st_uid})", hint="give your own folder")
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise StorageError(
            f"others may write to {folder}", hint="if all of it is yours, run chmod go-w on it, or give another folder"
        )


def open_file(path: Path, flags: int) -> int:
    """Open or make a file of the plane. Raises ``StorageError`` for a symbolic link, and ``OSError``."""
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StorageError(f"{path} is a symbolic link", hint="remove it: a plane has none") from error


@contextlib.contextmanager
def start_lock(folder: Path) -> Iterator[None]:
    """Only one process at a time makes a plane or starts its host."""
    descriptor = open_file(folder / _START_LOCK, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing does not unlock a descriptor that was forked meanwhile
        os.close(descriptor)


@contextlib.contextmanager
def socket_path(folder: Path) -> Iterator[str]:
    """The path of the host's socket through a descriptor of the folder: paths of sockets must be short."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


# finding and starting the host ------------------------------------------------------------------------


def reach(folder: Path, linger_s: float) -> socket.socket:
    """A connection to the plane's host, which is started if there is none.

    Raises:
        NoPlaneError: the folder is gone.
        StorageError: the ledger can't be recovered.
        OSError: it could not be reached this time.
    """
    check(folder)
    with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
        return _connected(folder)
    with start_lock(folder):
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            return _connected(folder)  # another process was quicker
        _start(folder, linger_s)
        return _connected(folder)


def _connected(folder: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_path(folder) as place:
            if Path(place).stat().st_uid != os.geteuid():  # others may have been able to write to the folder before
                raise StorageError(f"{folder / SOCKET} is another user's", hint="remove it, or give another folder")
            connected.connect(place)
    except BaseException:
        connected.close()
        raise
    return connected


def _start(folder: Path, linger_s: float) -> None:
    """Start the host, which outlives this process, and wait until it listens.

    Raises:
        DataPlaneError: what the host reported.
        OSError: it ended without a report.
    """
    reading, writing = os.pipe()
    try:
        log = open_file(folder / LOG, os.O_WRONLY | os.O_APPEND)
        try:
            arguments = str(folder.absolute()), str(linger_s), str(writing)
            options = {"fds": [writing], "stdout": log, "stderr": log}
            child = start_python("tunegym.dataplane.hosts.server:main", *arguments, marker="", detach=True, **options)
        finally:
            os.close(log)
            os.close(writing)
        child.reap()  # not the host: it has detached itself
        waiting = select.poll()
        waiting.register(reading, select.POLLIN)
        report = os.read(reading, 1 << 16) if waiting.poll(1000 * START_S) else b""
    finally:
        os.close(reading)
    if not report:
        raise ConnectionRefusedError(f"its host did not start; see {folder / LOG}")
    error = orjson.loads(report)
    if error is not None:
        raise as_error(error)
