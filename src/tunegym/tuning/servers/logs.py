"""What a server prints: kept in a file that never grows beyond a bound."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

LOG_LIMIT = 8 << 20
CHECK_S = 2.0


class BoundedLog:
    """A file that a process appends to, whose older half moves to ``<name>.1`` when it becomes too long.

    What is printed at the very moment of moving may be lost.

    Args:
        path: of the file; its folder must be there.
        limit: bytes that the file may have before it is shortened.
    """

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._next = 0.0
        self._mark = 0
        self.mark()  # an earlier process may have printed to it, too

    @property
    def fd(self) -> int:
        """What the process is given to write to."""
        return self._fd

    def tidy(self) -> None:
        """Shorten the file if it is too long; looks every other second at most."""
        now = time.monotonic()
        if now < self._next or self._fd < 0:
            return
        self._next = now + CHECK_S
        with contextlib.suppress(OSError):  # a full disk must not end a run because of a log
            size = os.fstat(self._fd).st_size
            if size > self._limit:
                newest = os.pread(self._fd, self._limit // 2, size - self._limit // 2)
                self._path.with_name(f"{self._path.name}.1").write_bytes(newest)
                os.ftruncate(self._fd, 0)
                self._mark = 0

    def mark(self) -> None:
        """What comes from now on is what ``last_line`` looks at."""
        with contextlib.suppress(OSError):
            self._mark = os.fstat(self._fd).st_size

    def last_line(self) -> str:
        """The last line since ``mark`` that isn't empty; empty if there is none."""
        with contextlib.suppress(OSError):
            size = os.fstat(self._fd).st_size
            start = max(self._mark, size - 4096)
            end = os.pread(self._fd, max(0, size - start), start).decode(errors="replace")
            lines = [line.strip() for line in end.splitlines() if line.strip()]
            return lines[-1][:300] if lines else ""
        return ""

    def close(self) -> None:
        """Let go of the file. Calling it twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
