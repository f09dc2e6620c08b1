"""Elements of a space, step after step, as columns: in a journal's group, in a CSV, or in a file of their own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from gymnasium import spaces

from tunegym.core.errors import StoreError
from tunegym.tuning.spaces import Leaf, leaves

INLINE = 32
"""An element of more numbers than this goes to a file of its own."""
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


class Columns:
    """The elements of one group of steps. ``put`` is cheap; whoever reads them does so for all at once.

    Attributes:
        leaves: what an element is made of.
        buffers: the rows of each leaf.
        inline: whether an element is small enough for a journal and a CSV.
        only: the rows, of a space that is one array; one may write to them directly.

    Args:
        space: whose elements.
        rows: how many there may be at most.
    """

    def __init__(self, space: spaces.Space[Any], rows: int) -> None:
        self.leaves: list[Leaf] = leaves(space)
        self.inline = sum(leaf.size for leaf in self.leaves) <= INLINE
        self._make_room(rows)

    def _make_room(self, rows: int) -> None:
        self.buffers = [np.zeros((rows, *leaf.shape), dtype=leaf.dtype) for leaf in self.leaves]
        self._texts: list[bytes | None] = []  # of what plain() gave last: whoever asks for cells next needs the same
        self.only = self.buffers[0] if len(self.leaves) == 1 and not self.leaves[0].path else None

    def names(self, prefix: str) -> list[str]:
        """A column's name for each number of an element."""
        found = [name for leaf in self.leaves for name in leaf.names()]
        return [f"{prefix}.{name}" if name else prefix for name in found]

    def put(self, row: int, element: Any) -> None:
        """Keep a copy of an element as row ``row``."""
        if self.only is not None:
            self.only[row] = element
            return
        for leaf, buffer in zip(self.leaves, self.buffers, strict=True):
            buffer[row] = leaf.of(element)

    def plain(self, count: int) -> list[Any]:
        """The first ``count`` rows for a record: an array for each leaf."""
        self._texts = [_text(buffer[:count]) for buffer in self.buffers]
        return [
            _exact(buffer[:count]) if text is None else orjson.Fragment(text)
            for buffer, text in zip(self.buffers, self._texts, strict=True)
        ]

    def cells(self, count: int) -> list[list[str]]:
        """The first ``count`` rows for a CSV: for each leaf the text of each row, its numbers joined by commas."""
        texts, self._texts = self._texts or [None] * len(self.buffers), []
        return [
            _cells(buffer[:count].reshape(count, -1)) if text is None or buffer.ndim > 2 else _split(text, buffer.ndim)
            for buffer, text in zip(self.buffers, texts, strict=True)
        ]

    def packed(self, count: int) -> bytes:
        """The first ``count`` rows as they lie in a file of their own: each one's numbers, without gaps."""
        rows = [np.ascontiguousarray(buffer[:count].reshape(count, -1)).view(np.uint8) for buffer in self.buffers]
        return np.hstack(rows).tobytes()

    def load(self, arrays: list[Any], count: int) -> None:
        """Take in what ``plain`` gave, from a journal, of a session that may have had larger groups."""
        self._texts = []
        if count > len(self.buffers[0]):
            self._make_room(count)
        for buffer, values in zip(self.buffers, arrays, strict=True):
            if buffer.dtype.kind == "f":
                buffer[:count] = np.array(values, dtype=np.float64).reshape((count, *buffer.shape[1:]))
            else:
                buffer[:count] = np.array(values).reshape((count, *buffer.shape[1:]))


def _text(array: np.ndarray) -> bytes | None:
    """The JSON of an array; None if there is none."""
    text = orjson.dumps(np.ascontiguousarray(array), option=_NUMPY)
    return None if b"null" in text else text


def _split(text: bytes, rank: int) -> list[str]:
    """The rows of an array's JSON."""
    return text.decode()[1:-1].split(",") if rank == 1 else text.decode()[2:-2].split("],[")


def _exact(array: np.ndarray) -> Any:
    """As JSON can hold it, in which there is no infinity: such an array is one of texts."""
    return array.astype(np.float64).astype(str).tolist()


def row_type(space: spaces.Space[Any]) -> np.dtype[Any]:
    """How one element lies in a file of its own; a field for each leaf, by its name."""
    return np.dtype([(leaf.name or "value", leaf.dtype, leaf.shape) for leaf in leaves(space)])


def _cells(rows: np.ndarray) -> list[str]:
    if not len(rows):
        return []
    if rows.shape[1] == 0:
        return [""] * len(rows)
    text = orjson.dumps(np.ascontiguousarray(rows), option=_NUMPY).decode()
    if "null" in text:  # what JSON makes of numbers that are not finite
        return [",".join(repr(number) for number in row) for row in rows.astype(np.float64).tolist()]
    return text[2:-2].split("],[")


class SideFile:
    """A file that only rows of one size are appended to; what lies behind the journal's count is cut off first.

    Attributes:
        rows: how many count; raised by whoever has told the journal of them.
    """

    def __init__(self, path: Path, row_bytes: int, rows: int) -> None:
        self._row_bytes = row_bytes
        self.rows = rows
        try:
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            if size < rows * row_bytes:
                found = size // row_bytes if row_bytes else 0
                raise StoreError(
                    f"{path} is too short: the journal knows of {rows} rows, and it has {found}",
                    hint="put the whole file back, or start a new run",
                )
            os.ftruncate(self._file, rows * row_bytes)
        except OSError as error:
            raise StoreError(f"{path} can't be written: {error.strerror}", hint="is it yours?") from error

    def append(self, data: bytes, row: int) -> None:
        """Write rows from ``row`` on, behind which there is nothing else, as far as they aren't there already.

        Raises ``OSError``.
        """
        there = os.fstat(self._file).st_size - row * self._row_bytes
        view = memoryview(data)[there:]
        while view:
            view = view[os.write(self._file, view) :]

    def cut(self) -> None:
        """Back to the rows that count, after something failed; a resume would do it too."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self.rows * self._row_bytes)

    def sync(self) -> None:
        """Have them on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Let go."""
        os.close(self._file)
