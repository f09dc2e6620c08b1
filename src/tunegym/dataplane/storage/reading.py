"""A consumer's maps of segments."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import ClosedError, StorageError
from tunegym.dataplane.storage.base import BlockGoneError, Location
from tunegym.dataplane.storage.segments import HEAD_BYTES, SUFFIX, check_head, failed, read_block

MOST_MAPS = 16
"""How many segments stay mapped, whether anybody holds a view of them or not."""
_MOST_BLOCKS = 256


class _Map:
    """One segment, for reading. Views of it keep the memory; this only keeps the map at hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_head(os.pread(self.descriptor, HEAD_BYTES, 0), path)
            # All of it, as long as it is now: its producer may just be cutting off what it didn't use.
            mapped = mmap.mmap(self.descriptor, 0, prot=mmap.PROT_READ)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.memory = np.frombuffer(mapped, dtype=np.uint8)
        self.blocks: dict[int, dict[str, Column]] = {}

    def block(self, at: int, nbytes: int) -> dict[str, Column]:
        """See ``read_block``."""
        found = self.blocks.get(at)
        if found is None:
            # A map of a file that was cut is a signal waiting to happen: its length is looked at first.
            end = min(os.fstat(self.descriptor).st_size, len(self.memory))
            found = read_block(self.memory[:end], at, nbytes, self.path)
            if len(self.blocks) >= _MOST_BLOCKS:
                self.blocks.clear()
            self.blocks[at] = found
        return found

    @property
    def unlinked(self) -> bool:
        """Whether it is kept only by those who map it."""
        return not os.fstat(self.descriptor).st_nlink

    def close(self) -> None:
        """Keep it at hand no more."""
        os.close(self.descriptor)


class SegmentReader:
    """Maps segments of ``folder`` as they are needed, and keeps some. Any thread may call it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._maps: OrderedDict[str, _Map] = OrderedDict()
        self._closed = False

    def columns(self, location: Location) -> dict[str, Column]:
        """The columns of a block. Raises ``BlockGoneError`` and ``StorageError``."""
        with self._guard:
            if self._closed:
                raise ClosedError("the storage is closed")
            return self._map(location["segment"]).block(location["at"], location["nbytes"])

    def trim(self) -> None:
        """Let go of segments that are unlinked."""
        with self._guard:
            self._trim()

    def close(self) -> None:
        """Let go of all."""
        with self._guard:
            self._closed = True
            while self._maps:
                self._maps.popitem()[1].close()

    def _map(self, name: str) -> _Map:
        known = self._maps.get(name)
        if known is not None:
            self._maps.move_to_end(name)
            return known
        self._trim()
        if not name.endswith(SUFFIX) or "/" in name:
            raise StorageError(f"{name!r} is no segment", hint="the ledger and the storage are of different planes")
        path = self._folder / name
        try:
            self._maps[name] = known = _Map(path)
        except FileNotFoundError:
            raise BlockGoneError(
                f"{path} is gone", hint="the samples were cleared, or written again: locate them once more"
            ) from None
        except OSError as error:
            raise failed("read", path, error) from error
        while len(self._maps) > MOST_MAPS:
            self._maps.popitem(last=False)[1].close()
        return known

    def _trim(self) -> None:
        for name in [name for name, one in self._maps.items() if one.unlinked]:
            self._maps.pop(name).close()
