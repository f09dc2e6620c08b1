"""A consumer's maps of segments."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np

from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import ClosedError
from tunegym.dataplane.storage.base import BlockGoneError, Location
from tunegym.dataplane.storage.freeing import later, wait
from tunegym.dataplane.storage.segments import HEAD_BYTES, check_head, check_name, failed, read_block

MOST_MAPS = 256
"""How many segments stay mapped, whether anybody holds a view of them or not: those of many producers, since to map
and fault one anew costs more than to read it. The bytes are there anyway for as long as it is linked; what each costs
is a descriptor."""
_MOST_BLOCKS = 256
_PIECE = 4 << 20

_FADE_S = 5.0
_readers: weakref.WeakSet[SegmentReader] = weakref.WeakSet()
_fading: list[list[_Map]] = []


class _Map:
    """One segment, for reading. Views of it keep the memory; this only keeps the map at hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            check_head(os.pread(descriptor, HEAD_BYTES, 0), path)
            # All of it, as long as it is now: its producer may just be cutting off what it didn't use.
            self._mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)  # the map has one of its own
        self.memory = np.frombuffer(self._mapped, dtype=np.uint8)
        self.blocks: dict[int, dict[str, Column]] = {}

    def block(self, at: int, nbytes: int) -> dict[str, Column]:
        """See ``read_block``."""
        found = self.blocks.get(at)
        if found is None:
            # A map of a file that was cut is a signal waiting to happen: its length is looked at first.
            end = min(self._mapped.size(), len(self.memory))
            found = read_block(self.memory[:end], at, nbytes, self.path)
            if len(self.blocks) >= _MOST_BLOCKS:
                self.blocks.clear()
            self.blocks[at] = found
        return found

    def fade(self) -> None:
        """Let go of its pages piece by piece; who still has a view of it finds them again.

        All at once, they would keep every other thread from mapping anything meanwhile.
        """
        with contextlib.suppress(OSError):  # a process may lock its memory, and then it goes all at once
            for start in range(0, len(self._mapped), _PIECE):
                self._mapped.madvise(mmap.MADV_DONTNEED, start, min(_PIECE, len(self._mapped) - start))
                time.sleep(0)  # whoever waits for the interpreter has it now

    def close(self) -> None:
        """Let go of it, unless somebody has a view of it."""
        self.blocks.clear()
        self.memory = np.zeros(0, dtype=np.uint8)
        with contextlib.suppress(BufferError):
            self._mapped.close()

    @property
    def unlinked(self) -> bool:
        """Whether it is kept only by those who map it: no other one is ever called so."""
        return not self.path.exists()


def _unmap(maps: list[_Map]) -> None:
    """Give them back; the list has the last reference to each."""
    while maps:
        maps[-1].fade()
        maps.pop()
    with contextlib.suppress(ValueError):
        _fading.remove(maps)


class SegmentReader:
    """Maps segments of ``folder`` as they are needed, and keeps some. Any thread may call it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closed = False
        self._start_anew()
        _readers.add(self)

    def _start_anew(self) -> None:
        self._guard = threading.Lock()
        self._maps: OrderedDict[str, _Map] = OrderedDict()

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
            self._keep(0)

    def _map(self, name: str) -> _Map:
        known = self._maps.get(name)
        if known is not None:
            self._maps.move_to_end(name)
            return known
        self._trim()
        check_name(name)
        path = self._folder / name
        try:
            self._maps[name] = known = self._mapped(path)
        except FileNotFoundError:
            raise BlockGoneError(
                f"{path} is gone", hint="the samples were cleared, or written again: locate them once more"
            ) from None
        except OSError as error:
            raise failed("read", path, error) from error
        self._keep(MOST_MAPS)
        return known

    def _mapped(self, path: Path) -> _Map:
        try:
            return _Map(path)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        wait(_FADE_S)
        self._keep(len(self._maps) // 2)
        return _Map(path)

    def _keep(self, most: int) -> None:
        while len(self._maps) > most:
            self._maps.popitem(last=False)

    def _trim(self) -> None:
        unlinked = [name for name, one in self._maps.items() if one.unlinked]
        if unlinked:
            maps = [self._maps.pop(name) for name in unlinked]
            _fading.append(maps)
            later(sum(one.memory.nbytes for one in maps), self._folder, _unmap, maps)

    def forked(self) -> None:
        """In a child: the guard may be held by a thread that it doesn't have."""
        self._start_anew()


def _forked() -> None:
    for maps in _fading:  # the thread that had them isn't here, but what it was just at is still referred to
        for one in maps:
            one.close()
        maps.clear()
    _fading.clear()
    for reader in list(_readers):
        reader.forked()


os.register_at_fork(after_in_child=_forked)
