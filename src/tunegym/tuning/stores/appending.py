"""An append-only file of records with one writer: what every journal is written with."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import orjson

from tunegym.core.clock import Clock, SystemClock
from tunegym.core.errors import StoreError
from tunegym.core.processes import boot_id
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.stores import reader, records
from tunegym.tuning.stores.lock import WriterLock
from tunegym.tuning.stores.records import Head, Record, Session

logger = logging.getLogger(__name__)

FSYNC_S = 1.0
_APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class Past(Protocol):
    """What an appender needs to know of what is there already."""

    head: Record | None
    valid_size: int
    ends_with_newline: bool


P = TypeVar("P", bound=Past)


class Appender(Generic[P]):
    """Writes a journal's records, from the head and the session's to the last.

    Every record is handed to the operating system before ``append`` returns, and is on the disk within a second and at
    ``close``. Opening an existing journal takes over from a dead writer: a torn last line is cut off.

    Args:
        folder: the experiment's results.
        head: what the journal belongs to.
        session: what this writer is about to do.
        scan: reads what is there; ``past`` is what it gave.
        clock: for the records' times.

    Raises:
        StoreLockedError: somebody else writes it.
        StoreError: it can't be written, or belongs to another experiment than ``head`` describes.
    """

    def __init__(
        self, folder: Path, head: Head, session: Session, scan: Callable[[Path], P], clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._begun = self._clock.monotonic()
        self.path = folder / reader.JOURNAL
        self._guard = threading.Lock()
        self._broken: StoreError | None = None
        self._dirty = False
        self._keeper: threading.Thread | None = None
        self._closing = threading.Event()
        self._regularly: Callable[[], None] = _nothing
        self._every_s = FSYNC_S
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(folder)
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(self._lock.release)
                self.past: P = scan(self.path)
                self.head = _agreed(self.past.head, head, self.path)
                self._file = os.open(self.path, _APPEND, 0o644)
                undo.callback(os.close, self._file)
                self._repair()
                if self.past.head is None:
                    self.append(records.head_record(self.head, self.wall()))
                here = socket.gethostname(), boot_id(), os.getpid()
                self.append(records.session_record(session, self.wall(), *here))
                undo.pop_all()
        except OSError as error:
            raise unwritable(folder, error) from error

    def start(self, regularly: Callable[[], None], every_s: float = FSYNC_S) -> None:
        """From now on every ``every_s``: ``regularly``, the records reach the disk, the lock has its heartbeat.

        What it raises as ``StoreError`` or ``OSError`` breaks the journal, so that the next ``append`` raises it.
        """
        self._regularly, self._every_s = regularly, every_s
        self._keeper = threading.Thread(target=self._keep, name="tunegym-journal", daemon=True)
        self._keeper.start()

    # records ------------------------------------------------------------------------------------------

    def append(self, record: Record, option: int = 0) -> None:
        """Write a record, whole or not at all. Any thread may call it."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE | option)
        with self._guard:
            if self._broken is not None:
                raise self._broken
            try:
                self._write_whole(line)
            except OSError as error:
                self._broken = unwritable(self.path, error)
                raise self._broken from error
            self._dirty = True

    def append_once(self, line: bytes, at: int) -> None:
        """Write a record that begins where the file ended at ``at``, unless an interrupted call has written it."""
        with self._guard:
            if self._broken is not None:
                raise self._broken
            if os.pread(self._file, len(line), at) == line:
                return
            try:
                self._write_whole(line)
            except OSError as error:
                self._broken = unwritable(self.path, error)
                raise self._broken from error
            self._dirty = True

    @property
    def size(self) -> int:
        """Where the next record begins."""
        return os.fstat(self._file).st_size

    def wall(self) -> float:
        """The time of day."""
        return self._clock.wall()

    def since(self) -> float:
        """Seconds of this session that are spent on trials."""
        return round(self._clock.monotonic() - self._begun, 6)

    def forgive(self, seconds: float) -> None:
        """Time of this session that isn't spent on trials."""
        self._begun += seconds

    @property
    def broken(self) -> StoreError | None:
        """What keeps records from being written, if anything does."""
        return self._broken

    # the file -----------------------------------------------------------------------------------------

    def close(self, before: Callable[[], None] = lambda: None) -> None:
        """Do ``before``, have everything on the disk, and let go. Calling it twice is fine.

        Raises:
            StoreError: what kept records from the disk, or ``before`` from its work.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        if self._keeper is not None:
            self._keeper.join()
        broken = self._broken
        try:
            try:
                before()
            finally:
                with self._guard:  # nobody must write to a descriptor that is somebody else's by then
                    self._broken = StoreError(f"{self.path} is closed")
                os.fsync(self._file)
        except (OSError, StoreError) as error:
            if broken is None:
                broken = unwritable(self.path, error) if isinstance(error, OSError) else error
        finally:
            os.close(self._file)
            self._lock.release()
        if broken is not None:
            raise broken

    def _write_whole(self, line: bytes) -> None:
        """The whole line, or nothing of it."""
        written = os.write(self._file, line)
        if written == len(line):
            return
        start = os.fstat(self._file).st_size - written
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            with contextlib.suppress(OSError):  # a resume cuts a torn line off too
                os.ftruncate(self._file, start)
            raise

    def _repair(self) -> None:
        if os.fstat(self._file).st_size > self.past.valid_size:
            os.ftruncate(self._file, self.past.valid_size)
        if not self.past.ends_with_newline:
            os.write(self._file, b"\n")

    def _keep(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._check_there()
                self._lock.beat()
                self._regularly()
                if self._dirty:
                    self._dirty = False
                    os.fsync(self._file)
            except StoreError as error:
                self._broken = error
            except OSError as error:
                self._broken = StoreError(f"{self.path} can't be made durable: {error.strerror}")
            except Exception as error:  # a bug of ours must not go unheard
                logger.exception("the journal's own thread")
                self._broken = StoreError(f"{self.path} can't be written: {type(error).__name__}: {error}")

    def _check_there(self) -> None:
        if os.fstat(self._file).st_nlink == 0:
            raise StoreError(f"{self.path} was deleted while it was being written", hint="start a new run")


def _nothing() -> None:
    pass


def unwritable(path: Path, error: OSError) -> StoreError:
    """What to say of a file or folder that can't be written."""
    return StoreError(
        f"{path} can't be written: {error.strerror}",
        hint="what was recorded is safe: mend the cause (is the disk full, the folder yours?), then resume",
    )


_SAME = ("experiment", "seed", "agent", "knobs", "env_params", "metrics", "repeats", "objectives", "live")


def _agreed(past: Record | None, head: Head, path: Path) -> Head:
    """The head to go on with: the past one's if there is one, which must describe the same experiment."""
    if past is None:
        return head
    now = orjson.loads(orjson.dumps(asdict(head)))  # tuples and lists are the same in a journal
    past = {"objectives": [], "live": {}, **past}
    for key in _SAME:
        if exact_key({key: past.get(key)}) != exact_key({key: now[key]}):
            raise StoreError(
                f"{path} was written with another `{key}`: {past.get(key)!r}, now {now[key]!r}",
                hint="start a new run: trials of different experiments can't share a journal",
            )
    return Head(**{key: past[key] for key in now})
