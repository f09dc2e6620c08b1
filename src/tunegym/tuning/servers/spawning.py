"""Starting a server in a process of its own, and ending it with all that it started."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunegym.core.child import Child, Exit, milliseconds
from tunegym.core.processes import MARK, Tree, end_tree
from tunegym.core.wire import encode
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE

_MAIN = str(Path(__file__).with_name("child_main.py"))


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process is to serve.

    Attributes:
        reference: of the class.
        arguments: what its constructor is given.
        paths: folders whose modules come before all others.
    """

    reference: str
    arguments: Mapping[str, Any]
    paths: tuple[str, ...] = ()

    def frame(self) -> bytes:
        """As the process reads it. Raises ``WireError`` if the arguments can't be sent."""
        return encode({"reference": self.reference, "arguments": dict(self.arguments), "paths": list(self.paths)})


class ServerProcess:
    """A process in a session of its own, that answers on a socket until that is closed.

    The kernel kills its process group when this process is gone, also while it hangs: a pipe that we hold tells it (a
    signal at the death of a parent would come at the end of the thread that started it). Whatever leaves the group
    carries the mark.

    Args:
        setup: what it serves.
        conversation: its end of the connection; the caller closes its own copy.
        marker: what the process and all that it starts carry in their environment.
        output: descriptor that its stdout and stderr go to.

    Raises:
        OSError: it can't be started.
        WireError: the arguments can't be sent.
    """

    def __init__(self, setup: Setup, conversation: socket.socket, *, marker: str, output: int) -> None:
        frame = setup.frame()
        lifeline, self._lifeline = os.pipe()
        try:
            with tempfile.TemporaryFile() as file:
                file.write(frame)
                file.seek(0)
                self._child = _start(conversation.fileno(), file.fileno(), lifeline, marker, output)
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        self._tree = Tree(marker, ((self._child.pid, self._child.start),))
        self._exit: Exit | None = None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def handle(self) -> dict[str, Any]:
        """Names the process for a later session."""
        return self._child.handle

    @property
    def pidfd(self) -> int:
        """Readable once the process has ended; -1 where the system has no such thing."""
        return self._child.pidfd

    def wait(self, seconds: float) -> bool:
        """Whether the process has ended, by itself, within this time."""
        if self._exit is not None:
            return True
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            return bool(poll.poll(milliseconds(seconds)))
        deadline = time.monotonic() + seconds
        while not self._child.has_ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._child.has_ended()

    def finish(self, grace_s: float) -> Exit:
        """End what is left of it and all that it started, and take notice. Calling it twice is fine."""
        if self._exit is None:
            end_tree(self._tree, grace_s=grace_s)
            self._exit = self._child.reap()
            os.close(self._lifeline)
        return self._exit

    def kill(self) -> None:
        """End everything now, but leave it to be reaped. May be called from a signal handler."""
        if self._exit is None:
            end_tree(self._tree, grace_s=0.0)


def _start(conversation: int, setup: int, lifeline: int, marker: str, output: int) -> Child:
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    paths = json.dumps([path or str(Path.cwd()) for path in sys.path])
    popen = subprocess.Popen(
        # -P: the folder of the script is not for importing from. -B: compiled files know their source's time to
        # the second only, so a module that is edited and run at once would be stale.
        [sys.executable, "-P", "-B", _MAIN, str(conversation), str(setup), str(lifeline), paths],
        pass_fds=[conversation, setup, lifeline],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env={**environment, MARK: marker},
    )
    return Child(popen.pid, popen)
