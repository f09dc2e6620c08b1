"""Servers at the other end of a connection: requests, answers, and the loss of the server when the connection breaks.

``RemoteHost`` speaks the protocol of ``serve``: the first message is a welcome with the server's spaces, then each
request has one answer. ``TcpHost`` connects to a ``tunegym serve``; ``process.ProcessHost`` starts a process here.
"""

from __future__ import annotations

import math
import reprlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tunegym.core.errors import ServerLostError
from tunegym.core.wire import MESSAGE_LIMIT, Connection, ConnectionClosedError, WireError, encode, keep_alive
from tunegym.tuning.servers.host import ServerFailure, StepAnswer, log_close
from tunegym.tuning.servers.protocol import HELLO_LIMIT, RefusedError, check_accepted, hello, new_nonce, read_greeting
from tunegym.tuning.spaces import SpaceError, build

if TYPE_CHECKING:
    from gymnasium import spaces

START_S = 60.0
"""Building a server may take this long even where ``step_timeout_s`` is shorter: importing takes longer than a step."""
CLOSE_S = 5.0
CONNECT_S = 10.0
"""Bound on connecting, and on each message of the handshake."""
_STOPPED = "the run was told to stop at once"


class RemoteHost(ABC):
    """Talks to one server over a connection (a ``ServerHost``); subclasses know how to get the connection.

    ``start`` raises ``ServerLostError`` instead of ``ServerFailure`` where trying again is of no use.

    Args:
        step_timeout_s: how long an answer may take to begin, and between two parts of it; None for ever.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    applies_env_params: bool
    seconds: float = 0.0

    def __init__(self, step_timeout_s: float | None = None) -> None:
        self._step_timeout_s = step_timeout_s
        self._connection: Connection | None = None
        self._asked: str | None = None
        self._asked_at = 0.0
        self._killed = False

    def start(self) -> None:
        """Start the server, or connect to it; close an earlier one first."""
        self.close()
        if self._killed:
            raise ServerFailure(_STOPPED, lost=True)
        self._connection = self._connect()
        if self._killed:
            self._lose(_STOPPED)
        bound = None if self._step_timeout_s is None else max(self._step_timeout_s, START_S)
        deadline = None if bound is None else time.monotonic() + bound
        match self._receive(deadline, f"it was not ready within {bound} s"):
            case {"failed": str(reason)}:
                self._lose(reason)
            case {"applies_env_params": bool(applies), "action_space": actions, "observation_space": observations}:
                self.applies_env_params = applies
            case welcome:
                self._lose(f"the server sent something that is no welcome: {reprlib.repr(welcome)}")
        try:
            self.action_space, self.observation_space = build(actions), build(observations)
        except SpaceError as error:
            self._lose(f"the server's spaces can't be used: {error}")

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """See ``GymServer``."""
        self._ask("apply_env_params", dict(params))
        self._answer()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._ask("reset", seed, options)
        observation, info = self._answer(2)
        return observation, info

    def step(self, action: Any) -> StepAnswer:
        """``send`` and ``receive`` in one call."""
        self._ask("step", action)
        return self.receive()

    def send(self, action: Any) -> None:
        """Begin a step."""
        self._ask("step", action)

    def receive(self) -> StepAnswer:
        """Wait for the answer to the step that ``send`` began."""
        observation, reward, terminated, truncated, info = self._answer(5)
        return observation, reward, terminated, truncated, info

    def kill(self) -> None:
        """End a waiting call, now and for good. Takes no lock, so a signal handler may call it."""
        self._killed = True
        connection = self._connection
        if connection is not None:
            connection.hang_up()

    def close(self) -> None:
        """Close the server; errors are only logged. Calling it twice is fine."""
        if self._connection is None:
            return
        # While an answer is due nothing can be asked: hanging up makes the server close, too.
        if self._asked is None and not self._killed:
            try:
                self._ask("close")
                self._answer()
            except ServerFailure as failure:
                log_close(failure)
        self._disconnect(0.0 if self._killed else CLOSE_S)

    # for subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def _connect(self) -> Connection:
        """Return a connection on which the welcome comes next. Raises ``ServerFailure`` or ``ServerLostError``."""

    def _why_closed(self, what: str) -> str:
        """Return why the connection was closed; ``what`` is all that the connection knows."""
        return f"the connection to the server broke: {what}"

    def _disconnect(self, patience_s: float) -> None:
        """Close the connection; a process of ours has this long to end by itself."""
        connection, self._connection = self._connection, None
        self._asked = None
        if connection is not None:
            connection.close()

    # one request and its answer -------------------------------------------------------------------------

    def _ask(self, call: str, *arguments: Any) -> None:
        if self._killed:
            self._lose(_STOPPED)
        if self._connection is None:
            raise ServerFailure("there is no server", lost=True)
        if self._asked is not None:
            self._lose("an answer of the server was never waited for")
        try:
            frame = encode([call, *arguments])
        except WireError as error:
            raise ServerFailure(f"{call}: its arguments can't be sent: {error}") from None
        self._asked, self._asked_at = call, time.monotonic()
        try:
            self._connection.send_frame(frame, self._deadline)
        except TimeoutError:
            self._lose(self._too_late)
        except ConnectionClosedError as error:
            self._lose_closed(error)

    def _answer(self, count: int = 0) -> Any:
        """Return the value of the reply: ``count`` parts with an info at the end, or anything if that is 0.

        If the server's code raised, the server is still there.
        """
        if self._asked is None:
            raise ServerFailure("nothing was asked of the server", lost=self._connection is None)
        match self._receive(self._deadline, self._too_late):
            case ["ok" | "raised" as kind, value, float(seconds)] if 0.0 <= seconds < math.inf and (
                kind == "raised"
                or not count
                or (isinstance(value, list) and len(value) == count and isinstance(value[-1], dict))
            ):
                if self._asked == "step":
                    self.seconds = seconds
            case reply:
                self._lose(f"the server sent something that is no answer: {reprlib.repr(reply)}")
        self._asked = None
        if kind == "raised":
            raise ServerFailure(str(value))
        return value

    def _receive(self, deadline: float | None, too_late: str) -> Any:
        assert self._connection is not None
        try:
            message = self._connection.receive(deadline, self._step_timeout_s)
        except TimeoutError:
            self._lose(too_late)
        except ConnectionClosedError as error:
            self._lose_closed(error)
        except WireError as error:
            self._lose(f"the server sent something that is no message: {error}")
        match message:
            case ["lost", str(reason)]:  # from the tunegym serve that watches the server's process
                self._lose(f"the server died: {reason}")
        return message

    @property
    def _deadline(self) -> float | None:
        bound = CLOSE_S if self._asked == "close" else self._step_timeout_s
        return None if bound is None else self._asked_at + bound

    @property
    def _too_late(self) -> str:
        named = f"{CLOSE_S:g}" if self._asked == "close" else f"step_timeout_s = {self._step_timeout_s or 0.0:g}"
        return f"no answer within {named} s"

    def _lose_closed(self, error: ConnectionClosedError) -> NoReturn:
        self._lose(_STOPPED if self._killed else self._why_closed(str(error)))

    def _lose(self, reason: str) -> NoReturn:
        if self._asked == "step":
            self.seconds = time.monotonic() - self._asked_at
        self._disconnect(0.0)
        raise ServerFailure(reason, lost=True)


class TcpHost(RemoteHost):
    """Holds a connection to a ``tunegym serve``; each ``start`` makes it build a new server.

    Args:
        address: host and port.
        token: known to both ends.
        env_class: the reference of the class that is expected there; empty if any is fine.
        arguments: the constructor's.
        step_timeout_s: see ``RemoteHost``. Without it, a machine that vanished is still noticed.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        env_class: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        step_timeout_s: float | None = None,
    ) -> None:
        super().__init__(step_timeout_s)
        self._address = address
        self._token = token
        self._env_class = env_class
        self._arguments = dict(arguments or {})
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        self._where = f"tcp://{shown}:{address[1]}"

    def _connect(self) -> Connection:
        try:
            connected = socket.create_connection(self._address, timeout=CONNECT_S)
        except TimeoutError:
            self._fail(f"no answer within {CONNECT_S:g} s")
        except ConnectionRefusedError:
            self._fail("nothing listens there: is tunegym serve running?")
        except OSError as error:
            self._fail(error.strerror or str(error))
        keep_alive(connected)
        connection = Connection(connected, limit=HELLO_LIMIT)
        try:
            self._shake_hands(connection)
        except BaseException:
            connection.close()
            raise
        connection.decoder.limit = MESSAGE_LIMIT
        return connection

    def _shake_hands(self, connection: Connection) -> None:
        try:
            theirs, ours = read_greeting(connection.receive(time.monotonic() + CONNECT_S)), new_nonce()
            connection.send_frame(self._hello(theirs, ours), time.monotonic() + CONNECT_S)
            accepted = connection.receive(time.monotonic() + CONNECT_S)
            check_accepted(accepted, self._token, theirs, ours)
        except RefusedError as refusal:
            if refusal.passing:
                self._fail(refusal.reason)
            hint = refusal.hint or "look at what tunegym serve says"
            raise ServerLostError(f"{self._where}: {refusal.reason}", hint=hint) from None
        except TimeoutError:
            self._fail(f"it says nothing for {CONNECT_S:g} s: is it a tunegym serve?")
        except ConnectionClosedError as error:
            self._fail(f"it hung up before it let us in: {error}")
        except WireError as error:
            hint = "is the port that of a tunegym serve?"
            raise ServerLostError(f"{self._where}: {error}", hint=hint) from None

    def _hello(self, theirs: str, ours: str) -> bytes:
        try:
            return encode(hello(self._token, theirs, ours, self._env_class, self._arguments), HELLO_LIMIT)
        except WireError as error:
            hint = "name a file on the server's machine instead"
            raise RefusedError(f"the constructor's arguments can't be sent: {error}", hint) from None

    def _why_closed(self, what: str) -> str:
        return f"the connection to {self._where} broke: {what}"

    def _fail(self, what: str) -> NoReturn:
        raise ServerFailure(f"{self._where}: {what}", lost=True)
