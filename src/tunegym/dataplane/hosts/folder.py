"""The folder of an mmap plane: its format, its owner, its locks, and its host, which is found or started there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import orjson

from tunegym.core.processes import start_python
from tunegym.dataplane.errors import NoPlaneError, StorageError
from tunegym.dataplane.hosts.journal import ledger_file, make_journal
from tunegym.dataplane.hosts.operations import as_error

FORMAT = 5
"""Of the folder, the journal and the messages. Other formats are refused."""
SOCKET = "host.sock"
LOG = "host.log"
SEGMENTS = "segments"
_PLANE = "plane.json"
_START_LOCK = "start.lock"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LOOK_S = 0.02

Stop: TypeAlias = Callable[[], bool]
"""Whether to stop waiting."""


def bootstrap(folder: Path, timeout_s: float) -> None:
    """Make ``folder`` a plane, unless it is one. Raises ``StorageError``."""
    until = time.monotonic() + timeout_s
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid() and not any(folder.iterdir()):
            folder.chmod(0o700)
        _check_owner(folder)
        with start_lock(folder, lambda: time.monotonic() > until):
            fresh = folder / f"{_PLANE}.new"
            if not (folder / _PLANE).exists():
                known = _START_LOCK, fresh.name, ledger_file(folder).name
                if any(path.name not in known for path in folder.iterdir()):
                    raise StorageError(f"{folder} is not empty, and not a plane", hint="give an empty folder")
                make_journal(ledger_file(folder))
                fresh.write_bytes(orjson.dumps({"format": FORMAT}))
                fresh.replace(folder / _PLANE)
    except OSError as error:
        raise StorageError(f"{folder} can't be used: {error.strerror or error}", hint="is it yours?") from error
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
def start_lock(folder: Path, stop: Stop) -> Iterator[None]:
    """Only one process at a time makes a plane or starts its host. Raises ``TimeoutError`` when told to stop."""
    descriptor = open_file(folder / _START_LOCK, os.O_RDWR)
    try:
        if not take_lock(descriptor, stop):
            raise TimeoutError(f"another process holds {folder / _START_LOCK}")
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing does not unlock a descriptor that was forked meanwhile
        os.close(descriptor)


def take_lock(descriptor: int, stop: Stop) -> bool:
    """Lock an open file as soon as no other process holds it. False when told to stop."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if stop():
            return False
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def socket_path(folder: Path) -> Iterator[str]:
    """The path of the host's socket through a descriptor of the folder: paths of sockets must be short."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


# finding and starting the host ------------------------------------------------------------------------


def reach(folder: Path, linger_s: float, stop: Stop) -> socket.socket:
    """A connection to the plane's host, which is started if there is none.

    Raises:
        NoPlaneError: the folder is gone.
        StorageError: the ledger can't be recovered.
        OSError: it could not be reached this time.
    """
    check(folder)
    found = _connected(folder)
    if found is not None:
        return found
    with start_lock(folder, stop):
        return _connected(folder) or _start(folder, linger_s, stop)  # another process may have been quicker


def _connected(folder: Path) -> socket.socket | None:
    """A connection to the host; None if there is none. Raises ``BlockingIOError`` if too many clients wait for it."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.setblocking(False)
    try:
        with socket_path(folder) as place:
            if Path(place).stat().st_uid != os.geteuid():  # others may have been able to write to the folder before
                raise StorageError(f"{folder / SOCKET} is another user's", hint="remove it, or give another folder")
            connected.connect(place)
    except BaseException as error:
        connected.close()
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            return None
        raise
    return connected


def _start(folder: Path, linger_s: float, stop: Stop) -> socket.socket:
    """Start the host, which outlives this process, and connect as soon as it listens.

    Raises:
        DataPlaneError: what the host reported.
        ConnectionError: it ended without a report.
        TimeoutError: told to stop. The host may still start.
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
        while True:
            report = os.read(reading, 1 << 16) if waiting.poll(round(1000 * _LOOK_S)) else None
            error = orjson.loads(report) if report else None
            if error is not None:
                raise as_error(error)
            found = _connected(folder)  # perhaps to a host that another process started before
            if found is not None:
                return found
            if report is not None:
                raise ConnectionRefusedError(f"its host did not start; see {folder / LOG}")
            if stop():
                raise TimeoutError(f"its host takes long to start; see {folder / LOG}")
    finally:
        os.close(reading)
