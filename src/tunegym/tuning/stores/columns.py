"""Elements of a space, step after step, as columns: in a journal's group, in a CSV, or in a file of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
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
    """The elements of one group of steps. ``pack`` is cheap; ``fill`` makes columns of all of them at once.

    Attributes:
        leaves: what an element is made of.
        inline: whether an element is small enough for a journal and a CSV.
        row_bytes: what a packed element has.
        array: the type of a space that is one array, whose ``tobytes`` packs it; None of any other.
        scalar: whether an element is one number, and is packed as it is.

    Args:
        space: whose elements.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.leaves: list[Leaf] = leaves(space)
        self.inline = sum(leaf.size for leaf in self.leaves) <= INLINE
        self._type = row_type(space)
        self.row_bytes = self._type.itemsize
        alone = len(self.leaves) == 1 and not self.leaves[0].path
        self.scalar = alone and not self.leaves[0].shape
        self.array = self.leaves[0].dtype if alone and not self.scalar else None
        self._buffers: list[np.ndarray] = [np.zeros((0, *leaf.shape), dtype=leaf.dtype) for leaf in self.leaves]
        self._packed = b""
        self._texts: list[bytes | None] = []  # of what plain() gave last: whoever asks for cells next needs the same

    def names(self, prefix: str) -> list[str]:
        """A column's name for each number of an element."""
        found = [name for leaf in self.leaves for name in leaf.names()]
        return [f"{prefix}.{name}" if name else prefix for name in found]

    def pack(self, element: Any) -> Any:
        """A copy of an element, as ``fill`` takes it: its numbers without gaps, as they lie in a file of their own."""
        if self.scalar:  # numbers are nobody's to change; an array of one is
            return element if isinstance(element, int | float | np.generic) else self.leaves[0].dtype.type(element)
        row = np.empty((), dtype=self._type)
        for leaf, name in zip(self.leaves, self._type.names or (), strict=True):
            row[name] = leaf.of(element)
        return row.tobytes()

    def fill(self, packed: Sequence[Any]) -> None:
        """Take in the elements of a group."""
        self._texts = []
        if self.scalar:
            self._buffers = [np.array(packed, dtype=self.leaves[0].dtype)]
            return
        if not self.leaves:
            return
        self._packed = b"".join(packed)
        rows = np.frombuffer(self._packed, dtype=self._type)
        self._buffers = [rows[name] for name in self._type.names or ()]

    def load(self, arrays: list[Any]) -> None:
        """Take in what ``plain`` gave, from a journal. Raises ``StoreError``."""
        self._texts = []
        self._buffers = [leaf_values(leaf, values) for leaf, values in zip(self.leaves, arrays, strict=True)]

    def plain(self) -> list[Any]:
        """For a record: an array for each leaf."""
        self._texts = [_text(buffer) for buffer in self._buffers]
        return [
            _exact(buffer) if text is None else orjson.Fragment(text)
            for buffer, text in zip(self._buffers, self._texts, strict=True)
        ]

    def cells(self) -> list[list[str]]:
        """For a CSV: for each leaf the text of each row, its numbers joined by commas."""
        texts, self._texts = self._texts or [None] * len(self._buffers), []
        return [
            _cells(buffer.reshape(len(buffer), -1)) if text is None or buffer.ndim > 2 else _split(text, buffer.ndim)
            for buffer, text in zip(self._buffers, texts, strict=True)
        ]

    def packed(self) -> bytes:
        """As they lie in a file of their own."""
        return self._packed


def leaf_values(leaf: Leaf, values: Any) -> np.ndarray:
    """What a journal has of one leaf, a row for each step; null is what JSON makes of NaN. Raises ``StoreError``."""
    # Texts and nulls become floats. Integers must not on their way, and some are beyond what numpy takes them for.
    try:
        wide = np.array(values, dtype=np.float64 if leaf.dtype.kind == "f" else leaf.dtype)
        return wide.astype(leaf.dtype).reshape((-1, *leaf.shape))
    except (OverflowError, TypeError, ValueError) as error:
        what = f"the journal is damaged: its {leaf.name or 'values'} are not of {leaf.dtype} {leaf.shape}: {error}"
        raise StoreError(what, hint="start a new run") from error


def _text(array: np.ndarray) -> bytes | None:
    """The JSON of an array; None if there is none."""
    text = orjson.dumps(_whole(array), option=_NUMPY)
    return None if b"null" in text else text


def _whole(array: np.ndarray) -> np.ndarray:
    """As other libraries may read it: without gaps, and aligned, which a field of a record needn't be."""
    return np.require(array, requirements=["C", "A"])


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
    text = orjson.dumps(_whole(rows), option=_NUMPY).decode()
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
