"""The files that bytes are in: a head, then blocks, each with a head of its own that describes its columns.

::

    segment   magic, format version; then blocks, each at a multiple of 64
    block     magic, bytes of the description, bytes of it all, CRC of the description; the description (JSON); columns

A block is never changed, and is read only once the ledger knows of it. Its head is checked: a segment that was cut,
mixed up or written by another version is found out before anything of it is used. The columns themselves carry no
checksum: it would cost about as much as writing them, and on a file system in memory there is no medium that decays.
"""

from __future__ import annotations

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
_MAGIC = b"tunegym segment\0"
_HEAD = struct.Struct("<16sI")
_BLOCK_MAGIC = b"tgblock\0"
_BLOCK = struct.Struct("<8sIIQI")


def head() -> bytes:
    """How a segment begins."""
    return _HEAD.pack(_MAGIC, VERSION).ljust(HEAD_BYTES, b"\0")


def is_name(name: object) -> bool:
    """Whether a segment may be called so: it leads nowhere else."""
    return isinstance(name, str) and name.endswith(SUFFIX) and "/" not in name and "\0" not in name


def check_name(name: object) -> None:
    """Raise ``StorageError`` unless a segment may be called so."""
    if not is_name(name):
        raise StorageError(f"{name!r:.200} is no segment", hint="the ledger and the storage are of different planes")


def check_head(content: bytes, path: Path) -> None:
    """Raise ``StorageError`` unless a segment of this version begins so."""
    if len(content) < _HEAD.size:
        raise StorageError(f"{path} is cut short", hint=_DAMAGED)
    magic, version = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise StorageError(f"{path} is no segment", hint=_DAMAGED)
    if version != VERSION:
        raise StorageError(
            f"{path} has format {version}, and this tunegym knows {VERSION}", hint="use the version that wrote it"
        )


_DAMAGED = "something else wrote to the folder: clear these samples, and produce them again"


def block_head(partition_id: str, columns: Mapping[str, Column]) -> tuple[bytes, int]:
    """How a block begins, and the bytes of it all; its columns follow, one after the other."""
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
    """The columns of a block, as views of the segment.

    Raises:
        StorageError: that is not what the ledger knows of.
    """
    block = memory[at : at + nbytes]
    if at < HEAD_BYTES or len(block) != nbytes or nbytes < _BLOCK.size:
        raise StorageError(f"{path} is cut short: a block from {at} of {nbytes} bytes isn't there", hint=_DAMAGED)
    magic, version, length, known, checksum = _BLOCK.unpack(block[: _BLOCK.size].tobytes())
    text = block[_BLOCK.size : _BLOCK.size + length].tobytes()
    if magic != _BLOCK_MAGIC or version != VERSION or known != nbytes or zlib.crc32(text) != checksum:
        raise StorageError(f"{path} is damaged at {at}", hint=_DAMAGED)
    body = block[aligned(_BLOCK.size + length) :]
    return {name: restore(one, body[one["at"] :]) for name, one in orjson.loads(text)["columns"].items()}


def failed(doing: str, path: Path, error: OSError) -> StorageError:
    """What to say when the system refuses."""
    reason = error.strerror or str(error)
    return StorageError(
        f"{path} can't be {doing}: {reason}",
        hint="make room (clear or commit samples), or give the plane a larger folder, such as one in /dev/shm; "
        "what was acknowledged is safe"
        if doing == "written"
        else "is the folder there, and yours?",
    )


def own_folder(folder: Path) -> None:
    """Make it, for its owner only. Raises ``StorageError`` if that can't be."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise StorageError(f"{folder} is somebody else's", hint="give a folder of your own")
    except OSError as error:
        raise failed("used", folder, error) from error
