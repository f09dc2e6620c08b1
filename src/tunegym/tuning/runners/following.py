"""Following a file that a command writes, for the values in its lines."""

from __future__ import annotations

import contextlib
import os
import re
import stat

from tunegym.tuning.model.job import Stream, Watch

LOOK_S = 0.1
"""How often a file is looked at."""

LONGEST_LINE = 64 * 1024
"""A longer line is passed over: nobody prints a value so."""

_CHUNK = 256 * 1024
_MOST_CHUNKS = 32  # at a look, so that a command that prints without end doesn't keep us from its time-out


class Follower:
    """Tells ``watch`` of the values that a growing file has, match by match, in whole lines only.

    The file may appear late. One that is cut short is read from its start again, one that is replaced is read to
    its end and then the new one; the matches are numbered on.

    Args:
        folder: of the job.
        stream: what to look for, and where.
        watch: called with the match's number and its value, until it says True.
    """

    def __init__(self, folder: str, stream: Stream, watch: Watch) -> None:
        self._path = os.path.join(folder, stream.file)  # noqa: PTH118
        self._pattern = re.compile(stream.pattern.encode(), re.MULTILINE)
        self._watch = watch
        self._fd = -1
        self._known = (0, 0)
        self._offset = 0
        self._line = b""
        self._too_long = False
        self._matches = 0
        self._told = False

    def look(self) -> bool:
        """Tell of what is new; True if the job is to end now."""
        return self._told or self._look(_MOST_CHUNKS)

    def finish(self) -> bool:
        """Nothing is written any more: tell of all that is left, a last line without an end included."""
        if not self._told and not self._look(None) and not self._too_long:
            line, self._line = self._line, b""
            self._told = self._tell(line)
        self.close()
        return self._told

    def close(self) -> None:
        """Let go of the file. Calling it twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _look(self, most_chunks: int | None) -> bool:
        try:
            there = os.stat(self._path)  # noqa: PTH116
        except OSError:  # not yet, or moved away: what we have open may still grow
            there = None
        if there is not None and (there.st_dev, there.st_ino) != self._known:
            self._told = self._read(most_chunks)
            if not self._told and stat.S_ISREG(there.st_mode):  # opening a FIFO would take from its writer
                self._open()
        if not self._told:
            self._told = self._read(most_chunks)
        return self._told

    def _open(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            opened = os.fstat(self._fd)
            self._known = opened.st_dev, opened.st_ino
            self._begin()

    def _begin(self) -> None:
        self._offset, self._line, self._too_long = 0, b"", False

    def _read(self, most_chunks: int | None) -> bool:
        """Take in what the open file has more of; True if the job is to end."""
        size = self._size()
        if size < self._offset:
            self._begin()
        chunks = 0
        while self._offset < size and (most_chunks is None or chunks < most_chunks):
            content = self._content(min(_CHUNK, size - self._offset))
            if not content:
                break
            self._offset += len(content)
            chunks += 1
            if self._take(content):
                return True
        return False

    def _size(self) -> int:
        with contextlib.suppress(OSError):
            return os.fstat(self._fd).st_size if self._fd >= 0 else 0
        return self._offset

    def _content(self, length: int) -> bytes:
        """A file that can't be read gives no values; the metric itself will complain about it."""
        with contextlib.suppress(OSError):
            return os.pread(self._fd, length, self._offset)
        return b""

    def _take(self, content: bytes) -> bool:
        *lines, rest = content.split(b"\n")
        for line in lines:
            whole, self._line = self._line + line, b""
            passed_over, self._too_long = self._too_long, False
            if not passed_over and len(whole) <= LONGEST_LINE and self._tell(whole):
                return True
        self._line += rest
        if len(self._line) > LONGEST_LINE:
            self._line, self._too_long = b"", True
        return False

    def _tell(self, line: bytes) -> bool:
        for match in self._pattern.finditer(line):
            self._matches += 1
            value = _value(match)
            if value is not None and self._watch(self._matches, value):
                return True
        return False


def _value(match: re.Match[bytes]) -> float | None:
    """The number that a match spells; None if it is none, which the metric itself will complain about."""
    text = next((group for group in match.groups() if group is not None), match[0] if not match.groups() else b"")
    if b"_" in text:  # Python's 1_000; nobody else's
        return None
    with contextlib.suppress(ValueError):
        return float(text)
    return None
