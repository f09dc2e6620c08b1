"""The ledger's journal: a snapshot and the changes since, so that a new host restores the same state."""

from __future__ import annotations

import contextlib
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tunegym.dataplane.errors import StorageError

RECORD = struct.Struct("!III")
"""Length of the content; the same again, masked, so that a damaged length is detected; checksum."""
_MASK = 0x7467_6A6C
_BEGIN = b"tunegym ledger journal\n"
RESERVE = 256 << 10
"""Bytes that are allocated beyond the end: on a full disk, the changes that make room must still be written."""
SMALLEST, LARGEST = 4 << 20, 64 << 20
"""The size of the changes before the next snapshot: twice the last one, within these bounds."""
_FLAGS = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_CUT = "bring the file back; without it the plane can't be recovered"
_NAME = re.compile(r"ledger-([0-9]{8})\.(journal|snapshot|new)\Z")


class LedgerJournal:
    """Generations of two files: a snapshot, and the changes since. One process writes.

    A change outlives the process when ``write`` has returned; there is no fsync. Zeros follow the last change. A torn
    last change of a killed writer is wiped.

    A generation starts with its snapshot: a later one without a snapshot was never started. ``make_journal`` makes the
    journal of the first one.

    Args:
        folder: of the files.
        rotate_bytes: the size of the changes before the next snapshot; by default in proportion to the last one.
    """

    def __init__(self, folder: Path, rotate_bytes: int | None = None) -> None:
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._generation = 0
        self._waiting: list[bytes] = []
        self._file = -1
        self._size = self._allocated = 0
        self._shortage = ""
        self._limit = self._worth(0)

    # reading ------------------------------------------------------------------------------------------

    def recover(self, restore: Callable[[bytes], None], repeat: Callable[[Any], None]) -> int:
        """``restore`` the snapshot, if any, then ``repeat`` each change; the number of changes.

        Raises:
            StorageError: a file is damaged, missing, or can't be read.
        """
        try:
            self._generation = max((number for number, kind in self._files() if kind == "snapshot"), default=0)
            for number, kind in self._files():
                longer = kind == "journal" and self._path(kind, number).stat().st_size > len(_BEGIN)
                if longer and number > self._generation:
                    raise StorageError(
                        f"{self._path('snapshot', number)} is missing",
                        hint="bring it back: the changes after it are there",
                    )
            self._restore(restore)
            count = self._replay(repeat)
            for number, kind in self._files():
                if number != self._generation:
                    self._path(kind, number).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{error.filename or self._folder} can't be used: {error.strerror}") from error
        return count

    def _restore(self, restore: Callable[[bytes], None]) -> None:
        path = self._path("snapshot")
        if path.exists():
            data = path.read_bytes()
            content = data[RECORD.size :]
            if data[: RECORD.size] != _head(content):
                raise StorageError(f"{path} is damaged", hint="keep a copy; the plane can't be recovered from it")
            self._limit = self._worth(len(content))
            restore(content)

    def _replay(self, repeat: Callable[[Any], None]) -> int:
        journal = self._path("journal")
        if not journal.exists():
            raise StorageError(f"{journal} is missing", hint=_CUT)
        content = journal.read_bytes()
        if not content.startswith(_BEGIN):
            raise StorageError(f"{journal} is cut short: it does not begin as a journal", hint=_CUT)
        count, size = 0, len(_BEGIN)
        for change, end in _changes(content, journal):
            repeat(change)
            count, size = count + 1, end
        self.close()
        self._file = os.open(journal, _FLAGS, 0o600)
        os.pwrite(self._file, bytes(max(0, len(content.rstrip(b"\0")) - size)), size)
        self._begin(size)
        return count

    # writing ------------------------------------------------------------------------------------------

    def add(self, change: Any) -> None:
        """Add a change to the next ``write``."""
        content = orjson.dumps(change)
        self._waiting.append(_head(content) + content)

    def write(self) -> None:
        """Write the added changes, all or nothing. Raises ``StorageError``."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._reserve(len(data))
        at = 0
        try:
            while at < len(data):
                at += os.pwrite(self._file, memoryview(data)[at:], self._size + at)
        except OSError as error:
            self._wipe(at)
            raise self._full(error.strerror) from error
        self._size += len(data)
        self._allocated = max(self._allocated, self._size)

    def _wipe(self, count: int) -> None:
        """Undo a partial write."""
        with contextlib.suppress(OSError):
            try:
                os.pwrite(self._file, bytes(count), self._size)
            except OSError:
                os.ftruncate(self._file, self._size)
                self._allocated = self._size

    def check_room(self, least: float = math.inf) -> None:
        """Raise ``StorageError`` if the disk is full and less than ``least`` is left of the reserve.

        The rest of the reserve is for changes that make room.
        """
        self._reserve()
        if self._shortage and self._allocated - self._size < least:
            raise self._full(self._shortage)

    def _reserve(self, needed: int = 0) -> None:
        """Allocate more of the disk, if possible: what is needed now, and the reserve after it."""
        if self._allocated - self._size >= needed + RESERVE and not self._shortage:
            return
        wanted = self._size + needed + 2 * RESERVE
        try:
            os.posix_fallocate(self._file, self._allocated, wanted - self._allocated)
        except OSError as error:
            self._shortage = error.strerror or str(error)
        else:
            self._allocated, self._shortage = wanted, ""

    def _full(self, reason: str | None) -> StorageError:
        return StorageError(
            f"{self._path('journal')} can't be written: {reason}",
            hint="make room: on the disk, or by clearing and committing samples; acknowledged changes are safe",
        )

    @property
    def due(self) -> bool:
        """Whether it is time for a snapshot."""
        return self._size > self._limit

    def put_off(self) -> None:
        """A snapshot failed: try again when the changes have doubled."""
        self._limit = 2 * self._size

    def rotate(self, snapshot: bytes) -> None:
        """Start the next generation with a snapshot. Raises ``StorageError``; then nothing has changed."""
        self.write()
        old, following = self._generation, self._generation + 1
        place, fresh = self._path("snapshot", following), self._path("new", following)
        file = -1
        try:
            make_journal(self._path("journal", following))
            file = os.open(self._path("journal", following), _FLAGS, 0o600)
            fresh.write_bytes(_head(snapshot) + snapshot)
            fresh.replace(place)  # from here on the new generation counts
        except OSError as error:
            if file >= 0:
                os.close(file)
            for path in (fresh, self._path("journal", following)):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            raise StorageError(f"{place} can't be written: {error.strerror}") from error
        self.close()
        for kind in ("journal", "snapshot"):
            with contextlib.suppress(OSError):  # the next host tries again
                self._path(kind, old).unlink(missing_ok=True)
        self._file, self._generation = file, following
        self._limit = self._worth(len(snapshot))
        self._begin(len(_BEGIN))

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self, size: int) -> None:
        """Continue in the open file after ``size`` bytes."""
        self._size, self._allocated = size, max(size, os.fstat(self._file).st_size)
        self._reserve()

    def _worth(self, snapshot: int) -> int:
        """The size of the changes after a snapshot of this size."""
        return min(max(SMALLEST, 2 * snapshot), LARGEST) if self._rotate_bytes is None else self._rotate_bytes

    def _path(self, kind: str, number: int | None = None) -> Path:
        return ledger_file(self._folder, kind, self._generation if number is None else number)

    def _files(self) -> list[tuple[int, str]]:
        found = [_NAME.match(path.name) for path in self._folder.iterdir()]
        return [(int(match[1]), match[2]) for match in found if match]


def ledger_file(folder: Path, kind: str = "journal", number: int = 0) -> Path:
    """A file of a generation; by default the journal of a new plane."""
    return folder / f"ledger-{number:08d}.{kind}"


def make_journal(path: Path) -> None:
    """Make a journal without changes. Raises ``OSError``."""
    path.write_bytes(_BEGIN)


def _head(content: bytes) -> bytes:
    length = len(content) & 0xFFFFFFFF
    return RECORD.pack(length, length ^ _MASK, zlib.crc32(content))


def _changes(content: bytes, path: Path) -> Iterator[tuple[Any, int]]:
    """Every complete change with its end; a torn last one is left out.

    Room for a change is allocated before it is written: one that goes beyond the end of the file was cut off.
    """
    at, used = len(_BEGIN), len(content.rstrip(b"\0"))
    while at < used:
        start = at + RECORD.size
        length, masked, checksum = RECORD.unpack(content[at:start].ljust(RECORD.size, b"\0"))
        if start <= used and masked != length ^ _MASK:
            raise _damaged(path, at)
        end = start + length
        if end > len(content):
            raise StorageError(f"{path} is cut short at byte {at}", hint=_CUT)
        torn = start > used or zlib.crc32(content[start:end]) != checksum
        if torn and end < used:
            raise _damaged(path, at)
        if torn:
            return
        yield orjson.loads(content[start:end]), end
        at = end


def _damaged(path: Path, at: int) -> StorageError:
    return StorageError(f"{path} is damaged at byte {at}", hint="keep a copy; the plane can't be recovered beyond that")
