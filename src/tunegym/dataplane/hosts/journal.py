"""The ledger's journal: every change, in order, so that a new host comes to the same state."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tunegym.dataplane.errors import StorageError

RECORD = struct.Struct("!II")
"""Length and checksum of what follows."""
ROTATE_BYTES = 64 << 20
_NAME = re.compile(r"ledger-([0-9]{8})\.(journal|snapshot)\Z")


class LedgerJournal:
    """Files of one generation after another: a snapshot, and the changes since. One process writes.

    A change is in the file when ``write`` has returned, so it outlives the process; the disk is not waited for. What a
    killed writer left torn is cut off.

    Args:
        folder: where the files are.
        rotate_bytes: how large the changes may become before a snapshot takes their place.
    """

    def __init__(self, folder: Path, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._generation = max((number for number, _ in self._files()), default=0)
        self._waiting: list[bytes] = []
        self._file = -1
        self._size = 0
        self._limit = rotate_bytes

    # reading ------------------------------------------------------------------------------------------

    def recover(self, restore: Callable[[bytes], None], repeat: Callable[[Any], None]) -> int:
        """Have the last state built again: ``restore`` a snapshot, if any, then ``repeat`` each change. How many.

        Raises:
            StorageError: a file is damaged in the middle.
        """
        whole = [number for number, kind in self._files() if kind == "snapshot"]
        self._generation = max(whole, default=self._generation)
        snapshot = self._path("snapshot")
        if snapshot.exists():
            restore(_whole_record(snapshot))
        journal, count, size = self._path("journal"), 0, 0
        if journal.exists():
            for change, end in _changes(journal):
                repeat(change)
                count, size = count + 1, end
        self._open(size)
        for number, kind in self._files():
            if number < self._generation:
                (self._folder / f"ledger-{number:08d}.{kind}").unlink(missing_ok=True)
        return count

    # writing ------------------------------------------------------------------------------------------

    def add(self, change: Any) -> None:
        """A change, to be written with the next ``write``."""
        content = orjson.dumps(change)
        self._waiting.append(RECORD.pack(len(content), zlib.crc32(content)) + content)

    def write(self) -> None:
        """Write what waits, all of it or nothing.

        Raises:
            StorageError: it can't be written.
        """
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise StorageError(f"{self._path('journal')} can't be written: {error.strerror}") from error
        self._size += len(data)

    @property
    def due(self) -> bool:
        """Whether a snapshot should take the place of the changes."""
        return self._size > self._limit

    def put_off(self) -> None:
        """A snapshot could not be written: try again when there is more to gain by it."""
        self._limit = 2 * self._size

    def rotate(self, snapshot: bytes) -> None:
        """A snapshot of the present state begins the next generation; if that fails, all stays as it is."""
        self.write()
        old = self._generation
        place = self._folder / f"ledger-{old + 1:08d}.snapshot"
        fresh = place.with_suffix(".new")
        try:
            fresh.write_bytes(RECORD.pack(len(snapshot) & 0xFFFFFFFF, zlib.crc32(snapshot)) + snapshot)
            fresh.replace(place)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise StorageError(f"{place} can't be written: {error.strerror}") from error
        self._generation = old + 1
        self._limit = self._rotate_bytes
        self._open(0)
        for kind in ("journal", "snapshot"):
            (self._folder / f"ledger-{old:08d}.{kind}").unlink(missing_ok=True)

    def close(self) -> None:
        """Let go. Calling it twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self, size: int) -> None:
        self.close()
        try:
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path("journal"), flags, 0o600)
            os.ftruncate(self._file, size)
        except OSError as error:
            raise StorageError(f"{self._path('journal')} can't be written: {error.strerror}") from error
        self._size = size

    def _path(self, kind: str) -> Path:
        return self._folder / f"ledger-{self._generation:08d}.{kind}"

    def _files(self) -> list[tuple[int, str]]:
        found = [_NAME.match(path.name) for path in self._folder.iterdir()]
        return [(int(match[1]), match[2]) for match in found if match]


def _changes(path: Path) -> Iterator[tuple[Any, int]]:
    """Every whole change, with where it ends; a torn last one is left out."""
    data = path.read_bytes()
    at = 0
    while len(data) - at >= RECORD.size:
        length, checksum = RECORD.unpack_from(data, at)
        content = data[at + RECORD.size : at + RECORD.size + length]
        if len(content) < length:
            return
        if zlib.crc32(content) != checksum:
            if at + RECORD.size + length < len(data):
                raise StorageError(
                    f"{path} is damaged at byte {at}", hint="keep a copy; the plane can't be recovered beyond that"
                )
            return
        at += RECORD.size + length
        yield orjson.loads(content), at


def _whole_record(path: Path) -> bytes:
    data = path.read_bytes()
    if len(data) >= RECORD.size:
        _, checksum = RECORD.unpack_from(data)
        if zlib.crc32(data[RECORD.size :]) == checksum:
            return data[RECORD.size :]
    raise StorageError(f"{path} is damaged", hint="keep a copy; the plane can't be recovered from it")
