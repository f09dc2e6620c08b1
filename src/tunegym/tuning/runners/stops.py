"""The signal to stop, which every waiting thread sees."""

from __future__ import annotations

import contextlib
import os


class StopFlag:
    """Set once by ``set``, and in a hurry when set twice; never unset.

    ``fd`` and ``hurry_fd`` are readable from then on, so that any number of threads can poll them. ``set``
    takes no lock and may be called from a signal handler, also after ``close``.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.fd, self._write_fd = os.pipe()
        self.hurry_fd, self._hurry_write_fd = os.pipe()

    def set(self) -> None:
        """Tell everybody to stop; the second time, to do so at once."""
        fd = self._hurry_write_fd if self.is_set else self._write_fd
        self.is_set = True
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.write(fd, b"!")

    def close(self) -> None:
        """Let go of the descriptors. Nobody may wait any longer. Calling it twice is fine."""
        fds = self.fd, self._write_fd, self.hurry_fd, self._hurry_write_fd
        # Forgotten first: a signal handler must never write to a number that is somebody else's by then.
        self.fd = self._write_fd = self.hurry_fd = self._hurry_write_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
