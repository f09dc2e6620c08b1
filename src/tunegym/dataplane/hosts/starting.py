"""Finding a plane's ledger host, or starting it: whoever holds the lock does, and everybody else joins."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import site
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson

from tunegym.dataplane.errors import NoPlaneError, StorageError
from tunegym.dataplane.hosts.operations import as_error

SOCKET = "host.sock"
PLANE = "plane.json"
FORMAT = 3
START_S = 60.0
"""How long a host may take until it has the ledger, and listens."""
LOG = "host.log"
_LOG_BYTES = 1 << 20
SEGMENTS = "segments"
_CREDENTIALS = struct.Struct("3i")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def bootstrap(folder: Path) -> None:
    """Make ``folder`` a plane, if it isn't one. Raises ``StorageError`` if it can't be one."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid() and not any(folder.iterdir()):
            folder.chmod(0o700)
        _check_owner(folder)
        with _locked(folder, "start.lock"):
            place = folder / PLANE
            if not place.exists():
                if any(path.name not in ("start.lock", f"{PLANE}.new") for path in folder.iterdir()):
                    raise StorageError(
                        f"{folder} is not empty, and no plane", hint="give a folder of its own, or an empty one"
                    )
                folder.chmod(0o700)
                fresh = folder / f"{PLANE}.new"
                fresh.write_bytes(orjson.dumps({"format": FORMAT}))
                fresh.replace(place)
    except OSError as error:
        raise StorageError(f"{folder} can't be used: {error.strerror}", hint="is it yours?") from error
    check(folder)


def check(folder: Path) -> None:
    """Raise unless ``folder`` is a plane of this format, and of this user."""
    try:
        _check_owner(folder)
        found = orjson.loads((folder / PLANE).read_bytes())
    except FileNotFoundError:
        raise NoPlaneError(f"there is no plane at {folder}", hint="connect() makes one, attach() only joins") from None
    except OSError as error:
        raise StorageError(f"{folder} can't be read: {error.strerror}", hint="is it yours?") from error
    except ValueError as error:
        raise StorageError(f"{folder / PLANE} is damaged: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        known = found.get("format") if isinstance(found, dict) else found
        raise StorageError(
            f"{folder} has format {known!r}, and this tunegym knows {FORMAT}", hint="use the version that made it"
        )


def _check_owner(folder: Path) -> None:
    """Before anything in it is used: raise ``StorageError`` if somebody else may have put it there; or ``OSError``."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise StorageError(
            f"{folder} is somebody else's (of user {found.st_uid})", hint="give a folder of your own, or be that user"
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise StorageError(
            f"others may write to {folder}", hint="if all in it is yours, run chmod go-w on it, or give another one"
        )


def open_own(path: Path, flags: int) -> int:
    """A file of the plane, made if it isn't there. Raises ``StorageError`` for a link, and ``OSError``."""
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StorageError(f"{path} is a link", hint="no plane makes such links: remove it") from error


def reach(folder: Path, linger_s: float) -> socket.socket:
    """A connection to the plane's host, which is started if there is none.

    Raises:
        NoPlaneError: the folder is gone.
        StorageError: the ledger can't be brought back.
        OSError: it could not be reached this time.
    """
    check(folder)
    with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
        return _connected(folder)
    with _locked(folder, "start.lock"):
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            return _connected(folder)  # somebody else was quicker
        _start(folder, linger_s)
        return _connected(folder)


def _connected(folder: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(folder) as place:
            connected.connect(place)
        data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(data)
        if uid not in (os.geteuid(), 0):
            raise StorageError(
                f"{folder / SOCKET} is another user's ({uid})", hint="give a folder that only you can write to"
            )
    except BaseException:
        connected.close()
        raise
    return connected


@contextlib.contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """The socket's path through a descriptor of its folder: a socket's name may not be long."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def _start(folder: Path, linger_s: float) -> None:
    """Start the host, a process of its own, which outlives whoever started it, and wait until it listens.

    It is known at once when it dies before that: the pipe that it has is closed then.

    Raises:
        DataPlaneError: what it said.
        OSError: it said nothing.
    """
    reading, writing = os.pipe()
    try:
        log = open_own(folder / LOG, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(log).st_size > _LOG_BYTES:
                os.ftruncate(log, 0)
            module = "tunegym.dataplane.hosts.server_main"
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(folder.absolute()), str(linger_s), str(writing)],
                cwd="/",
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(writing,),
            )
        finally:
            os.close(log)
            os.close(writing)
        child.wait()  # not for the host: it has detached itself by then
        waiting = select.poll()  # select() can't bear descriptors above 1023
        waiting.register(reading, select.POLLIN)
        ready = waiting.poll(1000 * START_S)
        told = os.read(reading, 1 << 16) if ready else b""
    finally:
        os.close(reading)
    if not told:
        raise ConnectionRefusedError(f"its host did not start; see {folder / LOG}")
    error = orjson.loads(told)
    if error is not None:
        raise as_error(error)


def _environment() -> dict[str, str]:
    """In which the host finds this very tunegym, and nothing by the folder that its starter happens to be in."""
    places = [Path(place).absolute() for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    home = Path(__file__).absolute().parents[3]
    if str(home) not in (*site.getsitepackages(), site.getusersitepackages()):  # those must not come first
        places.insert(0, home)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    descriptor = open_own(folder / name, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing it would not do if it was forked meanwhile
        os.close(descriptor)
