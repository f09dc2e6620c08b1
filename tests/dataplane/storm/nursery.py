"""Starts the processes of a storm, by forking: importing takes about as long as some of them live.

It is a process of its own, ``python -m tests.dataplane.storm.nursery``, that has nothing to do with any plane. It takes
lines ``[name, log, arguments]`` and says ``[name, pid, null]`` when one has started, ``[name, pid, code]`` when it has
ended. When its input ends, so do all.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson
from tests.dataplane.storm import parts

ROOT = Path(__file__).parents[3]
_PAUSE_S = 0.01


class Nursery:
    """The other end of it.

    Attributes:
        running: pids, by name.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.running: dict[str, int] = {}
        self._ended: list[tuple[str, int]] = []

    def start(self, name: str, log: Path, arguments: Sequence[str]) -> None:
        """Start a process; returns when it has started."""
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps([name, str(log), list(arguments)]) + b"\n")
        while name not in self.running:
            self._hear()

    def ended(self) -> list[tuple[str, int]]:
        """Those that have ended since the last time, with their codes."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], 0)[0]:
            self._hear()
        ended, self._ended = self._ended, []
        return ended

    def _hear(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery is gone"
        name, pid, code = orjson.loads(line)
        if code is None:
            self.running[name] = pid
        else:
            del self.running[name]
            self._ended.append((name, code))

    def close(self) -> None:
        """End all."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


def main() -> None:
    """Be the nursery."""
    children: dict[int, str] = {}
    received = b""
    while True:
        ready, _, _ = select.select([0], [], [], _PAUSE_S)
        if ready:
            more = os.read(0, 1 << 16)
            if not more:
                break
            *lines, received = (received + more).split(b"\n")
            for line in lines:
                name, log, arguments = orjson.loads(line)
                pid = os.fork()
                if not pid:
                    _be(log, arguments)
                children[pid] = name
                _say(name, pid, None)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _say(children.pop(pid), pid, os.waitstatus_to_exitcode(status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _say(*what: Any) -> None:
    os.write(1, orjson.dumps(what) + b"\n")


def _be(log: str, arguments: Sequence[str]) -> NoReturn:
    """In a child: do the work, and end."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        place = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        for descriptor, at in ((nothing, 0), (place, 1), (place, 2)):
            os.dup2(descriptor, at)
        parts.main(arguments)
        code = 0
    except BaseException:  # it must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
