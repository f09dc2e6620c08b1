"""Which segments hold blocks that somebody wants: whoever hosts the ledger unlinks the others."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from tunegym.dataplane.storage.base import BlockGoneError, Location
from tunegym.dataplane.storage.freeing import later
from tunegym.dataplane.storage.segments import SUFFIX, check_name, is_name, own_folder


class LiveSegments:
    """Keeps account of the blocks in every segment of ``folder``. One thread of one process calls it.

    ``keep`` a block as soon as its put arrives, and before the ledger may let it wait; ``free`` it when the ledger
    does, or refuses it, and after that is written down. Both may be told again of what they know. A segment goes when
    none of its blocks is wanted and its producer has finished it, which is when it moves on, closes, or dies: ``sweep``
    every now and then finds those that nobody speaks of.
    """

    def __init__(self, folder: Path) -> None:
        own_folder(folder)
        self._folder = folder
        self._blocks: dict[str, set[int]] = {}
        self._empty: dict[str, set[str]] = {}

    def keep(self, location: Location) -> None:
        """A block is wanted.

        Raises:
            BlockGoneError: its producer died, and its segment went, before its put was heard.
            StorageError: that is no segment.
        """
        name = location["segment"]
        check_name(name)
        blocks = self._blocks.get(name)
        if blocks is None:
            if not (self._folder / name).exists():
                raise BlockGoneError(f"{self._folder / name} is gone", hint="put the samples again")
            blocks = self._blocks[name] = set()
            self._moved_on(name)
        blocks.add(location["at"])

    def free(self, locations: Iterable[Location]) -> None:
        """Blocks are not wanted any more."""
        for location in locations:
            name = location["segment"]
            blocks = self._blocks.get(name)
            if blocks is None:
                continue
            blocks.discard(location["at"])
            if not blocks:
                del self._blocks[name]
                self._let_go(name)

    def recover(self, locations: Iterable[Location]) -> list[str]:
        """Begin with these blocks, and no others; segments of theirs that are not there."""
        self._blocks.clear()
        self._empty.clear()
        for location in locations:
            self._blocks.setdefault(location["segment"], set()).add(location["at"])
        there = self._names()
        self.sweep()
        return sorted(self._blocks.keys() - there)

    def sweep(self) -> None:
        """Unlink whatever nobody wants and no producer holds."""
        self._empty.clear()
        for name in self._names() - self._blocks.keys():
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        if not self._unlink(name):
            self._empty.setdefault(_producer(name), set()).add(name)

    def _moved_on(self, name: str) -> None:
        """A producer has begun a segment: those before it may be finished."""
        for one in self._empty.pop(_producer(name), ()):
            if one not in self._blocks:
                self._let_go(one)

    def _names(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {entry.name for entry in os.scandir(self._folder) if entry.name.endswith(SUFFIX)}
        return set()

    def _unlink(self, name: str) -> bool:
        """Unlink a segment; False if its producer still holds it."""
        if not is_name(name):
            return True
        path = self._folder / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return True  # gone, or not ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except OSError:
            os.close(descriptor)
            return False
        # With it the pages go, if nobody maps it.
        later(os.fstat(descriptor).st_size, descriptor, os.close, descriptor)
        return True


def _producer(name: str) -> str:
    return name.rpartition("-")[0]
