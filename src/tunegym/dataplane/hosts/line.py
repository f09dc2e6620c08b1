"""One connection to a ledger host, and what has arrived on it."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Any

from tunegym.dataplane.hosts.clients import myself
from tunegym.dataplane.hosts.frames import Inbox, pack
from tunegym.dataplane.hosts.operations import as_error
from tunegym.dataplane.hosts.server import FORMAT

_CHUNK = 1 << 16
_GREET_S = 30.0


class Line:
    """A connected socket, with an inbox that never sees another one's bytes."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._inbox = Inbox()
        self._broken = False

    def introduce(self, name: str) -> None:
        """Say who one is, and hear that one is welcome. Raises ``OSError``, ``ValueError`` or ``DataPlaneError``."""
        self.socket.settimeout(_GREET_S)
        self.send(pack({"format": FORMAT, "client": myself(name)}))
        messages: list[Any] = []
        while not messages:
            found = self.receive()
            if found is None:
                raise ConnectionResetError("it hung up")
            messages = found
        if "error" in messages[0]:
            raise as_error(messages[0])
        self.socket.settimeout(None)

    def send(self, frame: bytes) -> None:
        """All of it. Raises ``OSError``."""
        self.socket.sendall(frame)

    def receive(self) -> list[Any] | None:
        """The messages that are whole now; None at its end. Raises ``OSError`` or ``ValueError``."""
        content = b"" if self._broken else self.socket.recv(_CHUNK)
        return self._inbox.add(content) if content else None

    def wait(self, seconds: float) -> bool:
        """Whether there is something to receive, now or within so long: also its end, and that it is closed."""
        try:
            arrival = select.poll()  # select() can't bear descriptors above 1023
            arrival.register(self.socket, select.POLLIN)
            return bool(arrival.poll(1000 * seconds))
        except (OSError, ValueError):
            return True

    def hang_up(self) -> None:
        """Something was interrupted, and may have been sent or received by half: whoever reads it finds its end."""
        self._broken = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it. Other processes may have it still."""
        self.socket.close()
