"""The journal file of every store: an append-only file of records with one writer.

``append`` hands a record to the operating system before it returns. A thread of the journal's own (the keeper) has
records on the disk within a second, renews the lock's heartbeat and runs the store's regular work, such as writing
rows to the CSV views. Opening an existing journal takes over from a dead writer: a torn last line is cut off.

``WriterLock`` keeps a second writer out. File locks of the operating system are not reliable on shared cluster file
systems, so a lock file names the writer: one on this host is alive if its process is, one on another host or in another
container (a pid namespace) while its heart beats.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tunegym.core.clock import Clock
from tunegym.core.errors import StoreError, StoreLockedError
from tunegym.core.files import append_whole
from tunegym.core.processes import boot_id, process_start_time
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.records import ENCODER, EndRecord, Record, SessionRecord

logger = logging.getLogger(__name__)

FSYNC_S = 1.0
_APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_OF_RUN = ("version", "at", "run")
"""What may differ between the head of a journal and the experiment that continues it."""


class JournalFile:
    """Writes a journal's records, from the head and the session's to the last; ``past`` are the earlier sessions.

    The stores of trials and of steps extend it.

    Raises:
        StoreLockedError: another process writes it.
        StoreError: it can't be written, or belongs to another experiment than ``head`` describes.
    """

    def __init__(self, folder: Path, head: Head, session: SessionRecord, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._begun = self._clock.monotonic()
        self.path = folder / reader.JOURNAL
        self._guard = threading.Lock()
        self._broken: StoreError | None = None
        self._dirty = False
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._wake = threading.Event()
        self._waiting: deque[threading.Event] = deque()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(folder)
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(self._lock.release)
                self.past = reader.scan(self.path)
                self.head = _agreed(self.past, head, self.path)
                self._file = os.open(self.path, _APPEND, 0o644)
                undo.callback(os.close, self._file)
                self._cut_torn_line()
                if self.past.head is None:
                    self.append(replace(self.head, at=self.wall()))
                host, pid = socket.gethostname(), os.getpid()
                self.append(replace(session, at=self.wall(), host=host, boot=boot_id(), pid=pid))
                undo.pop_all()
        except OSError as error:
            raise unwritable(folder, error) from error

    # for a store ------------------------------------------------------------------------------------------

    every_s = FSYNC_S
    """How often the keeper does its work."""

    def _start(self) -> None:
        """Start the keeper."""
        self._keeper = threading.Thread(target=self._keep, name="tunegym-journal", daemon=True)
        self._keeper.start()

    def _work(self) -> None:
        """The store's regular work, on the keeper. An error breaks the journal: the next ``append`` raises it."""

    def _before_sync(self) -> None:
        """Comes before fsync."""

    def _finish(self) -> None:
        """The store's last work."""

    # records ------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Write a record, whole or not at all. Any thread may call it."""
        line = ENCODER.encode(record) + b"\n"
        with self._guard:
            self.check()
            try:
                append_whole(self._file, line)
            except OSError as error:
                self._broken = unwritable(self.path, error)
                raise self._broken from error
            self._dirty = True

    def wall(self) -> float:
        """The time of day."""
        return self._clock.wall()

    def since(self) -> float:
        """Seconds of this session that count as spent."""
        return round(self._clock.monotonic() - self._begun, 6)

    def forgive(self, seconds: float) -> None:
        """Don't count this much time of the session as spent."""
        self._begun += seconds

    def end(self, code: int, reason: str) -> None:
        """Write down that the experiment came to its end by itself."""
        self.append(EndRecord(at=self.wall(), since=self.since(), code=code, reason=reason))

    def check(self) -> None:
        """Raise what keeps records from being written, if anything does."""
        if self._broken is not None:
            raise self._broken

    def wake(self) -> None:
        """Have the keeper do its work now."""
        self._wake.set()

    def flush(self) -> None:
        """Have the keeper do its work now, and wait for it. Raises ``StoreError`` if it failed."""
        if self._keeper is None:
            return
        if self._keeper.is_alive() and not self._closed:
            done = threading.Event()
            self._waiting.append(done)
            self._wake.set()
            while not done.wait(1.0) and self._keeper.is_alive():
                pass
        else:  # it has ended, or this is a fork of its process
            self._work()
        self.check()

    # the file -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Have everything on the disk, and let go. Calling it twice is fine.

        Raises:
            StoreError: records or views could not be written.
        """
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._keeper is not None:
            self._keeper.join()
        broken = self._broken
        try:
            try:
                self._finish()
            finally:
                with self._guard:  # nothing may be written to a descriptor that is closed
                    self._broken = StoreError(f"{self.path} is closed")
                os.fsync(self._file)
        except (OSError, StoreError) as error:
            broken = broken or unwritable(self.path, error)
        finally:
            os.close(self._file)
            self._lock.release()
        if broken is not None:
            raise broken

    def _cut_torn_line(self) -> None:
        if os.fstat(self._file).st_size > self.past.valid_size:
            os.ftruncate(self._file, self.past.valid_size)
        if not self.past.ends_with_newline:
            os.write(self._file, b"\n")

    def _keep(self) -> None:
        synced = self._clock.monotonic()
        while not self._closed:
            self._wake.wait(self.every_s)
            self._wake.clear()
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                self._work()
                for done in waiting:
                    done.set()
                waiting = []
                if self._clock.monotonic() - synced >= self.every_s:
                    synced = self._clock.monotonic()
                    self._sync()
            except (OSError, StoreError) as error:
                self._broken = unwritable(self.path, error)
            except Exception as error:  # a bug of ours must not go unheard
                logger.exception("the journal's keeper failed")
                self._broken = StoreError(f"{self.path} can't be written: {type(error).__name__}: {error}")
            finally:
                for done in waiting:
                    done.set()

    def _sync(self) -> None:
        if os.fstat(self._file).st_nlink == 0:
            raise StoreError(f"{self.path} was deleted while it was being written", hint="start a new run")
        self._lock.beat()
        self._before_sync()
        if self._dirty:
            self._dirty = False
            try:
                os.fsync(self._file)
            except OSError as error:
                raise StoreError(f"{self.path} can't be made durable: {error.strerror}") from error


def unwritable(path: Path, error: OSError | StoreError) -> StoreError:
    """The error for a file or folder that can't be written."""
    if isinstance(error, StoreError):
        return error
    return StoreError(
        f"{path} can't be written: {error.strerror}",
        hint="recorded data is safe: fix the cause (is the disk full, the folder yours?), then resume",
    )


