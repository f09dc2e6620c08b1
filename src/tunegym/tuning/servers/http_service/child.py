"""A process of the service as its parent sees it: started, asked, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

START_S = 60.0
"""A machine that is busy may take its time to start an interpreter."""
LEAVE_S = 2.0


class ChildError(RuntimeError):
    """A process of the service has ended, or does not answer."""


class Child:
    """One process. It ends with this one, however that ends; ``close`` leaves nothing behind.

    Args:
        name: what messages call it.
        module: what it runs.
        arguments: what it is given after this process's own number.
    """

    def __init__(self, name: str, module: str, *arguments: object) -> None:
        self._name = name
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._read = b""
        self._process = subprocess.Popen(
            # -P: the folder that we happen to be in is not for importing from.
            [sys.executable, "-P", "-m", module, str(os.getpid()), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C is for us, and we end it in good order
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def tell(self, message: dict[str, Any]) -> None:
        """Ask, without waiting for the answer; ``hear`` has to follow."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._lost() from None

    def hear(self, patience_s: float) -> dict[str, Any]:
        """The next answer."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience_s
        waiting = select.poll()  # select() can't bear descriptors above 1023
        waiting.register(self._process.stdout, select.POLLIN)
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(1000 * left):
                raise ChildError(f"{self._name} did not answer within {patience_s:g} s")
            found = os.read(self._process.stdout.fileno(), 65536)
            if not found:
                raise self._lost()
            self._read += found
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def ask(self, message: dict[str, Any], patience_s: float) -> dict[str, Any]:
        """``tell`` and ``hear``."""
        self.tell(message)
        return self.hear(patience_s)

    def close(self) -> None:
        """End it, and wait until it has ended. Calling it twice is fine."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._complaints.close()

    def _lost(self) -> ChildError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        reason = f": {said[-1]}" if said else ""
        return ChildError(f"{self._name} has ended with code {self._process.poll()}{reason}")
