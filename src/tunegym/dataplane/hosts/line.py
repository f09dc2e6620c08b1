"""One connection to a ledger host, and what has arrived on it."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

from tunegym.dataplane.hosts.clients import myself
from tunegym.dataplane.hosts.frames import Inbox, pack
from tunegym.dataplane.hosts.operations import as_error
from tunegym.dataplane.hosts.server import FORMAT

_CHUNK = 1 << 16
_GREET_S = 30.0
_LOOK = struct.pack("ll", 1, 0)
"""Seconds and microseconds after which whoever waits for an answer looks around. It is the system's own timeout:
Python's would take one more call for each wait."""


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
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK)

    def send(self, frame: bytes) -> None:
        """All of it. Raises ``OSError``."""
        self.socket.sendall(frame)

    def receive(self) -> list[Any] | None:
        """Wait a moment: the messages that are whole then; None at its end. Raises ``OSError`` or ``ValueError``."""
        try:
            content = b"" if self._broken else self.socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        return self._inbox.add(content) if content else None

    def hang_up(self) -> None:
        """Something was interrupted, and may have been sent or received by half: whoever reads it finds its end."""
        self._broken = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it. Other processes may have it still."""
        self.socket.close()
