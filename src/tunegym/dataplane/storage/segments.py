"""Segments: the files that hold the bytes of an mmap plane.

::

    segment   magic, format version, retired flag; then blocks, each at a multiple of 64
    block     magic, length of the description, length of the block, CRC of the description; description (JSON); columns

A block is never changed, and is read only once the ledger knows it. Its head is checked, so that a cut or foreign file
is detected before it is used. The columns carry no checksum: it would cost as much as writing them.

A producer holds a lock (``flock``) on a segment while one of its blocks is on the way to the ledger; the system ends
the lock of a process that dies. ``SegmentUsage``, at the ledger's host, unlinks a segment without live blocks once it
gets that lock; a producer that wants to add to it then makes another. It sets the retired flag first, so that readers
can see without a system call that a mapped segment is gone.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tunegym.dataplane.encoding import Column, aligned, restore
from tunegym.dataplane.errors import StorageError

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
    if magic != _MAGIC or version != VERSION:
        raise StorageError(f"{path} is not a segment", hint=_DAMAGED)


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
        if doing == "written" and error.errno not in (errno.ENOENT, errno.EACCES)
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
