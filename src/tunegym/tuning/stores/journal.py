"""The journal: the truth about one experiment, in one append-only file."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import orjson

from tunegym.core.clock import Clock, SystemClock
from tunegym.core.errors import StoreError
from tunegym.core.processes import boot_id
from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.stores import reader, records
from tunegym.tuning.stores.book import TrialBook
from tunegym.tuning.stores.lock import WriterLock
from tunegym.tuning.stores.records import Head, Record, Session
from tunegym.tuning.stores.views import CsvViews

FSYNC_S = 1.0


class JournalStore(TrialBook):
    """The ``TrialStore`` that a run uses.

    Every record is handed to the operating system before the call returns, and is on the disk within a second
    and at ``close``. Opening an existing journal takes over from a dead writer: a torn last line is cut off,
    and the views are written anew.

    Raises:
        StoreLockedError: somebody else writes it.
        StoreError: it can't be written, or belongs to another experiment than ``head`` describes.
    """

    def __init__(self, folder: Path, head: Head, session: Session, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._begun = self._clock.monotonic()
        self._path = folder / reader.JOURNAL
        self.fingerprint = session.fingerprint
        self._append_lock = threading.Lock()
        self._broken: StoreError | None = None
        self._dirty = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(self._lock.release)
                past = reader.scan(self._path) if self._path.exists() else reader.Journal()
                self.head = _agreed(past.head, head, self._path)
                self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
                undo.callback(os.close, self._file)
                self._repair(past)
                self.past = past
                super().__init__(past.used, past.open)
                if past.head is None:
                    self._append(records.head_record(self.head, self._clock.wall()))
                self._append(_session_record(session, self._clock.wall()))
                self._views = CsvViews(folder, list(head.knobs), list(head.env_params), head.metrics)
                for _, trial in reader.trials(self._path):
                    self._views.add(trial)
                undo.pop_all()
        except OSError as error:
            raise _unwritable(folder, error) from error
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tunegym-journal", daemon=True)
        self._keeper.start()

    # records ------------------------------------------------------------------------------------------

    def job_started(self, number: int, pid: int, start_time: str) -> None:
        """See ``TrialStore.job_started``."""
        self._append({"record": "job", "number": number, "pid": pid, "start_time": start_time})

    def leftovers(self) -> list[tuple[int, str]]:
        """(pid, start time) of the processes that open trials of earlier sessions had, on this machine as it runs."""
        boot = boot_id()
        known = [process for processes in self.past.processes.values() for process in processes]
        return [(process.pid, process.start_time) for process in known if process.boot == boot]

    def recorded(self) -> Iterator[tuple[str, Trial]]:
        """See ``TrialStore.recorded``."""
        return reader.trials(self._path)

    def end(self, code: int, reason: str) -> None:
        """Write down that the experiment came to its end."""
        self._append(
            {"record": "end", "at": self._clock.wall(), "since": self._since(), "code": code, "reason": reason}
        )

    def close(self) -> None:
        """See ``TrialStore.close``. Raises what kept records from the disk, if anything did."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._keeper.join()
        with self._append_lock:  # a late job_started must not write to a descriptor that is somebody else's by then
            broken, self._broken = self._broken, StoreError(f"{self._path} is closed")
        try:
            try:
                self._views.close()
            finally:
                os.fsync(self._file)
        except (OSError, StoreError) as error:
            if broken is None:
                broken = _unwritable(self._path, error) if isinstance(error, OSError) else error
        finally:
            os.close(self._file)
            self._lock.release()
        if broken is not None:
            raise broken

    # the file -----------------------------------------------------------------------------------------

    def forgive(self, seconds: float) -> None:
        """See ``TrialStore.forgive``."""
        self._begun += seconds

    def _since(self) -> float:
        return round(self._clock.monotonic() - self._begun, 6)

    def _write_open(self, trial: OpenTrial) -> None:
        self._append(records.open_record(trial, self._clock.wall(), self._since()))

    def _write_close(self, trial: Trial, *, opened: bool) -> None:
        self._append(records.close_record(trial, self._clock.wall(), self._since(), opened))
        self._views.add(trial)

    def _append(self, record: Record) -> None:
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        with self._append_lock:
            if self._broken is not None:
                raise self._broken
            try:
                self._write_whole(line)
            except OSError as error:
                self._broken = _unwritable(self._path, error)
                raise self._broken from error
            self._dirty = True

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

    def _repair(self, past: reader.Journal) -> None:
        if os.fstat(self._file).st_size > past.valid_size:
            os.ftruncate(self._file, past.valid_size)
        if not past.ends_with_newline:
            os.write(self._file, b"\n")

    def _keep(self) -> None:
        """Once a second: what was written reaches the disk, the views their files, the lock its heartbeat."""
        while not self._closing.wait(FSYNC_S):
            try:
                self._check_there()
                self._lock.beat()
                self._views.flush()
                if self._dirty:
                    self._dirty = False
                    os.fsync(self._file)
            except StoreError as error:
                self._broken = error
            except OSError as error:
                self._broken = StoreError(f"{self._path} can't be made durable: {error.strerror}")

    def _check_there(self) -> None:
        if os.fstat(self._file).st_nlink == 0:
            raise StoreError(f"{self._path} was deleted while it was being written", hint="start a new run")


def _session_record(session: Session, at: float) -> Record:
    return records.session_record(session, at, socket.gethostname(), boot_id(), os.getpid())


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} can't be written: {error.strerror}",
        hint="what was recorded is safe: mend the cause (is the disk full, the folder yours?), then resume",
    )


def _agreed(past: Record | None, head: Head, path: Path) -> Head:
    """The head to go on with: the past one's if there is one, which must describe the same experiment."""
    if past is None:
        return head
    now = orjson.loads(orjson.dumps(asdict(head)))  # tuples and lists are the same in a journal
    past = {"objectives": [], **past}
    for key in ("experiment", "seed", "agent", "knobs", "env_params", "metrics", "repeats", "objectives"):
        if exact_key({key: past.get(key)}) != exact_key({key: now[key]}):
            raise StoreError(
                f"{path} was written with another `{key}`: {past.get(key)!r}, now {now[key]!r}",
                hint="start a new run: trials of different experiments can't share a journal",
            )
    return Head(**{key: past[key] for key in now})
