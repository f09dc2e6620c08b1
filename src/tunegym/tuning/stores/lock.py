"""One writer per experiment: a lock file with host, pid, start time and heartbeat.

File locks of the operating system are not to be trusted on shared cluster file systems, so who writes is
written down: a writer on this host is alive if its process is, one on another host while its heart beats.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from tunegym.core.errors import StoreError, StoreLockedError
from tunegym.core.processes import boot_id, process_start_time

LOCK = "writer.lock"
HEARTBEAT_S = 5.0
STALE_AFTER_S = 60.0


class WriterLock:
    """Held from construction to ``release``.

    Raises:
        StoreLockedError: another living process holds it. A dead one's lock is taken over.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._token = uuid.uuid4().hex
        self._beaten = 0.0
        with self._guard():
            holder = _read(self._path)
            if holder is not None and _living(holder):
                raise StoreLockedError(
                    f"{folder} is being written by {_named(holder)}",
                    hint="wait for it, or end that process; results can be read meanwhile",
                )
            self._write()

    def beat(self) -> None:
        """Renew the heartbeat when it is time to.

        Raises:
            StoreError: another process took the lock, believing this one dead.
        """
        now = time.monotonic()
        if now - self._beaten < HEARTBEAT_S:
            return
        holder = _read(self._path)
        if holder is not None and holder.get("token") != self._token:
            raise StoreError(
                f"{self._path} was taken over by {_named(holder)}",
                hint="this process was taken for dead; resume the run when the other one has ended",
            )
        self._write()

    def release(self) -> None:
        """Let go. Another process's lock is left alone."""
        holder = _read(self._path)
        if holder is not None and holder.get("token") == self._token:
            self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Two writers of this host don't judge and take at the same time."""
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)  # the folder: it leaves no file behind
        try:
            with contextlib.suppress(OSError):  # a file system without locks: the written lock still decides
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self) -> None:
        pid = os.getpid()
        body = {
            "host": socket.gethostname(),
            "boot": boot_id(),
            "pid": pid,
            "start_time": process_start_time(pid),
            "heartbeat": time.time(),
            "token": self._token,
        }
        fresh = self._path.with_suffix(f".{self._token}")
        fresh.write_bytes(orjson.dumps(body))
        fresh.replace(self._path)
        self._beaten = time.monotonic()


def living_writer(folder: Path) -> str | None:
    """Who writes the experiment in ``folder`` right now, or None."""
    holder = _read(folder / LOCK)
    return _named(holder) if holder is not None and _living(holder) else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        holder = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}", hint="is the folder yours?") from error
    return holder if isinstance(holder, dict) else None


def _named(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid')} on {holder.get('host')}"


def _living(holder: dict[str, Any]) -> bool:
    if holder.get("boot") == boot_id():
        pid, start_time = holder.get("pid"), holder.get("start_time")
        return isinstance(pid, int) and start_time is not None and process_start_time(pid) == start_time
    if holder.get("host") == socket.gethostname():
        return False  # the machine was restarted since
    heartbeat = holder.get("heartbeat")
    # One far in the future is a clock gone wrong, not a writer that will live for ever.
    return isinstance(heartbeat, int | float) and abs(time.time() - heartbeat) < STALE_AFTER_S
