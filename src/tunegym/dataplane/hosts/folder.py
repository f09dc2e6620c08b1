"""The folder of an mmap plane: its format, its owner, its locks, and the socket of its host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import orjson

from tunegym.dataplane.errors import NoPlaneError, StorageError

FORMAT = 4
"""Of the folder, the journal and the messages. Other formats are refused."""
SOCKET = "host.sock"
LOG = "host.log"
SEGMENTS = "segments"
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
