"""Segments: the files that hold the bytes of an mmap plane.

::

    segment   magic, format version, retired flag; then blocks, each at a multiple of 64
    block     magic, length of the description, length of the block, CRC of the description; description (JSON); columns

A block is never changed, and is read only once the ledger knows it. Its head is checked, so that a cut or foreign file
is detected before it is used. The columns carry no checksum: it would cost as much as writing them.

A producer holds a lock (``flock``) on a segment while it may still add blocks, or while one of its blocks is on the way
to the ledger; the system ends the lock of a process that dies. ``SegmentUsage``, at the ledger's host, unlinks a
segment without live blocks once it gets that lock. It sets the retired flag first, so that readers can see without a
system call that a mapped segment is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tunegym.dataplane.encoding import Column, aligned, restore
from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.storage import BlockGoneError, Location

VERSION = 1
SUFFIX = ".segment"
HEAD_BYTES = 64
RETIRED_AT = 32
"""The offset of the retired flag."""
_MAGIC = b"tunegym segment\0"
_HEAD = struct.Struct("<16sI")
_BLOCK_MAGIC = b"tgblock\0"
_BLOCK = struct.Struct("<8sIIQI")
_DAMAGED = "another program wrote to the folder: clear these samples and produce them again"


def head() -> bytes:
    """The first bytes of a segment."""
    return _HEAD.pack(_MAGIC, VERSION).ljust(HEAD_BYTES, b"\0")


def is_segment(name: object) -> bool:
    """Whether it is the name of a segment: it may not lead to another folder."""
    return isinstance(name, str) and name.endswith(SUFFIX) and "/" not in name and "\0" not in name


def check_name(name: object) -> None:
    """Raise ``StorageError`` unless it is the name of a segment."""
    if not is_segment(name):
        raise StorageError(f"{name!r:.200} is not a segment", hint="ledger and storage belong to different planes")


def check_head(content: bytes, path: Path) -> None:
    """Raise ``StorageError`` unless these are the first bytes of a segment of this version."""
    if len(content) < _HEAD.size:
        raise StorageError(f"{path} is cut short", hint=_DAMAGED)
    magic, version = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise StorageError(f"{path} is not a segment", hint=_DAMAGED)
    if version != VERSION:
        raise StorageError(
            f"{path} has format {version}, this tunegym knows {VERSION}", hint="use the version that wrote it"
        )


def block_head(partition_id: str, columns: Mapping[str, Column]) -> tuple[bytes, int]:
    """The head of a block, which its columns follow, and the length of the whole block."""
    at = 0
    described: dict[str, Any] = {}
    for name, column in columns.items():
        described[name] = {"at": at, **column.describe()}
        at += column.nbytes
    text = orjson.dumps({"partition": partition_id, "columns": described})
    start = aligned(_BLOCK.size + len(text))
    nbytes = start + at
    first = _BLOCK.pack(_BLOCK_MAGIC, VERSION, len(text), nbytes, zlib.crc32(text))
    return (first + text).ljust(start, b"\0"), nbytes


def read_block(memory: np.ndarray, at: int, nbytes: int, path: Path) -> dict[str, Column]:
    """The columns of a block as views of the segment. Raises ``StorageError`` if they are not what the ledger knows."""
    block = memory[at : at + nbytes]
    if at < HEAD_BYTES or len(block) != nbytes or nbytes < _BLOCK.size:
        raise StorageError(f"{path} is cut short: no block of {nbytes} bytes at {at}", hint=_DAMAGED)
    magic, version, length, known, checksum = _BLOCK.unpack(block[: _BLOCK.size].tobytes())
    text = block[_BLOCK.size : _BLOCK.size + length].tobytes()
    if magic != _BLOCK_MAGIC or version != VERSION or known != nbytes or zlib.crc32(text) != checksum:
        raise StorageError(f"{path} is damaged at {at}", hint=_DAMAGED)
    body = block[aligned(_BLOCK.size + length) :]
    return {name: restore(one, body[one["at"] :]) for name, one in orjson.loads(text)["columns"].items()}


def failed(doing: str, path: Path, error: OSError) -> StorageError:
    """The error for a system call that failed."""
    return StorageError(
        f"{path} can't be {doing}: {error.strerror or error}",
        hint="make room (clear or commit samples), or use a larger folder, such as one in /dev/shm; "
        "acknowledged samples are safe"
        if doing == "written"
        else "does the folder exist, and is it yours?",
    )


def make_folder(folder: Path) -> None:
    """Make the folder of the segments, for its owner only. Raises ``StorageError``."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise StorageError(f"{folder} belongs to another user", hint="give your own folder")
    except OSError as error:
        raise failed("used", folder, error) from error


class SegmentUsage:
    """The live blocks of every segment in ``folder``, at the ledger's host. One thread calls it.

    ``keep`` a block when its put arrives; ``free`` it when the ledger does, after that is in the journal. Both may be
    repeated. A segment goes when it has no live block and its producer has let go of it, which ``sweep`` looks for.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder
        self._blocks: dict[str, set[int]] = {}

    def keep(self, location: Location) -> None:
        """A block is in use.

        Raises:
            BlockGoneError: its producer died, and its segment went, before the put arrived.
            StorageError: it is not the name of a segment.
        """
        name = location["segment"]
        check_name(name)
        if name not in self._blocks:
            if not (self._folder / name).exists():
                raise BlockGoneError(f"{self._folder / name} is gone", hint="put the samples again")
            self._blocks[name] = set()
        self._blocks[name].add(location["at"])

    def free(self, locations: Iterable[Location]) -> None:
        """Blocks are not in use any more."""
        for location in locations:
            name = location["segment"]
            blocks = self._blocks.get(name)
            if blocks is None:
                continue
            blocks.discard(location["at"])
            if not blocks:
                del self._blocks[name]
                self._unlink(name)

    def recover(self, locations: Iterable[Location]) -> list[str]:
        """Start with exactly these blocks; the names of missing segments."""
        self._blocks.clear()
        for location in locations:
            self._blocks.setdefault(location["segment"], set()).add(location["at"])
        missing = sorted(self._blocks.keys() - self._names())
        self.sweep()
        return missing

    def sweep(self) -> None:
        """Unlink segments without live blocks whose producer is done with them or dead."""
        for name in self._names() - self._blocks.keys():
            self._unlink(name)

    def _names(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {entry.name for entry in os.scandir(self._folder) if is_segment(entry.name)}
        return set()

    def _unlink(self, name: str) -> None:
        if not is_segment(name):
            return
        path = self._folder / name
        with contextlib.suppress(OSError):  # gone, or its producer still holds it
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(OSError):
                    os.pwrite(descriptor, b"\1", RETIRED_AT)
                path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
