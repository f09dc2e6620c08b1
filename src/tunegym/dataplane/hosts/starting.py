"""Finding a plane's ledger host, or starting it: whoever holds the lock does, and everybody else joins."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson

from tunegym.dataplane.errors import NoPlaneError, StorageError
from tunegym.dataplane.hosts.operations import as_error

SOCKET = "host.sock"
PLANE = "plane.json"
FORMAT = 1
START_S = 60.0
"""How long a host may take until it has the ledger, and listens."""
LOG = "host.log"
_LOG_BYTES = 1 << 20
SEGMENTS = "segments"


def bootstrap(folder: Path) -> None:
    """Make ``folder`` a plane, if it isn't one. Raises ``StorageError`` if it can't be one."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    """Raise unless ``folder`` is a plane of this format."""
    try:
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
        log = os.open(folder / LOG, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(log).st_size > _LOG_BYTES:
                os.ftruncate(log, 0)
            module = "tunegym.dataplane.hosts.server_main"
            child = subprocess.Popen(
                [sys.executable, "-m", module, str(folder), str(linger_s), str(writing)],
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


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    descriptor = os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
