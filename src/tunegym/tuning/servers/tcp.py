"""A server elsewhere: at the address of a ``tunegym serve``."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from tunegym.core.errors import ServerLostError
from tunegym.core.wire import (
    MESSAGE_LIMIT,
    Connection,
    ConnectionClosedError,
    WireError,
    encode,
    keep_alive,
)
from tunegym.tuning.servers.hosting import ServerFailure
from tunegym.tuning.servers.protocol import HELLO_LIMIT, RefusedError, check_accepted, hello, new_nonce, read_greeting
from tunegym.tuning.servers.remote import RemoteHost

CONNECT_S = 10.0


class TcpHost(RemoteHost):
    """Holds a connection to a server elsewhere (the ``Host`` port); each ``start`` has it build a new one.

    Args:
        address: host and port.
        token: what both ends know.
        env_class: the reference of the class that is expected there; empty if any is fine.
        arguments: what its constructor is given.
        step_timeout_s: how long an answer may take; None for ever, but a host that vanished is noticed.
        connect_s: how long connecting, and each message until we are let in, may take.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        env_class: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        step_timeout_s: float | None = None,
        connect_s: float = CONNECT_S,
    ) -> None:
        super().__init__(step_timeout_s)
        self._address = address
        self._token = token
        self._env_class = env_class
        self._arguments = dict(arguments or {})
        self._connect_s = connect_s
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        self._where = f"tcp://{shown}:{address[1]}"

    def _connect(self) -> Connection:
        if self._killed:
            raise ServerFailure("the run was told to stop at once", lost=True)
        try:
            connected = socket.create_connection(self._address, timeout=self._connect_s)
        except TimeoutError:
            self._fail(f"nobody answers within {self._connect_s:g} s")
        except ConnectionRefusedError:
            self._fail("nothing listens there: is tunegym serve running?")
        except OSError as error:
            self._fail(error.strerror or str(error))
        keep_alive(connected)
        channel = Connection(connected, limit=HELLO_LIMIT)
        try:
            self._shake_hands(channel)
        except BaseException:
            channel.close()
            raise
        channel.limit = MESSAGE_LIMIT
        return channel

    def _shake_hands(self, channel: Connection) -> None:
        try:
            theirs, ours = read_greeting(self._next(channel)), new_nonce()
            channel.send_frame(self._hello(theirs, ours), time.monotonic() + self._connect_s)
            check_accepted(self._next(channel), self._token, theirs, ours)
        except RefusedError as refusal:
            if refusal.passing:
                self._fail(refusal.reason)
            hint = refusal.hint or "look at what tunegym serve says"
            raise ServerLostError(f"{self._where}: {refusal.reason}", hint=hint) from None
        except TimeoutError:
            self._fail(f"it says nothing for {self._connect_s:g} s: is it a tunegym serve?")
        except ConnectionClosedError as error:
            self._fail(f"it hung up before it let us in: {error}")
        except WireError as error:
            hint = "is the port that of a tunegym serve?"
            raise ServerLostError(f"{self._where}: {error}", hint=hint) from None

    def _next(self, channel: Connection) -> Any:
        return channel.receive(time.monotonic() + self._connect_s)

    def _hello(self, theirs: str, ours: str) -> bytes:
        try:
            return encode(hello(self._token, theirs, ours, self._env_class, self._arguments), HELLO_LIMIT)
        except WireError as error:
            raise RefusedError(
                f"the constructor's arguments can't be sent: {error}", "name a file of the server's machine instead"
            ) from None

    def _why_gone(self, what: str) -> str:
        return f"the connection to {self._where} broke: {what}"

    def _fail(self, what: str) -> NoReturn:
        raise ServerFailure(f"{self._where}: {what}", lost=True)