def _agreed(past: reader.Journal, head: Head, path: Path) -> Head:
    """The head to continue with: the past one's if there is one, which must describe the same experiment."""
    if past.head is None:
        return head
    if past.kind != head.kind:
        fault = f"{path} belongs to an experiment of the kind {past.kind}, not {head.kind}"
        raise StoreError(fault, hint="start a new run")
    before, now = msgspec.to_builtins(past.head), msgspec.to_builtins(head)
    for key in now:
        if key not in _OF_RUN and exact_key({key: before[key]}) != exact_key({key: now[key]}):
            raise StoreError(
                f"{path} was written with another `{key}`: {before[key]!r}, now {now[key]!r}",
                hint="start a new run: trials of different experiments can't share a journal",
            )
    return past.head


LOCK = "writer.lock"
HEARTBEAT_S = 5.0
STALE_AFTER_S = 60.0


class Holder(msgspec.Struct, frozen=True):
    """The writer that holds a lock."""

    host: str
    boot: str
    pid: int
    start_time: str | None
    heartbeat: float
    token: str


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
        if holder is not None and holder.token != self._token:
            raise StoreError(
                f"{self._path} was taken over by {_named(holder)}",
                hint="this process was taken for dead; resume the run when the other one has ended",
            )
        self._write()

    def release(self) -> None:
        """Let go. Another process's lock is left alone."""
        holder = _read(self._path)
        if holder is not None and holder.token == self._token:
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
        holder = Holder(
            host=socket.gethostname(),
            boot=boot_id(),
            pid=pid,
            start_time=process_start_time(pid),
            heartbeat=time.time(),
            token=self._token,
        )
        fresh = self._path.with_suffix(f".{self._token}")
        fresh.write_bytes(msgspec.json.encode(holder))
        fresh.replace(self._path)
        self._beaten = time.monotonic()


def living_writer(folder: Path) -> str | None:
    """Who writes the experiment in ``folder`` right now, or None."""
    holder = _read(folder / LOCK)
    return _named(holder) if holder is not None and _living(holder) else None


def _read(path: Path) -> Holder | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
    except (FileNotFoundError, RecursionError, ValueError):
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}", hint="is the folder yours?") from error


def _named(holder: Holder) -> str:
    return f"process {holder.pid} on {holder.host}"


def _living(holder: Holder) -> bool:
    if holder.boot == boot_id():
        return holder.start_time is not None and process_start_time(holder.pid) == holder.start_time
    restarted = holder.boot.partition("/")[0] != boot_id().partition("/")[0]
    if restarted and holder.host == socket.gethostname():
        return False  # here; in another pid namespace of the same boot it may live
    # One far in the future is a clock gone wrong, not a writer that will live for ever.
    return abs(time.time() - holder.heartbeat) < STALE_AFTER_S
